"""Every setting, in one tree. TOML file < ``TOKTIER_*`` environment < command line.

Invariants
1. This is the only module that reads the environment.
2. An unknown key, a wrong value or a contradiction is refused before anything starts, with the setting's place, what is
   wrong and what to do (`ConfigError`); no value of a secret is ever part of that text.
3. A `Settings` object is immutable. A reload makes a new one (`proxy.reload` compares the two).
4. What the world decides (an upstream that is down, a tokenizer file that is not there yet) is no configuration error:
   TokTier starts and serves as text until it is. `toktier check` reports it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator

from proxy import config_sources as sources
from proxy.config_sources import ConfigError, Problem

__all__ = [
    "Auth",
    "ConfigError",
    "Gpu",
    "Limits",
    "Log",
    "Model",
    "Problem",
    "Server",
    "Sessions",
    "Settings",
    "Shadow",
    "Upstream",
    "config_file",
    "load",
]

EMBEDDED_TOKENIZER = "embedded"
"""As `Model.tokenizer`: the Qwen3 tokenizer and chat template that TokTier ships. A folder of that name is
"./embedded"."""


def _url(value: str) -> str:
    try:
        parts = urlsplit(value)
    except ValueError:  # brackets that do not hold an IPv6 address
        raise ValueError("not a URL|write it as http://HOST:PORT") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError("not an http:// or https:// URL|write it as http://HOST:PORT")
    if any(character <= " " or not character.isprintable() for character in value):
        raise ValueError("the URL holds white space or a control character|write it as http://HOST:PORT")
    if parts.username is not None or parts.password is not None:
        raise ValueError("the URL holds credentials|use api_key_file or api_key instead")
    if not parts.hostname:
        raise ValueError("the URL names no host|write it as http://HOST:PORT")
    if parts.query or parts.fragment:
        raise ValueError("the URL has a query or fragment|leave it out; each request brings its own path and query")
    try:
        _ = parts.port
    except ValueError:
        raise ValueError("the URL's port is not a number from 0 to 65535|write it as http://HOST:PORT") from None
    # Clients are told ".../v1"; operators copy it. The request's own path already starts with /v1.
    return value.rstrip("/").removesuffix("/v1").rstrip("/")


def _file(value: Path) -> Path:
    if "\0" in str(value):
        raise ValueError("holds a NUL character|write a path")
    try:
        return value.expanduser()
    except RuntimeError:
        raise ValueError("names a home directory that does not exist|write the whole path") from None


def _rotation(value: int) -> int:
    if 0 < value < 1 << 16:
        raise ValueError("below 65536 bytes, which a few requests fill|give a larger size, or 0 for no rotation")
    return value


Url = Annotated[str, AfterValidator(_url)]
File = Annotated[Path, AfterValidator(_file)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]


class Section(BaseModel):
    """Base of every table: unknown keys refused, values immutable, inputs never repeated in errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True)


class Server(Section):
    """Where TokTier listens and what it accepts."""

    host: str = Field("127.0.0.1", min_length=1, description="address to listen on; 0.0.0.0 or :: for all")
    port: int = Field(8080, ge=0, le=65535, description="port to listen on; 0 takes a free one (it is logged)")
    tls_cert: File | None = Field(None, description="PEM file with the certificate chain; with tls_key: serve HTTPS")
    tls_key: File | None = Field(None, description="PEM file with the private key of tls_cert")
    max_body_bytes: int = Field(
        64 << 20, ge=1024, description="largest request body, after decompression; larger ones get 413"
    )
    read_timeout_s: Seconds = Field(60.0, description="longest silence while a client sends its body")
    write_timeout_s: Seconds = Field(60.0, description="longest stall of a client that reads its reply; then it is cut")
    keepalive_s: Seconds = Field(75.0, description="how long an idle client connection is kept")
    shutdown_grace_s: float = Field(
        30.0, ge=0, le=86_400, description="after SIGTERM: how long running replies may take to finish"
    )
    worker_threads: int = Field(
        0,
        ge=0,
        le=256,
        description="threads that parse, render and encode, for bodies below 128 KiB; longer ones have half as many, "
        "at least two, of their own. 0: one a core, at most 16",
    )
    prepare_timeout_s: Seconds = Field(
        30.0,
        description="how long rendering and encoding a request may take; then it goes on as text. Also how long a "
        "compressed body may take to be decoded; then 408",
    )
    stall_exit_s: float = Field(
        120.0,
        ge=0,
        le=86_400,
        description="the process ends, for its supervisor to start it again, when its event loop stands still for so "
        "long; 0: never",
    )
    inline_below_bytes: int = Field(
        16_384,
        ge=0,
        description="bodies with fewer bytes that are new are prepared on the event loop itself, without a thread",
    )
    cache_dir: File = Field(
        Path("~/.cache/toktier"), description="folder for derived certificates and verdicts; safe to delete"
    )

    @property
    def threads(self) -> int:
        """`worker_threads` with 0 resolved."""
        return self.worker_threads or max(2, min(16, os.cpu_count() or 2))


