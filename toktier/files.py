"""Reading a tokenizer's files: from a folder, from one ``tokenizer.json`` or rank file, or from the hub at a pinned
revision.

Invariants:

- Nothing outside the named source is read, nothing is executed, and every file has a size limit (also after ``.xz``).
- The digest is over decompressed bytes: ``tokenizer.json`` and ``tokenizer.json.xz`` of the same content are the same
  tokenizer. It names every file that was read, so a change of any of them is a change of the tokenizer.
- A hub source is pinned by a commit hash. Whatever name was asked for, `TokenizerFiles.revision` is the commit.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
import tiktoken

from toktier.errors import UnusableFile
from toktier.rank_files import FOLDER_SIDECAR, is_rank_file, missing_sidecar, sidecar_names

MODEL_FILE = "tokenizer.json"
RANKS_FILE = "ranks.tiktoken"
"""How a digest names a rank file, whatever its name is."""
SMALL_FILES = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
)
NAMED_TEMPLATES = "additional_chat_templates"

MODEL_LIMIT = 512 << 20
"""Bytes of ``tokenizer.json``, decompressed. The largest published one has 34 MB."""
SMALL_LIMIT = 32 << 20
"""Bytes of any other file."""
XZ_MEMORY = 256 << 20
"""Bytes that the xz decoder may use; ``xz -9`` needs 65 MiB."""

_COMMIT = re.compile(r"[0-9a-f]{40}")
_HUB_ID = re.compile(r"[A-Za-z0-9](?:[\w.-]{0,94}\w)?(?:/[A-Za-z0-9](?:[\w.-]{0,94}\w)?)?", re.ASCII)

_log = structlog.get_logger("toktier.files")


@dataclass(frozen=True)
class TokenizerFiles:
    """The bytes of one tokenizer. ``small`` maps names relative to the folder, ``/``-separated, to contents."""

    source: str
    revision: str | None
    tokenizer: bytes = field(repr=False)
    small: Mapping[str, bytes] = field(repr=False)
    folder: Path
    """Where the files lie."""
    compressed: bool
    """Whether the model file lies there as ``.xz`` (or under another name), so that other loaders cannot read it."""
    sidecar: bytes | None = field(default=None, repr=False)
    """What stands beside a rank file (`toktier.rank_files`); then ``tokenizer`` holds the ranks."""

    @property
    def model_name(self) -> str:
        """What messages call the model file: ``source`` where that is the file itself."""
        given = Path(self.source).expanduser()
        is_file = given != self.folder and given.parent == self.folder
        return self.source if is_file else f"{MODEL_FILE} of {self.source}"

    @property
    def names(self) -> list[str]:
        """What was read, as the digest names it, sorted."""
        return sorted(self._contents())

    def digest(self, versions: Iterable[str]) -> str:
        """Hex BLAKE2b over engine versions, file names and contents, every part prefixed by its length.

        ``versions``: those that every tokenizer depends on; that of tiktoken is added for a rank file.
        """
        own = () if self.sidecar is None else (f"tiktoken {tiktoken.__version__}",)
        return self._digest([*versions, *own])

    @property
    def digest_of_files(self) -> str:
        """As `digest`, over names and contents alone: an upgrade of an engine leaves it as it is."""
        return self._digest(())

    def _digest(self, versions: Iterable[str]) -> str:
        state = hashlib.blake2b(digest_size=20)
        parts = [version.encode() for version in versions]
        parts.append(b"")
        for name, content in sorted(self._contents().items()):
            parts += [name.encode(), content]
        for part in parts:
            state.update(len(part).to_bytes(8, "little"))
            state.update(part)
        return state.hexdigest()

    def _contents(self) -> dict[str, bytes]:
        if self.sidecar is None:
            return {**self.small, MODEL_FILE: self.tokenizer}
        return {**self.small, RANKS_FILE: self.tokenizer, FOLDER_SIDECAR: self.sidecar}

    def json(self, name: str) -> dict[str, Any]:
        """The object in the small file ``name``; empty if there is no such file. Raises `UnusableFile`."""
        return parse_object(self.small[name], f"{name} of {self.source}") if name in self.small else {}


def read(source: str | Path, *, revision: str | None = None, sidecar: Path | None = None) -> TokenizerFiles:
    """The files of ``source``: a folder, a ``tokenizer.json`` or rank file (also ``.xz``), or a hub id.

    A folder with a ``tokenizer.json`` is read by that; one without it may hold one rank file and its sidecar, which
    ``sidecar`` names if it does not lie beside the ranks. Raises `UnusableFile`.
    """
    if isinstance(source, str) and "://" in source:
        raise UnusableFile(
            "a tokenizer source is a folder, a tokenizer.json, a rank file or a hub id such as org/name, not a URL"
        )
    path = Path(source).expanduser()
    try:
        exists = path.exists()
    except OSError as error:
        raise UnusableFile(f"tokenizer source {source} cannot be read: {error.strerror}") from error
    if exists:
        if revision is not None:
            raise UnusableFile(f"tokenizer source {source} is a local path; remove the revision, which is for hub ids")
        return _read_local(path, str(source), None, sidecar)
    if isinstance(source, str) and _is_hub_id(source):
        folder, commit = _fetch(source, revision)
        return _read_local(folder, source, commit, sidecar)
    raise UnusableFile(
        f"tokenizer source {source} does not exist; give a folder with tokenizer.json, the file itself or a hub id"
    )


def parse_object(content: bytes, what: str) -> dict[str, Any]:
    """The JSON object in ``content``. ``what`` names it in the `UnusableFile` that anything else raises."""
    try:
        value = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        place = f" at line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise UnusableFile(f"{what} is not valid JSON{place}; fetch it again") from error
    if not isinstance(value, dict):
        raise UnusableFile(f"{what} is not a JSON object; fetch it again")
    return value


def _read_local(path: Path, source: str, revision: str | None, sidecar: Path | None) -> TokenizerFiles:
    if path.is_dir():
        folder, model = path, _model_in(path, source)
    else:
        folder, model = path.parent, path
    small: dict[str, bytes] = {}
    for name in SMALL_FILES:
        if (folder / name).is_file() and folder / name != model:
            small[name] = _read_limited(folder / name, SMALL_LIMIT)
    if (folder / NAMED_TEMPLATES).is_dir():
        for template in sorted((folder / NAMED_TEMPLATES).glob("*.jinja")):
            small[f"{NAMED_TEMPLATES}/{template.name}"] = _read_limited(template, SMALL_LIMIT)
    content = _read_limited(model, MODEL_LIMIT)
    if model.suffix == ".xz":
        content = _decompress(content, model, MODEL_LIMIT)
    if is_rank_file(model.name):
        beside = _sidecar(model, source) if sidecar is None else _read_limited(sidecar, SMALL_LIMIT)
    elif sidecar is None:
        beside = None
    else:
        raise UnusableFile(f"{source} is no rank file, so it needs no sidecar; leave {sidecar} out")
    return TokenizerFiles(source, revision, content, small, folder, model.name != MODEL_FILE, beside)


def _model_in(folder: Path, source: str) -> Path:
    for name in (MODEL_FILE, f"{MODEL_FILE}.xz"):
        if (folder / name).is_file():
            return folder / name
    try:
        ranks = sorted(path for path in folder.iterdir() if is_rank_file(path.name) and path.is_file())
    except OSError as error:
        raise UnusableFile(f"{source} cannot be read: {error.strerror}") from error
    if len(ranks) > 1:
        raise UnusableFile(f"{source} holds {len(ranks)} rank files; give one of them: {ranks[0]}, say")
    if not ranks:
        raise UnusableFile(
            f"{source} holds no {MODEL_FILE} (nor {MODEL_FILE}.xz, nor one *.tiktoken); a tokenizer in another format "
            f"(tokenizer.model, tekken.json) must first be converted with transformers' save_pretrained"
        )
    return ranks[0]


def _sidecar(ranks: Path, source: str) -> bytes:
    for name in sidecar_names(ranks.name):
        if (ranks.parent / name).is_file():
            return _read_limited(ranks.parent / name, SMALL_LIMIT)
    raise missing_sidecar(source, ranks.name)


def _read_limited(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise UnusableFile(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > limit:
        raise UnusableFile(f"{path} is larger than {limit >> 20} MiB; it is no tokenizer file")
    return content


def _decompress(content: bytes, path: Path, limit: int) -> bytes:
    decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY)
    try:
        plain = decoder.decompress(content, max_length=limit + 1)
    except lzma.LZMAError as error:
        raise UnusableFile(f"{path} is not a valid xz file; fetch it again") from error
    if len(plain) > limit:
        raise UnusableFile(f"{path} holds more than {limit >> 20} MiB; it is no tokenizer file")
    if not decoder.eof or decoder.unused_data:
        raise UnusableFile(f"{path} is cut short or has trailing data; fetch it again")
    return plain


def _is_hub_id(source: str) -> bool:
    return (
        _HUB_ID.fullmatch(source) is not None
        and "--" not in source
        and ".." not in source
        and not source.endswith((".json", ".xz", ".tiktoken"))
    )


def _fetch(source: str, revision: str | None) -> tuple[Path, str]:
    """The snapshot folder of a hub id and its commit: from the local cache if it is whole, else from the hub.

    Without a revision only the cache is asked: what a moving branch holds today is not fetched unasked.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    patterns = [MODEL_FILE, *SMALL_FILES, f"{NAMED_TEMPLATES}/*.jinja"]
    try:
        folder = Path(snapshot_download(source, revision=revision, allow_patterns=patterns, local_files_only=True))
        cached = (folder / MODEL_FILE).is_file()
    except LocalEntryNotFoundError:
        cached = False
    if not cached:
        if revision is None:
            raise UnusableFile(
                f"tokenizer source {source} is neither a local path nor in the hub cache; "
                f"to fetch it, set its revision to a commit hash"
            )
        try:
            folder = Path(snapshot_download(source, revision=revision, allow_patterns=patterns))
        except Exception as error:  # the client's errors have no common base below Exception
            raise UnusableFile(
                f"tokenizer {source} at {revision} could not be fetched ({type(error).__name__}); check the id, "
                "the revision and the access to the hub (HF_TOKEN), or give a local folder"
            ) from error
    commit = folder.name
    if revision is None or not _COMMIT.fullmatch(revision):
        _log.warning("tokenizer.revision_not_pinned", source=source, revision=revision, commit=commit)
    return folder, commit
