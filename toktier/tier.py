"""One model: from a chat-completion body to the token IDs that the engine itself would come to.

The life of a request here: normalise (the engine's own rules), match (which session it continues), render (the model's
template), splice (encode what changed), write (the IDs as JSON). The store learns of a request only when all have
succeeded. Each step takes over what the session keeps of the one before (`toktier.known`, `toktier.memory`,
`toktier.folding`) and does the rest; what it cannot take over it does anew.

What is in quarantine (`toktier.quarantine`) is matched, to know its path, and then goes by the reference alone: no kept
text, message, render or ID is used for it, and none is kept.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from toktier.chunks import ChunkEncoder, GpuPath
from toktier.errors import CannotEncode, TakesLong, Unrenderable
from toktier.fingerprint import Fingerprint, Group, digest, fingerprint, strict
from toktier.folding import Folded, Rendered, Unfoldable
from toktier.ids import Ids
from toktier.keeping import kinds_of, to_keep
from toktier.known import Known, OtherRules, Run, Source, known_of
from toktier.postprocessor import SpecialTokens
from toktier.prepared import CONTINUED, Prepared
from toktier.profiles.base import EngineProfile, ProfileSettings
from toktier.quarantine import Level, Quarantine
from toktier.reasons import Bypass, Cause, FullEncode, FullRender, Gpu, Path
from toktier.rope import Splice
from toktier.sessions import Lease, SessionBusy, SessionStore
from toktier.shortcuts import Way
from toktier.surrogates import find_surrogate
from toktier.template import ChatTemplate, RenderRequest
from toktier.tokenizer import FrozenTokenizer
from toktier.written import Written, write

__all__ = ["ModelTier", "Prepared", "SessionBusy", "find_surrogate"]


AT_ONCE_S = 0.005
"""How long a render may take, in seconds, for a caller that does not want to wait."""
AT_ONCE_MESSAGES = 64
"""With more messages than this, such a caller gets a render only if it is likely to be short."""
AT_ONCE_CHARS = 32_768
"""Characters that are encoded for such a caller."""
_LARGE_SOURCE = 128 << 10
"""Bytes of a body of which such a caller may not have every message looked at."""
_AFTER_CHANGE = 2048
"""Messages from the first changed one on that such a caller may have: each has its place in a chain of digests, and the
session's copy its records."""


class _Text(NamedTuple):
    """The rendered text: the first ``common`` characters of the rope's, then ``parts``, of which none is empty."""

    common: int
    parts: list[str]
    chars: int
    why: FullRender | None
    kept: bool
    """Whether the session's render is of this text."""
    iterations: int | None
    """`Prepared.iterations`."""


class _Made(NamedTuple):
    """``before``: IDs that the session had; ``at``, ``done``: when IDs and JSON were there, in nanoseconds."""

    ids: Ids
    splice: Splice
    way: Way | None
    texts: Sequence[str]
    before: int
    first_changed: int
    written: tuple[Ids, Written] | None
    at: int
    done: int
    by_gpu: bool = False
    text_bytes: int | None = None


