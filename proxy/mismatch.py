"""What follows from a mismatch: the trust ends, then it is told.

Invariants
1. Order: quarantine, kept sessions forgotten, capture, log, metrics. Each step is taken whatever became of the one
   before; what fails in one is logged by its type. Whoever learns from the file that trust ended forgets them as well.
2. Every ``mismatch`` line has every field of `FIELDS`; what a source cannot know is null. None holds text or IDs.
3. With ``report`` nothing but the telling happens.

All of it blocks (files are written): never call it in the event loop's thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import structlog

from proxy import config
from proxy.captures import Captures
from proxy.metrics import Metrics
from proxy.sent import Sent
from toktier.ids import Ids, shared_prefix
from toktier.quarantine import Entry, Quarantine, Source
from toktier.reasons import FullEncode, Path
from toktier.sessions import SessionStore
from toktier.shadow.check import digest_of_ids, digest_of_text
from toktier.shadow.job import Kind, Verdict

_log = structlog.get_logger("toktier.shadow")

FIELDS = (
    "kind",
    "chars",
    "reference_chars",
    "tokens",
    "reference_tokens",
    "text_digest",
    "reference_text_digest",
    "ids_digest",
    "reference_ids_digest",
    "first_id",
    "first_char",
    "piece",
    "piece_start",
    "piece_chars",
)
"""What two sides of a comparison are, and where they part: the difference's part of a ``mismatch`` line."""


def of_verdict(verdict: Verdict) -> dict[str, Any]:
    """The difference that a shadow check found."""
    piece = verdict.piece
    return {
        "kind": verdict.kind.value if verdict.kind is not None else None,
        "chars": verdict.chars,
        "reference_chars": verdict.reference_chars,
        "tokens": verdict.tokens,
        "reference_tokens": verdict.reference_tokens,
        "text_digest": verdict.text_digest,
        "reference_text_digest": verdict.reference_text_digest,
        "ids_digest": verdict.ids_digest,
        "reference_ids_digest": verdict.reference_ids_digest,
        "first_id": verdict.first_id,
        "first_char": verdict.first_char,
        "piece": None if piece is None else piece.index,
        "piece_start": None if piece is None else piece.start,
        "piece_chars": None if piece is None else piece.chars,
    }


def of_count(sent: Sent, prompt_tokens: int) -> dict[str, Any]:
    """The engine counted ``prompt_tokens``."""
    return _of_sent(sent) | {"kind": "count", "reference_tokens": prompt_tokens}


def of_tokens(sent: Sent, ours: Ids, theirs: Ids) -> dict[str, Any]:
    """The engine's ``/tokenize`` gave ``theirs``."""
    return _of_sent(sent) | {
        "kind": "ids",
        "ids_digest": _digest(ours),
        "reference_tokens": len(theirs),
        "reference_ids_digest": _digest(theirs),
        "first_id": shared_prefix(ours, theirs),
    }


def _of_sent(sent: Sent) -> dict[str, Any]:
    known: dict[str, Any] = {"chars": sent.chars, "tokens": sent.tokens}
    if sent.content is not None:
        known |= {"text_digest": digest_of_text(sent.content.text), "ids_digest": _digest(sent.content.ids)}
    return known


def _digest(ids: Ids) -> str:
    return digest_of_ids(ids.astype("<u4", copy=False).tobytes())


