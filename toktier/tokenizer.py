"""A frozen tokenizer: its files, digest, reference engine, window engine and certificate.

Invariants:

- Nothing in it changes after `load`; it may be shared by all threads. There is no global state.
- ``reference`` is T (see `toktier.engines.base`); ``window`` is T too, or is the reference itself.
- Truncation and padding blocks of the file are switched off in ``spec`` and in every engine instance.
- A missing window engine or certificate costs speed, never the load: ``window_refusal`` and ``refusal`` say why. Nor
  does a post-processor that is no constant (``special_refusal``): requests for special tokens then go without IDs.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from toktier import files as sources
from toktier.certificate import Certificate, certify, certify_ranks
from toktier.certificate.model import model_kind
from toktier.certificate.selfcheck import self_check
from toktier.chunks import ChunkEncoder, marker_of
from toktier.engines import admission, fastokens
from toktier.engines.base import Engine, Reference
from toktier.engines.reference import ReferenceEngine
from toktier.engines.tiktoken_engine import TiktokenEngine
from toktier.errors import CannotEncode, Refusal, is_failure
from toktier.ids import EMPTY, Ids
from toktier.measured import measure
from toktier.postprocessor import SpecialTokens
from toktier.reference_of import engine_of, engine_versions, ranks_in, spec_of, special_of, text_of, without_tables
from toktier.shortcuts import DEFAULTS, Shortcuts

EMBEDDED = Path(__file__).parent / "data" / "qwen3"
"""The tokenizer that comes with the package: Qwen3 with its chat template (licence and origin beside it)."""

_RARE = "\U0010fffd"
"""A character for private use: hardly any vocabulary has a token for it."""

_log = structlog.get_logger("toktier.tokenizer")


@dataclass(frozen=True)
class FrozenTokenizer:
    """Made by `load` only. ``spec`` and ``config`` are read, never written."""

    source: str
    """As it was given: a path or a hub id."""
    revision: str | None
    """The commit of a hub id; None for local files."""
    folder: Path
    """Where the files lie."""
    digest: str
    """Hex; over the decompressed bytes of all files read and the versions of the engines."""
    digest_of_files: str
    """The same without the versions: what a quarantine is looked up by."""
    spec: Mapping[str, Any] = field(repr=False)
    """The parsed ``tokenizer.json`` with ``truncation`` and ``padding`` set to None and the model's tables emptied.

    For a rank file: one made up in that form, of which only ``added_tokens`` says anything.
    """
    config: Mapping[str, Any] = field(repr=False)
    """The parsed ``tokenizer_config.json``; empty where there is none."""
    files: Mapping[str, bytes] = field(repr=False)
    """The other files by name: chat templates, ``config.json``, ``generation_config.json`` and so on, if there."""
    reference: Reference = field(repr=False)
    window: Engine = field(repr=False)
    window_refusal: str | None
    certificate: Certificate | None = field(repr=False)
    refusal: Refusal | None
    special: SpecialTokens | None = field(repr=False)
    """What ``add_special_tokens=True`` puts around T, as the engine on the file does it."""
    special_refusal: Refusal | None
    vocab_size: int
    """The largest ID of vocabulary and added tokens, plus 1. A model's embedding may have more rows."""
    shortcuts: Shortcuts = DEFAULTS
    """Which way texts are encoded."""

    @classmethod
    def load(
        cls,
        source: str | Path,
        *,
        revision: str | None = None,
        sidecar: Path | None = None,
        cache_dir: Path | None = None,
        window: bool = True,
        certified_only: bool = False,
    ) -> FrozenTokenizer:
        """Reads and checks a tokenizer: seconds of work, some of it under the GIL.

        ``source`` is a folder, a ``tokenizer.json`` or a rank file (also ``.xz``), or a hub id, ``revision`` a commit
        hash for the latter, ``sidecar`` that of a rank file where it does not lie beside it. ``cache_dir`` keeps
        verdicts, probed sets and tables between loads; ``window=False`` leaves the window engine out. Raises
        `UnusableFile`; with ``certified_only`` also the `Refusal` of a tokenizer without a certificate, before anything
        is done about the window engine.
        """
        read = sources.read(source, revision=revision, sidecar=sidecar)
        return cls.from_files(read, cache_dir=cache_dir, window=window, certified_only=certified_only)

    @classmethod
    def from_files(
        cls,
        read: sources.TokenizerFiles,
        *,
        cache_dir: Path | None = None,
        window: bool = True,
        certified_only: bool = False,
        measured: bool = False,
    ) -> FrozenTokenizer:
        """As `load`, for files that are read already. ``measured``: find out which way of encoding is the quickest for
        which text, here and now; else defaults count.
        """
        started = time.perf_counter()
        digest = read.digest(engine_versions())
        config = read.json("tokenizer_config.json")
        make = _of_json if read.sidecar is None else _of_ranks
        made = make(read, digest, cache_dir, window, certified_only)
        refused = made.window if isinstance(made.window, str) else None
        tokenizer = cls(
            source=read.source,
            revision=read.revision,
            folder=read.folder,
            digest=digest,
            digest_of_files=read.digest_of_files,
            spec=made.spec,
            config=config,
            files={name: content for name, content in read.small.items() if name != "tokenizer_config.json"},
            reference=made.reference,
            window=made.reference if isinstance(made.window, str) else made.window,
            window_refusal=refused,
            certificate=made.certificate,
            refusal=made.refusal,
            special=made.special,
            special_refusal=made.special_refusal,
            vocab_size=made.vocab_size,
        )
        if measured:
            tokenizer = replace(tokenizer, shortcuts=measure(tokenizer.encoder))
        _log.info(
            "tokenizer.loaded",
            source=tokenizer.source,
            revision=tokenizer.revision,
            digest=digest,
            files=read.names,
            window=f"{tokenizer.window.name} {tokenizer.window.version}",
            window_refusal=refused,
            unsafe=sorted(f"U+{ord(c):04X}" for c in getattr(made.window, "unsafe", ())),
            certificate=made.certificate is not None,
            refusal=str(made.refusal) if made.refusal else None,
            special_refusal=str(made.special_refusal) if made.special_refusal else None,
            vocab_size=tokenizer.vocab_size,
            whole_below=tokenizer.shortcuts.whole_below,
            all_cores_from=tokenizer.shortcuts.all_cores_from,
            shortcuts_measured=tokenizer.shortcuts.measured,
            seconds=round(time.perf_counter() - started, 2),
        )
        return tokenizer

    def checked_again(self, seed: str | None = None) -> FrozenTokenizer:
        """Itself, once its certificate was compared with the reference on other texts than at load; without the
        certificate where a text contradicts it. ``seed`` draws the texts; a new one unless given.
        """
        if self.certificate is None:
            return self
        seed = secrets.token_hex(8) if seed is None else seed
        literals = [token["content"] for token in self.spec.get("added_tokens") or () if token.get("content")]
        try:
            self_check(self.certificate, self.reference, literals, seed=seed)
        except CannotEncode:
            return self  # the reference has no IDs for one of the texts: that says nothing of the cuts
        except Refusal as refusal:
            _log.error("tokenizer.certificate_contradicted", source=self.source, seed=seed, refusal=str(refusal))
            return replace(self, certificate=None, refusal=refusal)
        return self

    @property
    def versions(self) -> tuple[str, ...]:
        """Engine names and versions that the digest holds."""
        more = (f"{self.reference.name} {self.reference.version}",)
        return engine_versions() + (more if isinstance(self.reference, TiktokenEngine) else ())

    @property
    def encoder(self) -> ChunkEncoder:
        """What a rope needs of this tokenizer."""
        marker = marker_of(self.spec)
        return ChunkEncoder(self.certificate, self.window, self.reference, marker, shortcuts=self.shortcuts)

    def decode(self, ids: Ids) -> str:
        """The text of ``ids``, shape ``(n,)``, special tokens included. Unknown IDs are left out."""
        return self.reference.decode(ids)