class ModelTier:
    """One model's tokenizer, template and engine rules over a session store. Thread-safe."""

    def __init__(
        self,
        name: str,
        tokenizer: FrozenTokenizer,
        template: ChatTemplate,
        profile: EngineProfile,
        settings: ProfileSettings,
        store: SessionStore,
        vocab_size: int | None = None,
        special: SpecialTokens | None = None,
        quarantine: Quarantine | None = None,
        gpu: GpuPath | None = None,
    ) -> None:
        """``vocab_size`` is the engine's, where it is smaller than the tokenizer's. ``special``: what the engine puts
        around a prompt where a request asks for it; None where that is not known (such a request is a bypass).
        ``quarantine`` says what is not trusted; None: all is. ``gpu``: that of this very tokenizer.
        """
        self.name = name
        self.tokenizer = tokenizer
        self.gpu = gpu
        self.template = template
        self.profile = profile
        self.settings = settings
        self.store = store
        self.vocab_size = tokenizer.vocab_size if vocab_size is None else vocab_size
        self._encoder: ChunkEncoder = replace(tokenizer.encoder, gpu=gpu)
        # A kept rope holds the certificate that it was made with.
        certificate = tokenizer.certificate.digest if tokenizer.certificate is not None else ""
        # And IDs that were written once are known to be below its `vocab_size`.
        parts = (profile.name, template.digest, tokenizer.digest, certificate, str(self.vocab_size))
        self._identity = digest(*(part.encode() for part in parts))
        self._special = special
        self._quarantine = quarantine
        self._control = control_pattern(tokenizer.spec)
        self._folded = Folded.of(template)

    def prepare(
        self,
        tenant: str,
        body: Mapping[str, Any],
        hint: str | None = None,
        *,
        wait: bool = True,
        source: Source | None = None,
        ready: Callable[[list[bytes]], None] | None = None,
    ) -> Prepared:
        """The IDs for ``body``, a chat-completion request as `json.loads` reads it.

        ``source``: where the body comes from and what it shares with an earlier one; messages that it shares need not
        be in ``body``. Raises `Unrenderable` where the IDs cannot be known to be the engine's own (the request then
        goes upstream as text), and `InvalidText` for a lone surrogate (`find_surrogate` names its place in the body).
        With ``wait`` false it raises `SessionBusy` where it would have to wait for another request on the same session,
        and `TakesLong` where it would keep its caller for more than a few milliseconds.

        ``ready`` gets the IDs as JSON, in the pieces of `Prepared.json`, as soon as they are there, before the session
        takes note of the request. It must not raise. It is not called where the reference has to be asked.
        """
        started = time.perf_counter_ns()
        if source is not None and source.shared and source.epoch != self.store.epoch:
            # What it shares was forgotten meanwhile, and may have been wrong.
            if not wait and source.nbytes > _LARGE_SOURCE:
                raise TakesLong("the messages")
            body, source = source.again(), None
        on_wire = known_of(source)
        try:
            request = self.profile.normalise(body, self.template, self.settings, on_wire)
        except OtherRules:
            assert source is not None
            if not wait and source.nbytes > _LARGE_SOURCE:
                raise TakesLong("the messages") from None
            body, source = source.again(), replace(source, before=None, shared=())
            on_wire = None
            request = self.profile.normalise(body, self.template, self.settings)
        known = _given(on_wire, request)
        if not wait and source is not None:
            many = len(request.messages) - known.lead > _AFTER_CHANGE if known is not None else False
            if many or (known is None and source.nbytes > _LARGE_SOURCE):
                raise TakesLong("the messages")
        around = self._around(body)
        normalised = time.perf_counter_ns()
        wanted = self._fingerprint(tenant, body, request, hint, known)
        with self.store.lease(wanted, self._encoder, wait=wait) as lease:
            matched = time.perf_counter_ns()
            text = self._rendered(lease, request, known, wait)
            rendered = time.perf_counter_ns()
            path = lease.path(text.chars)
            made = self._repaired(lease, text, around) if self._trusts(path) else None
            if ready is not None and made is not None and made.written is not None:
                ready(made.written[1].pieces())
            marks = self._marks(wanted, lease, known)
            kinds, traits = kinds_of(body, on_wire)
            continued = "" if made is None else _continued(path, lease, made.splice, request)
            if made is not None:
                kept: Source | None = None
                if source is not None and source.keys:
                    shown = lease.memory.fold.kept if lease.memory.fold is not None and text.kept else None
                    kept = to_keep(source, body, request, wanted, marks, shown, on_wire, kinds, traits)
                    if kept is None:
                        lease.memory.forget()  # its render holds what is too much to keep
                lease.commit(marks, kept)
        if made is None:
            if not wait:
                raise TakesLong("the reference")
            made = self._whole(body, source, around)
            text = text._replace(why=FullRender.QUARANTINED, chars=sum(map(len, made.texts)), iterations=None)
        made.ids.flags.writeable = False
        return Prepared(
            ids=made.ids,
            texts=made.texts,
            path=path,
            cause=_cause(path, lease, made.splice),
            full=made.splice.full,
            messages=len(request.messages),
            chars=text.chars,
            scanned=made.splice.scanned,
            common=made.splice.common,
            first_changed=made.first_changed,
            lost_reuse_tokens=max(0, made.before - made.splice.first_changed),
            first_changed_message=_first_changed_message(lease, request),
            session=lease.session,
            stages={
                "normalise": (normalised - started) // 1000,
                "match": (matched - normalised) // 1000,
                "render": (rendered - matched) // 1000,
                "splice": (made.at - rendered) // 1000,
                "serialise": (made.done - made.at) // 1000,
            },
            control_tokens=marks.count(1),
            tokenizer_digest=self.tokenizer.digest,
            template_digest=self.template.digest,
            full_render=text.why,
            iterations=text.iterations,
            way=made.way,
            written=made.written,
            traits=traits,
            gpu=made.splice.gpu,
            by_gpu=made.by_gpu,
            text_bytes=made.text_bytes,
            continued=continued,
        )

    def _level(self, path: Path) -> Level | None:
        return None if self._quarantine is None else self._quarantine.level(self.tokenizer.digest_of_files, path)

    def _trusts(self, path: Path) -> bool:
        """Whether the session may be used; if not, the whole text is for the reference. Raises `Unrenderable`."""
        level = self._level(path)
        if level is Level.TEXT:
            raise Unrenderable(Bypass.QUARANTINED, path.value)
        return level is None

    def _rendered(self, lease: Lease, request: RenderRequest, known: Known | None, wait: bool) -> _Text:
        """The text, with the session's render where whatever path the request turns out to have is trusted."""
        within_s = None
        if not wait:
            within_s = AT_ONCE_S
            if len(request.messages) > AT_ONCE_MESSAGES and not _is_short(lease, request, known):
                raise TakesLong("the template")
        trusted = all(self._level(path) is None for path in lease.paths())
        if not trusted or isinstance(self._folded, Unfoldable):
            text = self.template.render(request, within_s)
            if not wait and len(text) > AT_ONCE_CHARS:
                raise TakesLong("the encoder")
            return _whole_text(text, FullRender.UNFOLDABLE if trusted else FullRender.QUARANTINED)
        memory = lease.memory
        fold = memory.state(self._folded)
        kept = fold.kept
        lead = None
        if known is not None and kept is not None and kept[0] is known.made.given:
            lead = known.lead
        synced, memory.synced = memory.synced, False

        def accept(common: int, chars: int) -> None:
            common = common if synced else 0
            if lease.rope.reach(common) + chars - common > AT_ONCE_CHARS:
                raise TakesLong("the encoder")

        try:
            made: Rendered = fold.render(request, lead, within_s, None if wait else accept)
        except TakesLong:
            # Whoever comes back and waits goes on from where the session was.
            memory.synced = synced and fold.kept is not None
            raise
        why = None if kept is not None else FullRender.NOTHING_KEPT
        if made.fell_back is not None:
            why = FullRender(made.fell_back.value)
        first, common = (made.first_changed_chunk, made.common) if synced and why is None else (0, 0)
        parts = list(filter(None, made.chunks.since(first)))
        iterations = made.iterations if made.fell_back is None else None
        return _Text(common, parts, made.chars, why, made.fell_back is None, iterations)

    def _repaired(self, lease: Lease, text: _Text, around: SpecialTokens | None) -> _Made:
        rope, memory = lease.rope, lease.memory
        before = len(rope.ids)
        written, memory.written, memory.synced = memory.written, None, False
        try:
            if text.chars < self._encoder.shortcuts.whole_below and not text.common == text.chars == rope.chars:
                splice = rope.anew(rope.text()[: text.common] + "".join(text.parts), text.common, text.parts)
            else:
                splice = rope.follow(text.common, text.parts)
        except CannotEncode as error:
            raise Unrenderable(Bypass.CANNOT_ENCODE, error.engine) from error
        if rope.chars != text.chars:
            raise RuntimeError("the rope does not hold what was rendered")
        memory.synced = text.kept
        ids = rope.ids if around is None else around.around(rope.ids)
        first = _first_changed(splice, before, len(ids), around)
        self._check_range(ids, 0 if written is None else first)
        at = time.perf_counter_ns()
        memory.written = written = write(ids, written, first)
        done = time.perf_counter_ns()
        way = None if splice.gpu is Gpu.USED else self._encoder.shortcuts.way(text.chars, splice.scanned)
        texts, nbytes = rope.pieces(), rope.text_bytes
        return _Made(ids, splice, way, texts, before, first, (ids, written), at, done, rope.by_gpu, nbytes)

    def _whole(self, body: Mapping[str, Any], source: Source | None, around: SpecialTokens | None) -> _Made:
        """By the reference, with nothing that was kept."""
        if source is not None and source.shared:
            body = source.again()
        text = self.template.render(self.profile.normalise(body, self.template, self.settings))
        try:
            own = self.tokenizer.reference.encode(text)
        except CannotEncode as error:
            raise Unrenderable(Bypass.CANNOT_ENCODE, error.engine) from error
        ids = own.copy() if around is None else around.around(own)
        self._check_range(ids, 0)
        splice = Splice(0, len(text), 0, 0, 0, FullEncode.QUARANTINED)
        at = time.perf_counter_ns()
        return _Made(ids, splice, None, (text,), 0, 0, None, at, at)

    def _around(self, body: Mapping[str, Any]) -> SpecialTokens | None:
        """What stands around the prompt of this request; the rope never holds it."""
        if not self.profile.adds_special_tokens(body):
            return None
        if self._special is None:
            raise Unrenderable(Bypass.ADD_SPECIAL_TOKENS, "add_special_tokens")
        return self._special

    def _fingerprint(
        self,
        tenant: str,
        body: Mapping[str, Any],
        request: RenderRequest,
        hint: str | None,
        known: Known | None,
    ) -> Fingerprint:
        # Requests that ask for different renderings are kept apart, even where these come out alike; those with special
        # tokens, too, so that `Prepared.first_changed` compares like with like.
        own = [body.get("chat_template_kwargs"), body.get("reasoning_effort")]
        asked = strict([*own, True] if self.profile.adds_special_tokens(body) else own)
        settings = digest(self._identity, strict(request.kwargs), asked)
        group = Group(tenant, self.name, settings)
        tools = known.made.tool_digests if known is not None and known.made.tools is request.tools else None
        return fingerprint(group, request.messages, request.tools, hint, known, tools)

    def _check_range(self, ids: Ids, known: int) -> None:
        """A tokenizer that knows more IDs than the engine has embeddings for would crash or poison the engine.

        The first ``known`` were asked for an earlier request. Where that one was refused they are asked again: it may
        have left its text in the rope, but no IDs as JSON.
        """
        fresh = ids[known:]
        if len(fresh) and int(fresh.max()) >= self.vocab_size:
            raise Unrenderable(Bypass.TOKENIZER_MISMATCH, f"a token ID is not below the engine's {self.vocab_size}")

    def _marks(self, wanted: Fingerprint, lease: Lease, known: Known | None) -> bytes:
        """For each message 1 if it holds a special token's literal, else 0."""
        size = len(wanted.messages)
        if self._control is None:
            return bytes(size)
        search = self._control.search

        def mark(place: int) -> int:
            if place < lease.shared:
                return lease.marks[place]
            return int(search(wanted.packed[place]) is not None)

        if known is None:
            return lease.marks + bytes(map(mark, range(lease.shared, size)))
        pieces: list[bytes] = []
        place = 0
        for run in (*known.shared, Run(size, 0, 0)):
            pieces.append(bytes(map(mark, range(place, run.at))))
            pieces.append(known.made.marks[run.old : run.old + run.size])
            place = run.at + run.size
        return b"".join(pieces)


