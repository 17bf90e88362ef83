"""What one setting means for another: contradictions are errors, doubtful choices are warnings."""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

from proxy.config import EMBEDDED_TOKENIZER, Settings, Upstream
from proxy.config_sources import Origins, Place, Problem, where
from proxy.tenants import MIN_KEY_BYTES, KeyFileError, parse_key_file

OTHER_FILES = 64
"""Files of the process besides its connections."""

Add = Callable[[Place, str, str], None]
"""Notes a problem: place, what is wrong, remedy."""


def is_local_path(source: str) -> bool:
    """Whether a tokenizer setting means a file or folder (else it is a hub id or the embedded one)."""
    return source.startswith(("/", "./", "../", "~")) or Path(source).exists()


def cross_checks(settings: Settings, origins: Origins) -> list[Problem]:
    """Every contradiction. Touches the file system only for files that TokTier cannot start without."""
    found: list[Problem] = []

    def add(place: Place, problem: str, remedy: str) -> None:
        found.append(Problem(where(place, origins), problem, remedy))

    _names(settings, add)
    _models(settings, add)
    _tls(settings, add)
    _secrets(settings, add)
    _state(settings, add)
    _log(settings, add)
    _limits(settings, add)
    _gpu(settings, add)
    return found


def warnings(settings: Settings) -> list[Problem]:
    """What works but is probably not meant."""
    found = []
    if not settings.models:
        found.append(
            Problem("models", "no model is configured: every chat request gets 404", "add a [models.NAME] table")
        )
    if settings.auth.mode == "none" and not _is_loopback(settings.server.host):
        found.append(
            Problem(
                "auth.mode",
                f"everyone who reaches {settings.server.host} may use the upstreams, as one tenant",
                "choose passthrough or keys, or listen on 127.0.0.1",
            )
        )
    if settings.default_upstream is None and len(settings.upstreams) > 1:
        found.append(
            Problem("default_upstream", "requests that name no model get 404", "name the upstream that should get them")
        )
    if settings.shadow.on_mismatch == "quarantine" and not _writable(settings.auth.state_dir):
        found.append(
            Problem(
                "auth.state_dir",
                f"{settings.auth.state_dir} cannot be written, so what is put into quarantine ends with the process",
                "choose a writable folder",
            )
        )
    used = {model.upstream for model in settings.models.values()} | {settings.default_upstream}
    found += [
        Problem(
            f"models.{name}.tokenizer",
            "neither a path that exists nor a hub id pinned by a revision",
            "correct the path, or set revision to a commit",
        )
        for name, model in settings.models.items()
        if model.tokenizer not in (None, EMBEDDED_TOKENIZER)
        and not os.path.lexists(os.path.expanduser(str(model.tokenizer)))
        and model.revision is None
    ]
    found += [
        Problem(f"upstreams.{name}", "no model uses it", "remove it or point a model at it")
        for name in settings.upstreams
        if name not in used
    ]
    found += [
        Problem(f"upstreams.{name}.verify_tls", "the upstream's certificate is not checked", "set it to true")
        for name, upstream in settings.upstreams.items()
        if not upstream.verify_tls and upstream.url.startswith("https:")
    ]
    found += _open_files(settings)
    return found


def _writable(folder: Path) -> bool:
    """Whether files can be made in ``folder``, or it can be made itself."""
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