def embedded(*, cache_dir: Path | None = None, window: bool = True) -> FrozenTokenizer:
    """The tokenizer that comes with the package, loaded anew (seconds of work: keep it)."""
    return FrozenTokenizer.load(EMBEDDED, cache_dir=cache_dir, window=window)


class _Made(NamedTuple):
    """What is made of the files; ``window`` is the engine or why there is none."""

    spec: Mapping[str, Any]
    reference: Reference
    window: Engine | str
    certificate: Certificate | None
    refusal: Refusal | None
    special: SpecialTokens | None
    special_refusal: Refusal | None
    vocab_size: int


def _of_json(
    read: sources.TokenizerFiles, digest: str, cache_dir: Path | None, window: bool, certified_only: bool
) -> _Made:
    text = text_of(read)
    verdict = admission.load_verdict(cache_dir, digest)
    wanted = window and (verdict is None or verdict.refusal is None) and fastokens.usable_version()
    with ThreadPoolExecutor(1, "toktier-load") as pool:
        # fastokens loads without the GIL, so it goes first and the rest runs beside it, unless that may be the end.
        raw = pool.submit(fastokens.RawFastokens, text) if wanted and not certified_only else None
        spec = spec_of(read)
        reference = engine_of(text, read.model_name)
        vocab_size = _vocab_size(spec, reference)
        certificate, refusal = _certified(
            lambda: certify(spec, reference.tokenizer, cache_dir=cache_dir, key=digest), read.source
        )
        if refusal is not None:
            refusal = _named(refusal, spec["model"], reference)
        if certified_only and refusal is not None:
            raise refusal
        if wanted and raw is None:
            raw = pool.submit(fastokens.RawFastokens, text)
        small = without_tables(spec)
        special, special_refusal = special_of(small, reference)
        engine = _window(raw, reference, small, digest, cache_dir, verdict) if window else "not asked for"
    return _Made(small, reference, engine, certificate, refusal, special, special_refusal, vocab_size)