def _given(on_wire: Known | None, request: RenderRequest) -> Known | None:
    """What is known of the messages that the template is given, by what is known of those on the wire."""
    if on_wire is None or (request.by_wire is None) != (on_wire.made.systems is None):
        return None
    if request.by_wire is None:
        return on_wire
    return Known(on_wire.made, request.shared) if request.shared else None


def _is_short(lease: Lease, request: RenderRequest, known: Known | None) -> bool:
    """Whether a render is likely to run a few iterations only: the session has all messages but the last ones, and none
    of these is a user's, after which many templates write what stands before it in another way."""
    fold = lease.memory.fold
    if known is None or fold is None or fold.kept is None or lease.previous != lease.shared:
        return False
    return all(message["role"] in ("assistant", "tool") for message in request.messages[lease.shared :])


def _whole_text(text: str, why: FullRender) -> _Text:
    return _Text(0, [text] if text else [], len(text), why, False, None)


def control_pattern(spec: Mapping[str, Any]) -> re.Pattern[bytes] | None:
    """Finds any special added token's literal in the strict form of a message (where strings stand as UTF-8)."""
    literals = {token["content"] for token in spec.get("added_tokens") or () if token.get("special")}
    forms = sorted(re.escape(literal.encode()) for literal in literals if literal)
    return re.compile(b"|".join(forms)) if forms else None


