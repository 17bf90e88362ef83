"""A sample of the IDs that were sent, compared with the upstream's own ``/tokenize``: the engine as the judge.

Invariants
1. Only a request that ``/tokenize`` renders as the chat route does is compared. vLLM's reads ``model``, ``messages``,
   ``tools``, ``chat_template_kwargs``, ``add_special_tokens`` and ``add_generation_prompt``. It does not know
   ``reasoning_effort``, does not rename a message's ``reasoning_content``, and never drops tools for ``tool_choice``
   (read in 0.27 to 0.32, where ``/tokenize`` is the same). The other engines' routes are not known to agree with chat.
2. One request at a time and upstream: it costs the engine's front end a full render and encode. What is not compared is
   counted with a reason (`Skip`).
3. Work of milliseconds is done in ``executor``, in pieces that let the event loop run.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from enum import StrEnum
from typing import Any

import aiohttp
import numpy as np
import orjson
import structlog

from proxy import config
from proxy.jsonspan import Parsed
from proxy.metrics import Metrics
from proxy.registry import ModelRuntime, State
from proxy.sent import Question, Room, Sent
from toktier.ids import Ids
from toktier.traits import Traits, together, traits_of

_log = structlog.get_logger("toktier.parity")

TIMEOUT_S = 120.0
REST_S = 60.0
"""How long an upstream that has no such route is not asked again."""
_READ = frozenset({"model", "messages", "tools", "chat_template_kwargs", "add_special_tokens"})
_SLICE = 1 << 16
"""Bytes of a list of IDs that are parsed at a time."""


class Skip(StrEnum):
    """Why a request that was drawn was not compared."""

    BUSY = "busy"
    NOT_COMPARABLE = "not_comparable"
    NO_ROUTE = "no_route"
    NO_ANSWER = "no_answer"
    NO_ROOM = "no_room"
    """What is held of requests under way fills its room (`proxy.sent`)."""
    DOUBTED = "doubted"
    """Another process may have answered than the one that got the IDs."""
    INTERNAL_ERROR = "internal_error"
    SHUTDOWN = "shutdown"


class _Skipped(Exception):
    def __init__(self, reason: Skip) -> None:
        super().__init__(reason.value)
        self.reason = reason


class ParitySampling:
    """`question` is for any thread, the rest for the event loop.

    ``room`` is where questions are held; ``on_different`` is told of our IDs and the upstream's, in a thread of
    ``executor``.
    """

    def __init__(
        self, executor: Executor, metrics: Metrics, room: Room, on_different: Callable[[Sent, Ids, Ids], None]
    ) -> None:
        self._executor, self._metrics, self._room, self._on_different = executor, metrics, room, on_different
        self._busy: set[str] = set()
        self._resting: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def question(
        self, model: ModelRuntime, parsed: Parsed, ids: Ids, request_id: str, rate: float, traits: Traits | None = None
    ) -> Question | None:
        """What to ask about a request, if it is drawn (at ``rate``): the client's own bytes of what is read there.

        ``traits``: those of its messages; None where ``parsed`` holds all of them.
        """
        if not rate or random.random() >= rate:
            return None
        if not comparable(parsed.outline, model.settings, model.upstream.settings, traits):
            self._skip(model, request_id, Skip.NOT_COMPARABLE)
            return None
        body = parsed.edit(parsed.outline.keys() - _READ, [("add_generation_prompt", [b"true"])])
        question = Question(body, ids)
        if not self._room.takes(question):
            self._skip(model, request_id, Skip.NO_ROOM)
            return None
        return question

    def offer(self, model: ModelRuntime, sent: Sent) -> None:
        """A request that the engine has answered. Returns at once."""
        if sent.question is None:
            return
        upstream = model.upstream.name
        if upstream in self._busy:
            self._skip(model, sent.request_id, Skip.BUSY)
        elif time.monotonic() < self._resting.get(upstream, 0.0):
            self._skip(model, sent.request_id, Skip.NO_ROUTE)
        else:
            self._busy.add(upstream)
            task = asyncio.get_running_loop().create_task(self._compare(model, sent, sent.question))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End what is under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _skip(self, model: ModelRuntime, request_id: str, reason: Skip) -> None:
        self._metrics.parity_skips.labels(model.name, reason.value).inc()
        _log.info("parity_skipped", model=model.name, request_id=request_id, reason=reason.value)

    async def _compare(self, model: ModelRuntime, sent: Sent, question: Question) -> None:
        try:
            equal = await self._asked(model, sent, question)
        except _Skipped as skipped:
            self._skip(model, sent.request_id, skipped.reason)
        except asyncio.CancelledError:
            self._skip(model, sent.request_id, Skip.SHUTDOWN)
            raise
        except Exception:
            _log.exception("parity_failed", model=model.name, request_id=sent.request_id)
            self._skip(model, sent.request_id, Skip.INTERNAL_ERROR)
        else:
            result = "equal" if equal else "different"
            self._metrics.parity_checks.labels(model.name, result).inc()
            _log.info(
                "parity_check",
                model=model.name,
                request_id=sent.request_id,
                path=sent.path.value,
                result=result,
                chars=sent.chars,
                tokens=sent.tokens,
                delay_us=sent.age_us(),
            )
            if not equal:
                model.doubt("the upstream's /tokenize gave other IDs than were sent")
        finally:
            self._busy.discard(model.upstream.name)

    async def _asked(self, model: ModelRuntime, sent: Sent, question: Question) -> bool:
        trusts = model.trusts
        try:
            status, reply = await model.upstream.ask("POST", "/tokenize", question.body, TIMEOUT_S)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, RuntimeError):  # the last: closed by a reload
            raise _Skipped(Skip.NO_ANSWER) from None
        if status in (401, 403, 404, 405, 501):
            self._resting[model.upstream.name] = time.monotonic() + REST_S
            raise _Skipped(Skip.NO_ROUTE)
        if status in (400, 422):
            raise _Skipped(Skip.NOT_COMPARABLE)
        if status != 200:
            raise _Skipped(Skip.NO_ANSWER)
        if model.trusts != trusts or model.state is not State.OK:
            raise _Skipped(Skip.DOUBTED)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._judged, sent, question.ids, reply)

    def _judged(self, sent: Sent, ours: Ids, reply: bytes) -> bool:
        theirs = _tokens(reply)
        if theirs is None:
            raise _Skipped(Skip.NO_ANSWER)
        equal = np.array_equal(theirs, ours)
        if not equal:
            self._on_different(sent, ours, theirs)
        return equal


def comparable(
    body: Mapping[str, Any], settings: config.Model, upstream: config.Upstream, traits: Traits | None = None
) -> bool:
    """Whether ``/tokenize`` renders a body that was prepared as the chat route does (invariant 1)."""
    if {upstream.token_field, settings.profile} != {"vllm"} or body.get("reasoning_effort") is not None:
        return False
    if settings.exclude_tools_when_tool_choice_none and body.get("tool_choice") == "none":
        return False
    return "reasoning_content" not in (traits or together(map(traits_of, body["messages"]))).contents


def _tokens(reply: bytes) -> Ids | None:
    """``tokens`` of a JSON reply, which `orjson` alone would parse in one go, holding the interpreter."""
    name = reply.find(b'"tokens"')
    start, end = reply.find(b"[", name) + 1, reply.find(b"]", name)
    if name < 0 or start <= 0 or end < start:
        return None
    parts = []
    try:
        while start < end:
            comma = reply.find(b",", min(start + _SLICE, end), end)
            stop = comma if comma >= 0 else end
            part = np.array(orjson.loads(b"[" + reply[start:stop] + b"]"))
            if part.dtype.kind not in "iu" or part.ndim != 1 or part.min() < 0 or part.max() >= 1 << 32:
                return None
            parts.append(part.astype(np.uint32))
            start = stop + 1
    except ValueError:
        return None
    return np.concatenate(parts) if parts else np.empty(0, np.uint32)
