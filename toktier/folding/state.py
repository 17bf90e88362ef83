"""One session's renders: each is the full render's text, at the cost of what changed.

Invariants
1. `FoldState.render` gives the text that `ChatTemplate.render` gives for the same request, or raises what it raises.
2. Whatever happens in the incremental path, the genuine error is raised by the full render and by nothing else: any
   exception drops what is kept, and the request is rendered in full. The reason is counted. A render that is stopped by
   its limit, or that the caller does not accept, is no such exception: it leaves the state as it was, since nothing of
   it changes before the text is complete (`change`).
3. Messages and arguments are immutable once handed over: an object that comes again stands for the same value. The
   sandbox refuses every method that changes a list or a mapping, so the template cannot change them either.
4. Whether an argument is what it was is decided strictly (`strict.same`), message by message; objects that the caller
   hands over again are taken as they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jinja2.environment import Template
from jinja2.runtime import Macro

from toktier.errors import TakesLong
from toktier.folding.change import Change
from toktier.folding.compiled import RUNNER, Compiled, Folded, FoldedText
from toktier.folding.fold import Runner
from toktier.folding.reasons import Fallback
from toktier.folding.records import Lists, Record
from toktier.folding.rendered import Chunks, Rendered, Segment
from toktier.folding.strict import plain, reuse, same
from toktier.folding.tracker import TRACKER, Tracker, Untold
from toktier.template import RenderRequest
from toktier.template_limit import OverLimit, RenderLimit, deadline

_PATIENCE = 2
"""Fallbacks in a row after which the incremental path rests."""
_LONGEST_REST = 64
"""Renders that it rests at most."""
_PLACE_BYTES = 120
"""What an iteration costs beside its text and the arrays: its places in the lists, and its state."""


class _Render(Runner):
    """The loops of one render, as the template calls them."""

    def __init__(
        self, made: Compiled, tracker: Tracker, records: dict[int, Record], lists: Lists, deadline: float
    ) -> None:
        super().__init__(tracker, records, lists, made.pure, deadline)
        self._plans = made.program.loops

    def wants(self, loop: int, place: int) -> bool:
        record = self.records.get(loop)
        return record is not None and self._plans[loop].sites[place].number in record.values

    def fold(
        self, loop: int, sites: tuple[Any, ...], spaces: tuple[Any, ...], collectors: tuple[Macro, ...]
    ) -> FoldedText:
        text = FoldedText()
        text.change, text.backwards = self.run(self._plans[loop], sites, spaces, collectors)
        return text


@dataclass(frozen=True, slots=True)
class _Kept:
    """Of the last render, what the next one is compared with. ``segments``: a record's with its number of chunks."""

    arguments: dict[str, Any]
    segments: list[tuple[Segment | Record, int]]
    chunks: Chunks


Accept = Callable[[int, int], None]
"""Is told the characters that the text has in common with the last one, and all of it; raises `TakesLong`."""