def _of_ranks(
    read: sources.TokenizerFiles, digest: str, cache_dir: Path | None, window: bool, certified_only: bool
) -> _Made:
    """A rank file has no post-processor, and no window engine reads it."""
    ranks = ranks_in(read)
    reference = TiktokenEngine(ranks, read.source)
    certificate, refusal = _certified(
        lambda: certify_ranks(ranks.pattern, [*ranks.special_tokens], reference, cache_dir=cache_dir, key=digest),
        read.source,
    )
    if certified_only and refusal is not None:
        raise refusal
    refused = "no window engine reads rank files" if window else "not asked for"
    special = SpecialTokens(EMPTY, EMPTY)
    return _Made(ranks.spec, reference, refused, certificate, refusal, special, None, ranks.vocab_size)


def _vocab_size(spec: Mapping[str, Any], reference: ReferenceEngine) -> int:
    """The largest ID plus 1. Of the file, which ``reference`` has read: its own table is slow to copy out."""
    vocab = spec["model"].get("vocab") or ()
    largest = max(vocab.values(), default=-1) if isinstance(vocab, dict) else len(vocab) - 1
    return max([largest, *reference.tokenizer.get_added_tokens_decoder()]) + 1


def _certified(find: Callable[[], Certificate], source: str) -> tuple[Certificate | None, Refusal | None]:
    try:
        return find(), None
    except Refusal as refusal:
        return None, refusal
    except BaseException as error:
        if type(error).__name__ == "PanicException":  # of native code, and no Exception
            return None, Refusal(f"a part of the file on which the engine panics ({_first_line(error)})", "certificate")
        if not isinstance(error, Exception):
            raise
        # Without a certificate the tokenizer is served by full encodes: slower, and as exact.
        _log.exception("tokenizer.certificate_failed", source=source)
        return None, Refusal(f"internal error {type(error).__name__}", "certificate")


def _named(refusal: Refusal, model: Mapping[str, Any], reference: ReferenceEngine) -> Refusal:
    """``refusal``, or the construct behind it where the engine failed in the self-check: a Unigram without an unknown
    token has no IDs for a text with a character without a token, unless its bytes have some."""
    if refusal.construct != "self-check" or model_kind(model) != "Unigram" or model.get("unk_id") is not None:
        return refusal
    try:
        reference.encode(_RARE)
    except CannotEncode:
        return Refusal("no unknown token for characters without a token", "model.unk_id")
    return refusal


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:200]


def _window(
    raw: Future[fastokens.RawFastokens] | None,
    reference: ReferenceEngine,
    spec: Mapping[str, Any],
    digest: str,
    cache_dir: Path | None,
    verdict: admission.Verdict | None,
) -> fastokens.FastokensEngine | str:
    """The window engine, or why there is none."""
    if verdict is not None and verdict.refusal is not None:
        return verdict.refusal
    static = fastokens.static_refusal(spec)
    if static is not None or raw is None:
        return static or "not asked for"
    try:
        loaded = raw.result()
    except BaseException as error:
        if not is_failure(error):
            raise
        return f"fastokens cannot load it: {error}"
    return fastokens.window_engine(loaded, reference, spec, digest, cache_dir)