class Mismatches:
    """Acts on mismatches. Thread-safe."""

    def __init__(
        self, shadow: config.Shadow, quarantine: Quarantine, store: SessionStore, captures: Captures, metrics: Metrics
    ) -> None:
        self.shadow = shadow
        """The settings in force."""
        self._quarantine, self._store, self._captures, self._metrics = quarantine, store, captures, metrics

    def found(self, source: Source, sent: Sent, difference: Mapping[str, Any], delay_us: int) -> None:
        """Act on one. ``difference`` is one of `of_verdict`, `of_count` and `of_tokens`. Never raises."""
        shadow, raised = self.shadow, list[Entry]()
        paths = suspects(source, sent, difference.get("kind"))
        if shadow.on_mismatch == "quarantine":
            with contained("quarantine", sent.request_id):
                for path in paths:
                    raised += self._distrust(source, sent, path)
            with contained("forget", sent.request_id):
                self._store.clear()
        event = {
            "source": source.value,
            "model": sent.model,
            "upstream": sent.upstream,
            "request_id": sent.request_id,
            "session": sent.session,
            "path": sent.path.value,
            "full": sent.full.value if sent.full is not None else None,
            "by_gpu": sent.by_gpu,
            "suspects": [path.value for path in paths],
            "tokenizer_digest": sent.trust_digest,
            "prepared_with": sent.tokenizer_digest,
            "template_digest": sent.template_digest,
            "versions": dict(sent.versions),
            "certificate": sent.certificate,
            **{name: difference.get(name) for name in FIELDS},
            "delay_us": delay_us,
        }
        capture = None
        if shadow.capture != "off" and sent.content is not None:
            capture = self._captures.keep(shadow.capture, event, sent.content)
        _log.error("mismatch", **event, capture=capture)
        for entry in raised:
            _log.error(
                "quarantined",
                tokenizer_digest=entry.tokenizer_digest,
                path=entry.path.value,
                quarantine_level=entry.level.value,
                source=source.value,
                model=sent.model,
                request_id=sent.request_id,
            )
        self._metrics.mismatch_found.labels(sent.model, source.value).inc()

    def _distrust(self, source: Source, sent: Sent, path: Path) -> list[Entry]:
        """The quarantine's entry where it is new or was raised."""
        before = {entry.key: entry.level for entry in self._quarantine.entries()}
        entry = self._quarantine.add(
            sent.trust_digest,
            path,
            source,
            model=sent.model,
            request_id=sent.request_id,
            at_reference=sent.full is FullEncode.QUARANTINED,
            versions=", ".join(f"{engine} {version}" for engine, version in sent.versions.items()),
        )
        return [entry] if entry.level is not before.get(entry.key) else []

    def refresh(self) -> None:
        """Look at the quarantine's file and tell what another process did to it. Never raises."""
        with contained("refresh", None):
            changes = self._quarantine.refresh()
            if changes.added or (changes.everything and self._quarantine.everything is not None):
                self._store.clear()  # as the process did that found the mismatch (invariant 1)
            for entry in changes.added:
                _log.warning("quarantine_read", **_named(entry))
            for entry in changes.lifted:
                _log.warning("quarantine_lifted", **_named(entry), by="another process")
            if changes.everything and self._quarantine.everything is None:
                _log.warning(
                    "quarantine_lifted", tokenizer_digest=None, path=None, quarantine_level=None, by="another process"
                )

    def tell_kept(self) -> None:
        """What an earlier process left in quarantine."""
        for entry in self._quarantine.entries():
            _log.warning("quarantine_read", **_named(entry))


def suspects(source: Source, sent: Sent, kind: str | None) -> list[Path]:
    """What a mismatch speaks against: the request's path, unless it is clear that only the GPU can be at fault.

    That is so where the reference found other IDs for the same text, some of which came from a GPU. The engine's word
    is about the text as well, so then it is both.
    """
    if not sent.by_gpu or (source is Source.SHADOW and kind != Kind.IDS):
        return [sent.path]
    return [Path.GPU] if source is Source.SHADOW else [Path.GPU, sent.path]


def _named(entry: Entry) -> dict[str, str]:
    return {"tokenizer_digest": entry.tokenizer_digest, "path": entry.path.value, "quarantine_level": entry.level.value}


@contextlib.contextmanager
def contained(step: str, request_id: str | None) -> Iterator[None]:
    """Errors inside are logged and go no further."""
    try:
        yield
    except Exception:
        _log.exception("shadow_failed", step=step, request_id=request_id)