class FoldState:
    """What is kept of one conversation. Used by one render at a time."""

    def __init__(self, folded: Folded) -> None:
        self._folded = folded
        self._of: Compiled | None = None
        self._records: dict[int, Record] = {}
        self._kept: _Kept | None = None
        self._in_a_row = 0
        self._rest = 0

    def render(
        self,
        request: RenderRequest,
        first_changed_message_hint: int | None = None,
        within_s: float | None = None,
        accept: Accept | None = None,
    ) -> Rendered:
        """The chunks of the text that the template's full render gives; raises what that raises.

        ``first_changed_message_hint``: messages before this index are the very objects of this state's last request
        (the caller vouches for it). ``within_s``: as for `ChatTemplate.render`. ``accept`` is asked before anything is
        kept. After a `TakesLong` of either the state is that of the last request; after one of a full render it is
        empty.
        """
        started = time.perf_counter()
        limit = self._folded.template.limit_within(within_s)
        reason = self._reason_for_full(request)
        if reason is None:
            try:
                rendered = self._incremental(request, first_changed_message_hint, started, limit, accept)
            except OverLimit as over:
                self._folded.counts.add(renders=1, raised=1)
                raise self._folded.template.failure(over, limit) from None
            except TakesLong:
                self._folded.counts.add(renders=1, raised=1)
                raise
            except Untold as untold:
                reason = untold.reason
            except Exception:
                reason = Fallback.ERROR
            except BaseException:
                self.drop()
                raise
            else:
                self._in_a_row = 0
                count = {"iterations": rendered.iterations, "messages": len(request.messages)}
                self._folded.counts.add(renders=1, incremental=1, **count)
                return rendered
        left = None if within_s is None else within_s - (time.perf_counter() - started)
        return self._full(request, reason, left, accept)

    def renders(self, folded: Folded) -> bool:
        """Whether it is a state of these very templates, with their limits."""
        return self._folded is folded

    @property
    def kept(self) -> tuple[list[Any], list[Any] | None] | None:
        """The last request's messages and tools: the objects that the next ones are compared with. None without any."""
        return None if self._kept is None else (self._kept.arguments["messages"], self._kept.arguments["tools"])

    @property
    def nbytes(self) -> int:
        """About the bytes that are kept beside the request's own objects and the text."""
        records = self._records.values()
        return 2048 + sum(
            (_PLACE_BYTES + 8 * len(one.starts)) * len(one.chunks)
            + one.mask.nbytes
            + one.low.nbytes
            + one.high.nbytes
            + one.state_bytes
            for one in records
        )

    @property
    def text_bytes(self) -> int:
        """Bytes of the chunks' strings, whoever else holds them."""
        return sum(one.nbytes for one in self._records.values())

    def clone(self) -> FoldState:
        """An independent state of the same conversation. Texts are shared; the rest costs a few microseconds a
        hundred messages."""
        other = FoldState(self._folded)
        other._of, other._in_a_row, other._rest = self._of, self._in_a_row, self._rest
        kept = self._kept
        if kept is None:
            return other
        other._records = {number: record.clone() for number, record in self._records.items()}
        copies = {id(record): other._records[number] for number, record in self._records.items()}
        segments: list[tuple[Segment | Record, int]] = []
        for one, size in kept.segments:
            segments.append((copies[id(one)] if isinstance(one, Record) else one, size))
        chunks = Chunks([one.chunks if isinstance(one, Record) else one for one, _ in segments])
        other._kept = _Kept(kept.arguments, segments, chunks)
        return other

    def drop(self) -> None:
        """Forgets everything; the next render starts anew."""
        if self._kept is not None:
            self._kept.chunks.expire()
        self._kept = None
        self._records = {}

    def _reason_for_full(self, request: RenderRequest) -> Fallback | None:
        of = self._folded.for_request(tools=request.tools is not None)
        if of is not self._of:
            self.drop()
            self._of = of
        if of is None:
            return Fallback.UNFOLDABLE
        if self._rest:
            self._rest -= 1
            return Fallback.PAUSED
        return None

    def _full(
        self, request: RenderRequest, reason: Fallback, within_s: float | None, accept: Accept | None
    ) -> Rendered:
        self.drop()
        try:
            text = self._folded.template.render(request, within_s)
            if accept is not None:
                accept(0, len(text))
        except BaseException:
            self._folded.counts.add(renders=1, raised=1)
            raise
        if reason not in (Fallback.UNFOLDABLE, Fallback.PAUSED):
            self._in_a_row += 1
            if self._in_a_row >= _PATIENCE:
                self._rest = min(_LONGEST_REST, 1 << self._in_a_row)
        self._folded.counts.add(renders=1, **{f"fallback_{reason.value}": 1})
        return Rendered(Chunks([[text]]), 0, 0, len(text), 0, reason)

    def _incremental(
        self, request: RenderRequest, hint: int | None, started: float, limit: RenderLimit, accept: Accept | None
    ) -> Rendered:
        made, kept = self._of, self._kept
        assert made is not None
        arguments, lists = self._taken_over(request, {} if kept is None else kept.arguments, hint)
        tracker = Tracker(made.template.environment)
        tracker.vouched = {id(value): value for value in arguments.values() if type(value) in (list, dict)}
        ends = started + limit.seconds
        render = _Render(made, tracker, self._records, lists, ends)
        given = {**arguments, **deadline(ends), TRACKER: tracker, RUNNER: render}
        pieces = self._pieces(made.template, given)
        first, common = _first_change([] if kept is None else kept.segments, pieces)
        chars = sum(one.chars if isinstance(one, Change) else sum(map(len, one)) for one in pieces)
        if chars > limit.chars:
            raise OverLimit("size")
        if accept is not None:
            accept(common, chars)
        if kept is not None:
            kept.chunks.expire()
        self._kept = None
        for number, change in render.changes.items():
            self._records[number] = change.commit()
        segments: list[tuple[Segment | Record, int]] = [
            (one.record, one.size) if isinstance(one, Change) else (one, len(one)) for one in pieces
        ]
        chunks = Chunks([one.chunks if isinstance(one, Record) else one for one, _ in segments])
        self._kept = _Kept(arguments, segments, chunks)
        return Rendered(chunks, first, common, chars, render.iterations, None)

    def _taken_over(
        self, request: RenderRequest, old: dict[str, Any], hint: int | None
    ) -> tuple[dict[str, Any], Lists]:
        """The arguments, with the objects of the last request where they are the same."""
        arguments = self._folded.template.arguments(request)
        for name, value in arguments.items():
            before = old.get(name, _NONE)
            if name == "messages" or value is before:
                continue
            if same(before, value):
                arguments[name] = before
            elif not plain(value):
                raise Untold(Fallback.NOT_PLAIN, name)
        before, messages = old.get("messages"), arguments["messages"]
        if type(messages) is not list:
            raise Untold(Fallback.NOT_PLAIN, "messages")
        if before is None:
            fresh = [*range(len(messages))]
        else:
            messages, fresh = reuse(before, messages, _vouched_for(before, messages, hint))
        if not all(plain(messages[place]) for place in fresh):
            raise Untold(Fallback.NOT_PLAIN, "messages")
        if before is None:
            return arguments, Lists(None)
        arguments["messages"] = messages
        first = fresh[0] if fresh else min(len(before), len(messages))
        return arguments, Lists((before, messages, first))

    def _pieces(self, template: Template, arguments: dict[str, Any]) -> list[Segment | Change]:
        """What the template puts out: what its loops do, and the rows of pieces between them."""
        out: list[Segment | Change] = []
        between: Segment = []
        for piece in template.root_render_func(template.new_context(arguments)):
            if type(piece) is not FoldedText:
                if piece:
                    between.append(str(piece))  # where it is escaped it is Markup, whose sums escape what is added
                continue
            change = piece.change
            if not change.chars:
                continue
            if piece.backwards:
                between += reversed(change.chunks())
                continue
            if between:
                out.append(between)
                between = []
            out.append(change)
        if between:
            out.append(between)
        return out