def _cause(path: Path, lease: Lease, splice: Splice) -> Cause:
    if path in (Path.EDIT, Path.COMPACTION):
        return Cause.TOOLS_CHANGED if lease.tools_changed else Cause.MESSAGES_EDITED
    if splice.full is FullEncode.QUARANTINED:
        return Cause.NONE  # the texts were not compared
    if path in (Path.APPEND, Path.RETRY) and splice.common < lease.previous_chars:
        return Cause.TEMPLATE_HISTORY_REWRITE
    return Cause.NONE


def _continued(path: Path, lease: Lease, splice: Splice, request: RenderRequest) -> str:
    before = lease.previous_chars
    if path is not Path.APPEND or splice.common < before:
        return ""
    assert lease.previous is not None
    if request.messages[lease.previous].get("role") != "assistant":
        return ""
    return lease.rope.text_from(before, CONTINUED)


def _first_changed(splice: Splice, before: int, size: int, around: SpecialTokens | None) -> int:
    """`Splice.first_changed` in ``size`` IDs with what stands around them; the rope had ``before`` IDs."""
    if around is None:
        return splice.first_changed
    if before == 0:
        return 0
    unchanged = not splice.scanned and splice.first_changed == before
    return size if unchanged else len(around.prefix) + splice.first_changed


def _first_changed_message(lease: Lease, request: RenderRequest) -> int | None:
    if lease.previous is None or lease.shared == len(request.messages):
        return None
    return request.wire_place(lease.shared)
