"""Before IDs are sent to an upstream, and again after every doubt: does it honour them, and are ours the engine's own?

Four questions, in order (a few short requests, ``max_tokens: 1``):
1. Version. vLLM takes IDs on chat from 0.27 on.
2. Does it serve the model?
3. Are IDs honoured? Messages and IDs of other, known lengths are sent together; an engine that counts as many prompt
   tokens as IDs were sent, for two lengths, did not render the messages.
4. Are our IDs the engine's? A few conversations, tools among them, are compared with ``/tokenize``; where an engine has
   no such route, ``usage.prompt_tokens`` of each as text and as IDs.

Invariant: an answer that could be wrong is no answer. What is not clearly yes leaves the model in text mode, and what
may pass by itself (an engine that is down, loading or busy) is asked again.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import aiohttp
import numpy as np
import orjson
import structlog

from proxy.changes import ID_PATHS
from proxy.marks import Marks, marks_of, steady
from proxy.registry import ModelRuntime, State
from proxy.workers import Workers
from toktier.errors import TokTierError, Unrenderable, is_failure
from toktier.ids import Ids, shared_prefix
from toktier.reasons import Bypass
from toktier.tier import ModelTier

_log = structlog.get_logger("toktier.probe")

OLDEST_VLLM = (0, 27)
QUICK_S = 5.0
"""For answers that need no model."""
SLOW_S = 120.0
"""For one token of a busy engine."""
FIRST_RETRY_S = 0.25
LAST_RETRY_S = 30.0
WATCH_S = 15.0
"""How often an upstream in use is asked whether it is still the same."""
TEXT_RETRY_S = 60.0
"""How often an upstream in text mode is probed again."""
PROBE_TENANT = "toktier-probe"
_PROBE_LENGTHS = (3, 17)
_PROBE_ID = 100
"""A plain ID that every vocabulary has."""

_TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Reads a file.",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}},
            "required": ["path"],
        },
    },
}
CONVERSATIONS: tuple[dict[str, Any], ...] = (
    {"messages": [{"role": "user", "content": "Is this the same text? 12345  \n\n\tx = f(y)  # naïve 你好 🫨"}]},
    {
        "messages": [
            {"role": "system", "content": "You are terse."},
            {"role": "user", "content": "First question"},
            {"role": "assistant", "content": "First answer\n"},
            {"role": "user", "content": [{"type": "text", "text": "Second"}, {"type": "text", "text": "question"}]},
        ]
    },
    {
        "messages": [
            {"role": "system", "content": "Use tools."},
            {"role": "user", "content": "What is in a.txt?"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "read_file", "arguments": '{"path":"a.txt","limit":10}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "hello\nworld\n"},
        ],
        "tools": [_TOOL],
    },
)
"""What parity is checked on. A conversation that a template cannot render is left out."""


class Later(Exception):
    """No answer yet; its text says why, for the log."""


class No(Exception):
    """The upstream must get text."""

    def __init__(self, reason: Bypass, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class Probe:
    """Asks one model's upstream. ``executor`` runs the tier."""

    def __init__(self, runtime: ModelRuntime, executor: Workers) -> None:
        self._runtime = runtime
        self._executor = executor
        self._seen: list[Marks] = []
        self._headers: Mapping[str, str] = {}

    @property
    def marks(self) -> Marks:
        """What all replies to the last run's chat requests say alike of the process that wrote them."""
        return steady(self._seen) if self._seen else Marks()

    async def identity(self) -> tuple[Any, ...]:
        """What the upstream says it is: version and the model's entry. Raises `Later`, and `No` for an old vLLM."""
        status, reply = await self._ask("GET", "/version", None, QUICK_S)
        version = reply.get("version") if status == 200 and isinstance(reply, dict) else None
        if status not in (200, 401, 403, 404, 405):
            raise Later(f"GET /version: {status}")
        if "kv_transfer_params" in ID_PATHS[self._runtime.upstream.settings.token_field] and isinstance(version, str):
            number = re.match(r"(\d+)\.(\d+)", version)
            if number is not None and (int(number[1]), int(number[2])) < OLDEST_VLLM:
                raise No(Bypass.UPSTREAM_IGNORES_IDS, f"vLLM {number[0]} is older than 0.27")
        status, models = await self._ask("GET", "/v1/models", None, QUICK_S)
        if status in (401, 403):
            raise Later(f"GET /v1/models: {status}; set the upstream's api_key_file")
        listed = models.get("data") if status == 200 and isinstance(models, dict) else None
        if not isinstance(listed, list):
            raise Later(f"GET /v1/models: {status}")
        for entry in listed:
            if isinstance(entry, dict) and entry.get("id") == self._runtime.probe_name:
                steady = {k: v for k, v in entry.items() if k in ("id", "root", "owned_by", "max_model_len")}
                return (version, json.dumps(steady, sort_keys=True))
        raise Later("the upstream does not list the model (served_name?)")

    async def run(self, identity: tuple[Any, ...]) -> None:
        """The other questions, of the upstream that answered the first two with ``identity``. Raises `Later`, `No`."""
        self._seen.clear()
        tier = self._runtime.tier
        if isinstance(tier, ModelTier):
            tier.settings = replace(tier.settings, engine_version=identity[0])
            self._runtime.renders_as(tier.settings)
        await self._honours_ids()
        await self._parity()
        if await self.identity() != identity:
            raise Later("the upstream changed while it was probed")

    async def _honours_ids(self) -> None:
        message = {"messages": [{"role": "user", "content": "."}]}
        for length in _PROBE_LENGTHS:
            counted = await self._count(message, np.full(length, _PROBE_ID, np.uint32))
            if counted != length:
                raise No(Bypass.UPSTREAM_IGNORES_IDS, f"sent {length} IDs, the upstream counted {counted}")

    async def _parity(self) -> None:
        tier = self._runtime.tier
        assert tier is not None
        tokenize = True
        compared = quarantined = 0
        for number, conversation in enumerate(CONVERSATIONS):
            body = {"model": self._runtime.probe_name, **conversation}
            try:
                prepared = await self._executor.run(partial(tier.prepare, PROBE_TENANT, body), SLOW_S)
            except Unrenderable as error:
                quarantined += error.bypass is Bypass.QUARANTINED
                _log.info("probe_skipped", model=self._runtime.name, conversation=number, reason=error.bypass.value)
                continue
            except TimeoutError:
                raise No(Bypass.PREPARE_TIMEOUT, f"conversation {number}") from None
            except TokTierError as error:
                raise No(Bypass.UPSTREAM_PARITY, f"conversation {number}: {type(error).__name__}") from None
            ids = prepared.ids
            if tokenize:
                theirs = await self._tokenize(body)
                if theirs is not None:
                    _compare(number, ids, theirs)
                    compared += 1
                    continue
                tokenize = False
            as_text = await self._count(conversation, None)
            if as_text is None:
                _log.info("probe_skipped", model=self._runtime.name, conversation=number, reason="refused_as_text")
                continue
            as_ids = await self._count(conversation, ids)
            if not as_text == as_ids == len(ids):
                raise No(
                    Bypass.UPSTREAM_PARITY,
                    f"conversation {number}: {len(ids)} IDs here, {as_text} as text and {as_ids} as IDs there",
                )
            compared += 1
        if not compared and not quarantined:  # the other paths of a model may be trusted
            raise No(Bypass.UPSTREAM_PARITY, "no probe conversation could be compared")

    async def _tokenize(self, body: dict[str, Any]) -> Ids | None:
        """The upstream's own IDs, or None where it has no route for that."""
        status, reply = await self._ask("POST", "/tokenize", {**body, "add_generation_prompt": True}, SLOW_S)
        tokens = reply.get("tokens") if status == 200 and isinstance(reply, dict) else None
        if isinstance(tokens, list):
            return np.array(tokens, dtype=np.uint32)
        if status == 429 or (status >= 500 and status != 501):
            raise Later(f"POST /tokenize: {status}")
        return None

    async def _count(self, conversation: dict[str, Any], ids: Ids | None) -> int | None:
        """``usage.prompt_tokens`` of the conversation, with ``ids`` beside the messages unless None.

        None when the upstream refuses the conversation as text, so that nothing can be compared.
        """
        upstream = self._runtime.upstream
        body: dict[str, Any] = {"model": self._runtime.probe_name, **conversation, "max_tokens": 1, "temperature": 0}
        if ids is not None:
            name, *inner = ID_PATHS[upstream.settings.token_field]
            body[name] = {inner[0]: ids.tolist()} if inner else ids.tolist()
        status, reply = await self._ask("POST", "/v1/chat/completions", body, SLOW_S)
        if status in (400, 422):
            if ids is None:
                return None
            raise No(Bypass.UPSTREAM_IGNORES_IDS, f"the upstream answered {status} to IDs")
        if status != 200:
            raise Later(f"POST /v1/chat/completions: {status}")
        self._seen.append(marks_of(self._headers, reply))
        usage = reply.get("usage") if isinstance(reply, dict) else None
        count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        if not isinstance(count, int):
            raise No(Bypass.UPSTREAM_IGNORES_IDS, "the upstream's reply has no usage.prompt_tokens")
        return count

    async def _ask(self, method: str, path: str, body: Any, timeout_s: float) -> tuple[int, Any]:
        """Status and JSON value (None for anything else). Raises `Later` when there was no answer."""
        raw = None if body is None else orjson.dumps(body)
        try:
            status, reply, self._headers = await self._runtime.upstream.question(method, path, raw, timeout_s)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            self._runtime.reachable = False
            raise Later(f"{method} {path}: {type(error).__name__}") from None
        self._runtime.reachable = True
        try:
            return status, orjson.loads(reply)
        except orjson.JSONDecodeError:
            return status, None


