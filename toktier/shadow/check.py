"""The comparison itself: a job's text and IDs with those that the files give.

Invariants:
 - A verdict is about the same files: what is on disk has the digests that the model was loaded with, or there is none.
 - The verdict does not depend on finding the place of a difference: it is told before that is looked for.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b

from toktier.errors import CannotEncode, InvalidText, Unrenderable
from toktier.fingerprint import common_prefix
from toktier.ids import Ids, from_bytes, shared_prefix
from toktier.shadow import locate
from toktier.shadow.job import Drop, Job, Kind, NotComparable, Setup, Verdict
from toktier.shadow.reference import FilesChanged, ReferencePath, Rendered

MODELS = 4
"""Models that a checker keeps loaded; the one unused for longest goes first."""

SoFar = Callable[[Verdict | None], None]
"""Told None when the model is loaded, and a verdict whose `Piece` is still to be found."""


def digest_of_text(text: str) -> str:
    """Hex, of the UTF-8 form; lone surrogates count as they are."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


def digest_of_ids(ids: bytes) -> str:
    """Hex; ``ids``: uint32, little endian."""
    return blake2b(ids, digest_size=20).hexdigest()


class Checker:
    """Compares jobs, one after the other, with models that it loads itself."""

    def __init__(self) -> None:
        self._models: OrderedDict[str, ReferencePath] = OrderedDict()

    def check(self, job: Job, so_far: SoFar = lambda _: None) -> Verdict | NotComparable:
        """What comes of ``job``. Errors that are nobody's plan are raised."""
        watch = _Watch()
        try:
            model = self._model(job.setup)
        except FilesChanged as error:
            return NotComparable(Drop.FILES_CHANGED, str(error))
        watch.lap("load")
        so_far(None)
        try:
            rendered = model.render(json.loads(job.body), job.prepared_at, watch.lap)
        except Unrenderable as error:
            return NotComparable(Drop.TEMPLATE_ERROR, str(error))
        text = rendered.text
        ids: Ids | None = None
        try:
            ids = model.encode(rendered)
        except (CannotEncode, InvalidText) as error:
            if text == job.text:
                return NotComparable(Drop.CANNOT_ENCODE, type(error).__name__)
        watch.lap("encode")
        verdict = replace(_compare(job, text, ids), stages=watch.laps)
        watch.lap("compare")
        if verdict.kind in (None, Kind.DIGEST):
            return verdict
        so_far(verdict)
        return _located(verdict, model, rendered)

    def _model(self, setup: Setup) -> ReferencePath:
        key = repr(setup)
        model = self._models.pop(key, None) or ReferencePath(setup)
        self._models[key] = model
        if len(self._models) > MODELS:
            self._models.popitem(last=False)
        return model


def _compare(job: Job, text: str, ids: Ids | None) -> Verdict:
    sent = from_bytes(job.ids)
    same_text = text == job.text
    first_id = None if ids is None else _first_id(sent, ids)
    kind: Kind | None = None
    if not same_text:
        kind = Kind.TEXT
    elif first_id is not None:
        kind = Kind.IDS
    elif (job.tokenizer_digest, job.template_digest) != (job.setup.tokenizer_digest, job.setup.template_digest):
        kind = Kind.DIGEST
    return Verdict(
        kind=kind,
        chars=len(job.text),
        reference_chars=len(text),
        tokens=len(sent),
        reference_tokens=None if ids is None else len(ids),
        text_digest=digest_of_text(job.text),
        reference_text_digest=digest_of_text(text),
        ids_digest=digest_of_ids(job.ids),
        reference_ids_digest=None if ids is None else digest_of_ids(ids.tobytes()),
        first_id=first_id,
        first_char=None if same_text else common_prefix(job.text, text),
        piece=None,
        stages={},
    )


def _first_id(sent: Ids, reference: Ids) -> int | None:
    first = shared_prefix(sent, reference)
    return None if first == len(sent) == len(reference) else first


def _located(verdict: Verdict, model: ReferencePath, rendered: Rendered) -> Verdict:
    try:
        if verdict.first_char is not None:
            place = locate.of_char(model.engine, rendered.text, verdict.first_char)
        else:
            assert verdict.first_id is not None
            inner = verdict.first_id - len(rendered.around.prefix)
            if inner < 0:
                return replace(verdict, first_char=0)  # a special token before the text
            place = locate.of_id(model.engine, rendered.text, inner)
    except Exception:  # whatever it is, it costs the place only
        return verdict
    return replace(verdict, first_char=place.char, piece=place.piece)


class _Watch:
    """Microseconds between laps, by name."""

    def __init__(self) -> None:
        self.laps: dict[str, int] = {}
        self._last = time.perf_counter_ns()

    def lap(self, name: str) -> None:
        now = time.perf_counter_ns()
        self.laps[name] = (now - self._last) // 1000
        self._last = now