def _open_files(settings: Settings) -> Iterator[Problem]:
    """Each connection is an open file; `proxy.server.allow_open_files` takes what the process may have."""
    try:
        import resource  # not on Windows

        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    except (ImportError, OSError):
        return
    needed = settings.limits.connections + sum(it.max_connections for it in settings.upstreams.values())
    if most != resource.RLIM_INFINITY and needed + OTHER_FILES > most:
        yield Problem(
            "limits.connections",
            f"{needed} connections to clients and upstreams, and the process may have {most} open files",
            "lower it, or raise the limit (ulimit -Hn, LimitNOFILE=, --ulimit nofile)",
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _names(settings: Settings, add: Add) -> None:
    owner: dict[str, str] = {}
    for name in settings.models:
        owner[name] = name
        if not name or len(name) > 256:
            add(("models", name), "a model's name has 1 to 256 characters", "rename it")
    for name, model in settings.models.items():
        for alias in model.aliases:
            if not alias or len(alias) > 256:
                add(("models", name, "aliases"), "an alias has 1 to 256 characters", "rename it")
            elif alias in owner:
                add(("models", name, "aliases"), f"{alias!r} is already a name of {owner[alias]!r}", "keep one of them")
            else:
                owner[alias] = name


def _models(settings: Settings, add: Add) -> None:
    known = ", ".join(settings.upstreams) or "none"
    if settings.default_upstream is not None and settings.default_upstream not in settings.upstreams:
        add(("default_upstream",), f"no upstream {settings.default_upstream!r}", f"known upstreams: {known}")
    for name, model in settings.models.items():
        at = ("models", name)
        if model.upstream not in settings.upstreams:
            remedy = f"known upstreams: {known}; or add [upstreams.{model.upstream}] with its url"
            add((*at, "upstream"), f"no upstream {model.upstream!r}", remedy)
        if model.served_name is not None and model.served_name not in (name, *model.aliases):
            add(
                (*at, "served_name"),
                "must be the model's name or one of its aliases, since no request is rewritten",
                f"name the model {model.served_name!r} or add it to aliases",
            )
        source = model.tokenizer
        if model.control_tokens == "reject" and (source is None or model.mode == "text"):
            what = "tokenizer" if source is None else 'mode "auto"'
            add((*at, "control_tokens"), f"reject needs a model with {what}", "add that, or remove this")
        if source is None:
            for key in ("revision", "chat_template", "vocab_size", "shadow_rate"):
                if getattr(model, key) is not None:
                    add((*at, key), "has no meaning without a tokenizer", "add tokenizer, or remove this")
        elif not source:
            add((*at, "tokenizer"), "empty", "name a folder, file or hub id, or remove it for text mode")
        elif model.revision is not None and (source == EMBEDDED_TOKENIZER or is_local_path(source)):
            add((*at, "revision"), "has no meaning for a local tokenizer", "remove it; it is for hub ids")


def _tls(settings: Settings, add: Add) -> None:
    cert, key = settings.server.tls_cert, settings.server.tls_key
    if (cert is None) != (key is None):
        given, missing = ("tls_cert", "tls_key") if key is None else ("tls_key", "tls_cert")
        add(("server", given), f"given without {missing}", f"add {missing}, or remove both for plain HTTP")
        return
    if cert is None or key is None:
        return
    if _readable(cert, ("server", "tls_cert"), add) and _readable(key, ("server", "tls_key"), add):
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(cert, key, password=_no_password)
        except (ssl.SSLError, ValueError):
            add(
                ("server", "tls_cert"),
                "certificate and key cannot be loaded together",
                "give unencrypted PEM files of one pair",
            )


def _no_password() -> str:
    # Without this, OpenSSL would ask on the terminal and a service would hang.
    raise ValueError("encrypted key")


def _readable(path: Path, place: Place, add: Add) -> bool:
    try:
        with path.open("rb"):
            return True
    except OSError as error:
        add(place, f"{path}: {(error.strerror or 'cannot be read').lower()}", "correct the path or its permissions")
        return False


def _secrets(settings: Settings, add: Add) -> None:
    auth = settings.auth
    if auth.mode == "keys":
        if auth.key_file is None:
            add(("auth", "mode"), "keys needs auth.key_file", "name the file, or choose another mode")
        elif _readable(auth.key_file, ("auth", "key_file"), add):
            try:
                parse_key_file(auth.key_file)
            except KeyFileError as error:
                add(("auth", "key_file"), str(error), "correct that line")
    elif auth.key_file is not None:
        add(("auth", "key_file"), f"has no meaning with mode {auth.mode}", 'set mode = "keys", or remove it')
    if auth.hmac_key is not None and auth.hmac_key_file is not None:
        add(("auth", "hmac_key"), "given beside hmac_key_file", "keep one of them")
    for name, upstream in settings.upstreams.items():
        at = ("upstreams", name)
        if upstream.api_key is not None and upstream.api_key_file is not None:
            add((*at, "api_key"), "given beside api_key_file", "keep one of them")
        else:
            _upstream_key(upstream, at, add)


def _upstream_key(upstream: Upstream, at: Place, add: Add) -> None:
    key = "api_key" if upstream.api_key_file is None else "api_key_file"
    if upstream.api_key_file is not None and not _readable(upstream.api_key_file, (*at, key), add):
        return
    try:
        secret = upstream.secret()
    except UnicodeDecodeError:
        secret = ""
    if secret is not None and not (secret.isascii() and secret.isprintable() and secret and " " not in secret):
        add((*at, key), "not one word of printable ASCII, as an HTTP header needs it", "give the key alone")


def _log(settings: Settings, add: Add) -> None:
    path = settings.log.path
    if path is not None and not os.access(path if path.exists() else path.parent, os.W_OK):
        add(("log", "path"), f"{path} cannot be written", "choose a file in a folder that exists and is writable")
    if path is None and settings.log.max_bytes:
        add(("log", "max_bytes"), "has no meaning without log.path", "name a file, or remove it")


def _limits(settings: Settings, add: Add) -> None:
    if settings.limits.body_bytes < settings.server.max_body_bytes:
        add(
            ("limits", "body_bytes"),
            "below server.max_body_bytes, so that no body of that size could ever be taken",
            "raise it, or lower server.max_body_bytes",
        )


def _gpu(settings: Settings, add: Add) -> None:
    gpu = settings.gpu
    if len(set(gpu.devices)) < len(gpu.devices):
        add(("gpu", "devices"), "a device is named twice", "name each once")
    if gpu.queue_bytes < gpu.max_bytes:
        add(
            ("gpu", "queue_bytes"),
            "below gpu.max_bytes, so that a text of that size could only go alone",
            "raise it, or lower gpu.max_bytes",
        )


def _state(settings: Settings, add: Add) -> None:
    auth = settings.auth
    if auth.hmac_key is not None:
        if len(auth.hmac_key.get_secret_value().encode()) < MIN_KEY_BYTES:
            add(("auth", "hmac_key"), f"shorter than {MIN_KEY_BYTES} bytes", "use a longer random key")
        return
    if auth.hmac_key_file is not None:
        place = ("auth", "hmac_key_file")
        if _readable(auth.hmac_key_file, place, add) and len(auth.hmac_key_file.read_bytes().strip()) < MIN_KEY_BYTES:
            add(place, f"holds fewer than {MIN_KEY_BYTES} bytes", "write a longer random key to it")
        return
    if not _writable(auth.state_dir):
        add(
            ("auth", "state_dir"),
            f"{auth.state_dir} cannot be written",
            "choose a writable folder, or set auth.hmac_key_file",
        )