def _compare(number: int, ours: Ids, theirs: Ids) -> None:
    if np.array_equal(ours, theirs):
        return
    first = shared_prefix(ours, theirs)
    raise No(
        Bypass.UPSTREAM_PARITY,
        f"conversation {number}: {len(ours)} IDs here, {len(theirs)} there, first difference at {first}",
    )


class LookAgain(Protocol):
    """Looks at the model's files, or at its certificate. Raises `No`."""

    async def __call__(self, *, check: bool) -> None: ...


async def keep_watched(runtime: ModelRuntime, probe: Probe) -> None:
    """For a model in text mode by configuration: only whether its upstream answers. Ends only by cancellation."""
    while True:
        try:
            await probe.identity()
        except (Later, No):
            pass
        except Exception:
            _log.exception("probe_failed", model=runtime.name)
        await asyncio.sleep(WATCH_S if runtime.reachable else FIRST_RETRY_S * 4)


async def keep_probed(
    runtime: ModelRuntime,
    probe: Probe,
    look_again: LookAgain,
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Runs for the life of the model: probes it, watches it, probes it again. Ends only by cancellation.

    When another process than the last one may listen, the model's files are read again beside the probe, and its
    certificate is checked again afterwards: that takes time, and says nothing of the engine.
    """
    retry = FIRST_RETRY_S
    identity: tuple[Any, ...] | None = None
    while True:
        runtime.recheck.clear()
        try:
            if runtime.state is State.OK and identity is not None:
                if await probe.identity() == identity:
                    await _rest(runtime, WATCH_S)
                    continue
                runtime.set_unprobed("the upstream's version or model changed")
            await runtime.upstream.lookout.ready()
            found = await probe.identity()
            other = runtime.replaced or identity not in (None, found)
            if other:
                if not await _probe_and_read(runtime, probe, found, look_again):
                    continue
            else:
                await probe.run(found)
            identity = found
            if not runtime.recheck.is_set():
                runtime.set_ok(probe.marks)
            retry = FIRST_RETRY_S
            if other:
                probed = runtime.tier
                await look_again(check=True)
                if runtime.tier is not probed:
                    continue  # its certificate was contradicted: the one without waits for a probe
            # A state that keeps being doubted (a balancer before unlike engines) is restored ever more slowly.
            await _rest(runtime, WATCH_S)
            if runtime.doubts > 1:
                await sleep(min(LAST_RETRY_S, FIRST_RETRY_S * 2 ** min(runtime.doubts, 16)))
        except Later as error:
            runtime.set_unprobed(str(error))
            await sleep(retry)
            retry = min(LAST_RETRY_S, retry * 2)
        except No as error:
            runtime.set_text(error.reason, error.detail)
            await _rest(runtime, TEXT_RETRY_S)
            await sleep(FIRST_RETRY_S)
        except BaseException as error:  # the probe itself is at fault: text mode, and no end of the task
            if not is_failure(error):
                raise
            _log.exception("probe_failed", model=runtime.name)
            runtime.set_text(Bypass.INTERNAL_ERROR, type(error).__name__)
            await sleep(TEXT_RETRY_S)


async def _probe_and_read(
    runtime: ModelRuntime, probe: Probe, identity: tuple[Any, ...], look_again: LookAgain
) -> bool:
    """Both at once: each takes its time on a busy machine. False where the files have changed, so that it was the old
    ones that were probed."""
    before = runtime.tier
    reading = asyncio.create_task(_read_again(runtime, look_again))
    try:
        await probe.run(identity)
    finally:
        await asyncio.gather(reading, return_exceptions=True)
    reading.result()
    return runtime.tier is before


async def _read_again(runtime: ModelRuntime, look_again: LookAgain) -> None:
    runtime.replaced = False
    try:
        await look_again(check=False)
    except BaseException:
        runtime.replaced = True
        raise


async def _rest(runtime: ModelRuntime, seconds: float) -> None:
    """Until ``seconds`` have passed or someone doubts."""
    try:
        async with asyncio.timeout(seconds):
            await runtime.recheck.wait()
    except TimeoutError:
        return