class Auth(Section):
    """Who may use TokTier, and what separates one tenant from another."""

    mode: Literal["none", "passthrough", "keys"] = Field(
        "none",
        description="none: everyone, one tenant; passthrough: each client credential is a tenant and goes upstream; "
        "keys: only the keys in key_file",
    )
    key_file: File | None = Field(
        None, description='file with one "name:key" or "name:sha256:hex" a line, for mode keys'
    )
    state_dir: File = Field(
        Path("~/.local/state/toktier"),
        description="folder for the generated HMAC key, the quarantine and reproductions (mode 0600); must be writable",
    )
    hmac_key: SecretStr | None = Field(
        None, description="key for tenant ids and cache salts, instead of a generated one; same on every replica"
    )
    hmac_key_file: File | None = Field(None, description="file that holds hmac_key")
    salt: Literal["tenant", "off"] = Field(
        "tenant", description="tenant: cache_salt is set per tenant, so no tenant can time another's prefix cache"
    )


class Sessions(Section):
    """What is kept of conversations, in memory."""

    budget_bytes: int = Field(1 << 30, ge=1 << 20, description="memory for all sessions; least recently used go first")
    tenant_share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="largest part of the budget that one tenant may hold (not used with auth.mode none)",
    )
    ttl_s: float = Field(3600.0, gt=0, description="a session that is not used for this long is dropped")


class Limits(Section):
    """What all clients together, or one of them, may ask for. Sizes of one body and time-outs stand in `Server` too."""

    connections: int = Field(4096, ge=1, description="client connections at most; further ones get 503 and are closed")
    requests: int = Field(2048, ge=1, description="requests being served at most; further ones get 429")
    waiting: int = Field(
        256,
        ge=0,
        description="requests that may wait for a worker thread, short ones and long ones each; further ones get 429",
    )
    body_bytes: int = Field(
        256 << 20,
        ge=1024,
        description="bytes of request bodies held at one time, until their replies begin; further ones get 429. "
        "With what is made of them the process needs up to ten times as much memory",
    )
    messages: int = Field(50_000, ge=1, description="messages of one request at most; more get 400")
    json_depth: int = Field(128, ge=16, le=200, description="how deep a body's JSON may nest; deeper ones get 400")
    json_values: int = Field(
        1_000_000,
        ge=1000,
        description="values in one body at most, an array or object counting as four; more get 400",
    )
    header_timeout_s: Seconds = Field(
        10.0, description="longest time for a request line and its headers to arrive; then 408, and the connection ends"
    )
    body_bytes_per_s: float = Field(
        8192.0,
        ge=0,
        description="slowest a body may arrive on the whole, beyond its first server.read_timeout_s; slower ones get "
        "408. 0: no limit",
    )


class Shadow(Section):
    """Checks of requests that were served: a process beside renders and encodes them in full with the reference."""

    rate: float = Field(0.01, ge=0, le=1, description="share of the requests with IDs that are checked")
    first: int = Field(2, ge=0, le=1000, description="so many requests of each new kind of session are always checked")
    after_change: bool = Field(False, description="always check a request after an edit or a compaction")
    workers: int = Field(1, ge=1, le=64, description="processes that check; they run at the lowest priority")
    queue_jobs: int = Field(
        256, ge=1, le=100_000, description="requests that may wait for a check; further ones are dropped and counted"
    )
    queue_bytes: int = Field(
        256 << 20, ge=1 << 20, description="memory that waiting requests may hold; further ones are dropped and counted"
    )
    timeout_s: Seconds = Field(60.0, description="longest time of one check; then its process is replaced")
    parity_rate: float = Field(
        0.001, ge=0, le=1, description="share of the requests with IDs that are compared with the upstream's /tokenize"
    )
    on_mismatch: Literal["quarantine", "report"] = Field(
        "quarantine",
        description="quarantine: full reference encodes, then text, until an operator lifts it; report: only log and "
        "count",
    )
    capture: Literal["off", "digests", "full"] = Field(
        "off",
        description="what a mismatch leaves in state_dir; full holds the prompt, which is what a reproduction needs",
    )