_NONE = object()


def _vouched_for(before: list[Any], messages: list[Any], hint: int | None) -> int:
    """How many messages are the old objects by the caller's word, which is tried at three of them."""
    known = 0 if hint is None else max(0, min(hint, len(before), len(messages)))
    tried = {0, known // 2, known - 1} if known else set()
    return known if all(before[place] is messages[place] for place in tried) else 0


def _first_change(old: list[tuple[Segment | Record, int]], new: list[Segment | Change]) -> tuple[int, int]:
    """The first chunk that is not the last render's, and the characters before it. Before the changes are made."""
    chunks = chars = 0
    for at, segment in enumerate(new):
        before, old_size = old[at] if at < len(old) else ([], 0)
        if isinstance(segment, Change):
            size = segment.size
            if segment.record is not before:
                return chunks, chars
            same_chunks = min(segment.first_changed, size, old_size)
            if same_chunks < size or size != old_size:
                return chunks + same_chunks, chars + segment.record.text_before(same_chunks)
            chars += segment.chars
        else:
            size = len(segment)
            if not isinstance(before, list):
                return chunks, chars
            same_chunks = next(
                (i for i, (x, y) in enumerate(zip(before, segment, strict=False)) if x != y), min(size, old_size)
            )
            if same_chunks < size or size != old_size:
                return chunks + same_chunks, chars + sum(map(len, segment[:same_chunks]))
            chars += sum(map(len, segment))
        chunks += size
    return chunks, chars