class Gpu(Section):
    """Long texts encoded on NVIDIA GPUs, with the reference's IDs (docs/gpu.md). Needs the extra ``gpu``."""

    mode: Literal["off", "auto", "required"] = Field(
        "auto",
        description="auto: where there is a driver; required: TokTier is degraded where no device works; off: never",
    )
    devices: tuple[Annotated[int, Field(ge=0, le=255)], ...] = Field(
        (0,), min_length=1, max_length=64, description="numbers of the devices, as the driver counts them"
    )
    from_chars: int = Field(
        0, ge=0, description="shortest text that goes to a GPU, in characters; 0: measured against the CPU at the start"
    )
    window_us: float = Field(
        50.0, ge=0, le=10_000, description="how long a text waits for others that are on their way, to share a launch"
    )
    max_bytes: int = Field(
        16 << 20,
        ge=64 << 10,
        le=256 << 20,
        description="text of one launch; longer ones take several. It takes 28 times as much of a device's memory at "
        "the start, and of the machine's, page-locked, 5 times",
    )
    queue_bytes: int = Field(
        64 << 20, ge=64 << 10, description="text that may wait for a device; more is encoded by the CPU"
    )
    timeout_s: Seconds = Field(
        2.0,
        description="how long a text may wait for its turn, and for the device's answer; then the CPU encodes it. A "
        "device that does not answer is not asked again until it does",
    )


class Log(Section):
    """The structured log: one JSON line per request and event."""

    path: File | None = Field(None, description="file to append to; without it, standard output")
    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least severe level that is written"
    )
    queue_lines: int = Field(
        10_000,
        ge=100,
        le=1_000_000,
        description="lines that may wait for a slow disk; further ones are dropped and counted",
    )
    max_bytes: Annotated[int, AfterValidator(_rotation)] = Field(
        0,
        ge=0,
        description="size at which the file becomes FILE.1, the old FILE.1 becomes FILE.2 and so on, and a new file is "
        "begun; 0: the operator rotates",
    )
    keep_files: int = Field(
        5, ge=1, le=10_000, description="with max_bytes: numbered files that are kept; the oldest one is removed"
    )


class Upstream(Section):
    """One inference engine (or a balancer before several equal ones)."""

    url: Url = Field(description="base URL, without /v1")
    token_field: Literal["vllm", "sglang", "trtllm", "dynamo"] = Field(
        "vllm",
        description="where the IDs go: vllm kv_transfer_params.prompt_token_ids, sglang input_ids, "
        "trtllm prompt_token_ids, dynamo nvext.token_data",
    )
    api_key: SecretStr | None = Field(
        None,
        description="sent upstream as a Bearer token; better from the environment. With auth.mode passthrough: only "
        "with TokTier's own questions (probes, parity), never with a client's request",
    )
    api_key_file: File | None = Field(None, description="file that holds api_key")
    connect_timeout_s: Seconds = Field(
        5.0,
        description="longest wait for a new connection, its name look-up and TLS included; and before that for one of "
        "max_connections to become free",
    )
    read_timeout_s: Seconds = Field(600.0, description="longest silence of the engine (a long prefill is silent)")
    keepalive_s: Seconds = Field(
        4.0, description="how long an idle connection is kept; stay below the engine's own (vLLM: 5 s)"
    )
    max_connections: int = Field(1024, ge=1, description="connections to this upstream at most")
    verify_tls: bool = Field(True, description="check the certificate of an https upstream")

    def secret(self) -> str | None:
        """The credential for this upstream. Never log it. Raises OSError when `api_key_file` cannot be read."""
        if self.api_key is not None:
            return self.api_key.get_secret_value()
        return None if self.api_key_file is None else self.api_key_file.read_text("utf-8").strip()


class Model(Section):
    """One model that clients may name. Its name is the table's key, exactly as clients send it."""

    upstream: str = Field(description="name of the upstream that serves it")
    aliases: tuple[str, ...] = Field((), description="further names of the same model (LoRA adapters, second names)")
    served_name: str | None = Field(
        None, description="the one of these names that probes use; without it, the model's name (no name is rewritten)"
    )
    tokenizer: str | None = Field(
        None,
        description="folder, tokenizer.json or rank file (also .xz), hub id, "
        f'or "{EMBEDDED_TOKENIZER}"; without it, text mode',
    )
    revision: str | None = Field(None, description="commit of the hub id; needed with one")
    chat_template: File | None = Field(None, description="Jinja file the engine was started with (--chat-template)")
    profile: Literal["vllm", "sglang"] = Field("vllm", description="whose message normalisation is followed")
    mode: Literal["auto", "text"] = Field("auto", description="text: always forward untouched, without IDs")
    window: Literal["auto", "off"] = Field(
        "auto",
        description="off: only the reference encodes, some 50 times as slowly; then not even the time of a request "
        "tells what words another tenant has sent (SECURITY.md)",
    )
    control_tokens: Literal["allow", "reject"] = Field(
        "allow",
        description="reject: 400 for a chat request whose own text holds the literal of a special token; 503 until the "
        "tokenizer is loaded",
    )
    default_chat_template_kwargs: dict[str, Any] = Field(
        {}, description="what the engine was started with as --default-chat-template-kwargs"
    )
    content_format: Literal["auto", "string", "openai"] = Field(
        "auto", description="what the engine was started with as --chat-template-content-format"
    )
    exclude_tools_when_tool_choice_none: bool = Field(
        False, description="whether the engine was started with --exclude-tools-when-tool-choice-none"
    )
    vocab_size: int | None = Field(None, ge=1, description="the engine's vocabulary, where it is not the tokenizer's")
    template_time_s: Seconds = Field(
        5.0, description="longest time for the chat template to render a request; longer ones go as text"
    )
    template_chars: int = Field(
        64 << 20, ge=1024, description="longest text that the chat template may make; longer ones go as text"
    )
    shadow_rate: float | None = Field(None, ge=0, le=1, description="shadow.rate of this model, where it is another")

    def loads_as(self, other: Model) -> bool:
        """Whether both are served by the same tokenizer, template and rules, so that what is loaded can be kept."""
        beside = {"upstream", "aliases", "served_name", "control_tokens", "shadow_rate"}
        return self.model_dump(exclude=beside) == other.model_dump(exclude=beside)


class Settings(Section):
    """The whole configuration. Made by `load`; tests may call it directly with dictionaries."""

    server: Server = Server()
    auth: Auth = Auth()
    sessions: Sessions = Sessions()
    limits: Limits = Limits()
    shadow: Shadow = Shadow()
    gpu: Gpu = Gpu()
    log: Log = Log()
    upstreams: dict[str, Upstream] = Field({}, description="the engines, by name")
    models: dict[str, Model] = Field({}, description="the models, by the name that clients send")
    default_upstream: str | None = Field(
        None, description="where requests that name no model go; with one upstream, that one"
    )

    @model_validator(mode="before")
    @classmethod
    def _only_upstream_is_default(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("default_upstream") is None:
            upstreams = data.get("upstreams")
            if isinstance(upstreams, Mapping) and len(upstreams) == 1:
                return {**data, "default_upstream": next(iter(upstreams))}
        return data

    @property
    def tenant_share(self) -> float:
        """The share of the session budget that one tenant may hold: all of it where there is only one tenant."""
        return 1.0 if self.auth.mode == "none" else self.sessions.tenant_share


def config_file(option: Path | None) -> Path | None:
    """The configuration file: the option's, else the one that ``TOKTIER_CONFIG`` names, else none."""
    named = os.environ.get("TOKTIER_CONFIG")
    return option if option is not None or not named else Path(named)


def load(path: Path | None, cli: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings from all three sources. ``cli`` is a nested mapping of the options that were given.

    ``environ`` is the process's environment unless given. Raises `ConfigError` with every problem found.
    """
    from proxy.config_checks import cross_checks  # it needs the classes above

    tree, origins = sources.merge(Settings, path, os.environ if environ is None else environ, cli or {})
    try:
        settings = Settings.model_validate(tree)
    except ValidationError as error:
        raise ConfigError([sources.explain(Settings, e, origins) for e in error.errors(include_input=False)]) from None
    problems = cross_checks(settings, origins)
    if problems:
        raise ConfigError(problems)
    return settings
