"""The embedded engine: a server with vLLM's chat contract and no model, for the demo and for tests.

Invariants
* It is a simulator and says so: in `/version`, in `/v1/models`, in its log.
* It shares no code with TokTier's rendering or tokenization: prompts that come as text are rendered, and IDs that come
  are compared, by transformers in a process of its own (`proxy/embedded_check.py`).
* A mismatch never changes a reply. It is logged as an error, counted, and kept: `GET /simulator/verdicts`.
* What it accepts and refuses of IDs is what vLLM 0.32 does: `kv_transfer_params.prompt_token_ids` is validated, and
  ignored where `echo` is set or a message holds media.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import time
import uuid
from collections import Counter, deque
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

from aiohttp import web
from aiohttp.typedefs import Handler

from proxy.embedded_checker import Checker, CheckerFailed
from proxy.embedded_script import Script, Turn
from proxy.embedded_wire import Reply, encode, error_body, pieces

LOG = logging.getLogger("toktier.simulator")
NAME = "toktier-simulator"
VLLM_VERSION = "0.32.0"
"""The vLLM version whose contract this is; told in `/version`, beside the simulator's own name."""

ID_PARAM = "kv_transfer_params.prompt_token_ids"
TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal", "thinking", "tool_reference"})
MEDIA_KEYS = frozenset(
    {"image_url", "input_image", "image_pil", "image_embeds", "audio_url", "input_audio", "audio_embeds"}
    | {"video_url", "video_embeds", "prompt_embeds"}
)
MAX_BODY = 1 << 28
KEPT_VERDICTS = 100_000
MAX_CHOICES = 16_384


class Refusal(Exception):
    """A request that is answered with an error of vLLM's shape."""

    def __init__(self, message: str, param: str | None = None, *, code: int = 400, kind: str = "BadRequestError"):
        super().__init__(message)
        self.code = code
        self.body = error_body(message, kind, code, param)


@dataclass
class Verdict:
    """What one chat request brought and how its IDs compare with the reference.

    ``form``: "ids" (compared), "text" (no IDs came), "ignored" (IDs came with media or echo) or "probe" (one token is
    asked for and the IDs repeat a single one, as no chat prompt does: a question whether IDs are honoured). ``exact``
    is None where nothing was compared, and until the comparison is done.
    """

    request_id: str
    response_id: str
    form: str
    stream: bool
    salted: bool
    tokens: int = 0
    reference_tokens: int | None = None
    exact: bool | None = None
    first_difference: int | None = None
    same_text: bool | None = None
    problem: str | None = None


def has_media(messages: Any) -> bool:
    """Whether a message holds a content part that is not text (vLLM's ``has_non_text_content``)."""
    parts = (
        part
        for message in messages
        if isinstance(message, dict) and isinstance(message.get("content"), list)
        for part in message["content"]
    )
    return any(
        isinstance(part, dict) and (part.get("type", "text") not in TEXT_PARTS or MEDIA_KEYS & part.keys())
        for part in parts
    )


class EmbeddedEngine:
    """The server. ``async with EmbeddedEngine(...) as engine`` listens on ``engine.url`` until the block ends."""

    def __init__(
        self,
        *,
        model: str = "toktier-demo",
        script: Script | None = None,
        tokenizer: Path | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        max_model_len: int = 1 << 20,
    ) -> None:
        self.model = model
        self.script = script or Script()
        self.verdicts: deque[Verdict] = deque(maxlen=KEPT_VERDICTS)
        self.counters: Counter[str] = Counter()
        self.max_model_len = max_model_len
        self._folder = tokenizer or Path(str(files("toktier").joinpath("data", "qwen3")))
        self._host, self._port = host, port
        self._comparisons: set[asyncio.Task[None]] = set()
        self._checker: Checker
        self._runner: web.AppRunner

    async def __aenter__(self) -> Self:
        self._checker = await Checker.start(self._folder)
        # Cancelled handlers are how a departed client is noticed before anything is written to it.
        self._runner = web.AppRunner(self._app(), access_log=None, handler_cancellation=True, shutdown_timeout=1)
        try:
            await self._runner.setup()
            await web.TCPSite(self._runner, self._host, self._port).start()
        except BaseException:
            await self.__aexit__()
            raise
        LOG.warning(
            "%s listens on %s: no model answers here, only a script; prompts are checked with transformers %s",
            NAME,
            self.url,
            self._checker.transformers,
        )
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._runner.cleanup()
        for task in self._comparisons:
            task.cancel()
        await asyncio.gather(*self._comparisons, return_exceptions=True)
        await self._checker.close()

    @property
    def url(self) -> str:
        """Where it listens, without a path."""
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}"

    async def settled(self) -> None:
        """Wait until every comparison so far is done."""
        await asyncio.gather(*self._comparisons)

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY, middlewares=[self._errors])
        app.router.add_get("/health", self._health)
        app.router.add_get("/version", self._version)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/simulator/verdicts", self._verdicts)
        return app

    @web.middleware
    async def _errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except Refusal as refusal:
            self.counters["refused"] += 1
            return answer(refusal.body, refusal.code)
        except web.HTTPException as error:
            return answer(error_body(error.reason, "NotFoundError", error.status), error.status)
        except CheckerFailed as error:
            LOG.critical("%s", error)
            return answer(error_body(str(error), "InternalServerError", 500), 500)

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _request: web.Request) -> web.Response:
        return answer({"version": VLLM_VERSION, "engine": NAME, "transformers": self._checker.transformers})

    async def _models(self, _request: web.Request) -> web.Response:
        card = {"id": self.model, "object": "model", "created": 0, "owned_by": NAME, "root": NAME}
        return answer({"object": "list", "data": [{**card, "max_model_len": self.max_model_len}]})

    async def _verdicts(self, request: web.Request) -> web.Response:
        """Every verdict so far, or those of one ``request_id`` or ``response_id``, once they are settled."""
        await self.settled()
        wanted = request.query
        chosen = [
            asdict(v)
            for v in self.verdicts
            if all(wanted.get(key, value) == value for key, value in vars(v).items() if key.endswith("_id"))
        ]
        return answer({"verdicts": chosen, "counters": dict(self.counters)})

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        if "messages" in body:
            ids = await self._reference({"op": "chat", "body": body})
        elif isinstance(body.get("prompt"), str):
            special = bool(body.get("add_special_tokens", True))
            ids = await self._reference({"op": "text", "text": body["prompt"], "special": special})
        else:
            raise Refusal("either messages or prompt must be given", "prompt")
        self.counters["tokenize"] += 1
        return answer({"count": len(ids), "max_model_len": self.max_model_len, "tokens": ids, "token_strs": None})

    async def _reference(self, question: dict[str, Any]) -> list[int]:
        result = await self._checker.ask(question)
        if "refused" in result:
            raise Refusal(result["refused"], result["param"])
        ids: list[int] = result["ids"]
        return ids

    async def _body(self, request: web.Request) -> dict[str, Any]:
        try:
            body = json.loads(await request.read())
        except (ValueError, RecursionError) as error:
            raise Refusal("the body is not JSON", "body") from error
        if not isinstance(body, dict):
            raise Refusal("the body must be an object", "body")
        if body.get("model") not in (None, self.model):
            message = f"The model `{body['model']}` does not exist."
            raise Refusal(message, "model", code=404, kind="NotFoundError")
        return body

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        self.counters["chat"] += 1
        body = await self._body(request)
        check_fields(body)
        request_id = request.headers.get("X-Request-Id") or uuid.uuid4().hex
        verdict = Verdict(
            request_id=request_id,
            response_id=f"chatcmpl-{request_id}",
            form="text",
            stream=bool(body.get("stream")),
            salted=body.get("cache_salt") is not None,
        )
        ids = await self._prompt(body, verdict)
        if len(ids) > self.max_model_len:
            raise Refusal(f"Input length ({len(ids)}) exceeds model's maximum context length ({self.max_model_len}).")
        self.verdicts.append(verdict)
        self.counters[verdict.form] += 1
        try:
            return await self._answer(request, body, verdict, ids)
        except (asyncio.CancelledError, ConnectionError):
            self.counters["client_gone"] += 1
            LOG.info("request %s: the client left", request_id)
            raise

    async def _prompt(self, body: dict[str, Any], verdict: Verdict) -> list[int]:
        """The prompt's IDs: the request's own, to be compared in the background, or the rendered messages'."""
        transfer = body.get("kv_transfer_params")
        ids = transfer.pop("prompt_token_ids", None) if isinstance(transfer, dict) else None
        if ids is not None and (body.get("echo") or has_media(body["messages"])):
            verdict.form, ids = "ignored", None
        if ids is None:
            ids = await self._reference({"op": "chat", "body": body})
        else:
            check_ids(ids, self._checker.vocab_size)
            verdict.form = "probe" if body.get("max_tokens") == 1 and len(set(ids)) == 1 else "ids"
            if verdict.form == "ids":
                task = asyncio.create_task(self._compare(body, ids, verdict))
                self._comparisons.add(task)
                task.add_done_callback(self._comparisons.discard)
        verdict.tokens = len(ids)
        return ids

    async def _compare(self, body: dict[str, Any], ids: list[int], verdict: Verdict) -> None:
        result = await self._checker.ask({"op": "check", "body": body, "ids": ids})
        if "refused" in result:
            verdict.exact, verdict.problem = False, "the reference refuses these messages"
        else:
            verdict.reference_tokens = result["tokens"]
            verdict.first_difference = result["first_difference"]
            verdict.same_text = result["same_text"]
            verdict.exact = verdict.first_difference is None
        self.counters["exact" if verdict.exact else "mismatched"] += 1
        if not verdict.exact:
            LOG.error(
                "MISMATCH request %s: %s",
                verdict.request_id,
                verdict.problem
                or f"{verdict.tokens} IDs came, the reference has {verdict.reference_tokens}; "
                f"first difference at {verdict.first_difference}, same text: {verdict.same_text}",
            )

    async def _answer(
        self, request: web.Request, body: dict[str, Any], verdict: Verdict, ids: list[int]
    ) -> web.StreamResponse:
        turn = self.script.choose(body["messages"])
        failure = turn.failures.pop(0) if turn.failures and verdict.form != "probe" else None
        if turn.delay_s:
            await asyncio.sleep(turn.delay_s)
        if failure and failure.cut_after is None:
            self.counters["scripted_failures"] += 1
            fault = error_body(failure.message, "InternalServerError", failure.status)
            return answer(fault, failure.status, failure.headers)
        reply = self._reply(body, turn, verdict.response_id, ids)
        if not body.get("stream"):
            await asyncio.sleep(turn.piece_delay_s * len(reply.deltas))
            return answer(reply.whole())
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for number, event in enumerate(reply.events()):
            if failure and number == failure.cut_after:
                self.counters["scripted_failures"] += 1
                if request.transport is not None:
                    request.transport.abort()
                return response
            await response.write(event)
            if turn.piece_delay_s:
                await asyncio.sleep(turn.piece_delay_s)
        await response.write_eof()
        return response

    def _reply(self, body: dict[str, Any], turn: Turn, response_id: str, ids: list[int]) -> Reply:
        deltas = pieces(turn, body)
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        cut = isinstance(limit, int) and limit < len(deltas)
        calls = any("tool_calls" in delta for delta in deltas)
        options = body.get("stream_options") or {}
        return Reply(
            request_id=response_id,
            created=int(time.time()),
            model=self.model,
            choices=body.get("n") or 1,
            deltas=deltas[:limit] if cut else deltas,
            finish_reason="length" if cut else "tool_calls" if calls else "stop",
            prompt_tokens=len(ids),
            prompt_ids=ids if body.get("return_token_ids") else None,
            include_usage=bool(options.get("include_usage")),
            continuous_usage=bool(options.get("include_usage") and options.get("continuous_usage_stats")),
        )


def answer(body: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """A JSON response."""
    return web.Response(body=encode(body), status=status, headers=headers, content_type="application/json")


def check_fields(body: dict[str, Any]) -> None:
    """The refusals that vLLM makes before it looks at the prompt, as far as clients meet them."""
    if not isinstance(body.get("messages"), list):
        raise Refusal("messages must be a list", "messages")
    if body.get("tools") == []:
        raise Refusal("`tools` must not be an empty array.", "tools")
    if body.get("tool_choice") not in (None, "none") and not body.get("tools"):
        raise Refusal("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if body.get("stream_options") and not body.get("stream"):
        raise Refusal("Stream options can only be defined when `stream=True`.", "stream_options")
    if body.get("continue_final_message") and body.get("add_generation_prompt"):
        raise Refusal("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
    n = body.get("n")
    if n is not None and (type(n) is not int or not 1 <= n <= MAX_CHOICES):
        raise Refusal(f"n must be an integer from 1 to {MAX_CHOICES}", "n")
    salt = body.get("cache_salt")
    if salt is not None and (not isinstance(salt, str) or not 1 <= len(salt) <= 1024):
        raise Refusal("cache_salt must be a string of 1 to 1024 characters", "cache_salt")


def check_ids(ids: Any, vocab_size: int) -> None:
    """vLLM 0.32's validation of IDs on the chat route. A bool is no integer there."""
    if not isinstance(ids, list) or not ids or any(type(token) is not int or token < 0 for token in ids):
        message = "`kv_transfer_params['prompt_token_ids']` must be a non-empty list of non-negative integers."
        raise Refusal(message, ID_PARAM)
    if (highest := max(ids)) >= vocab_size:
        raise Refusal(f"Token id {highest} is out of vocabulary", ID_PARAM)


def run(*, host: str = "127.0.0.1", port: int = 8000, script: Path | None = None, model: str = "toktier-demo") -> None:
    """`toktier embedded`: serve until interrupted. Writes one JSON line with the address once it listens.

    Ends the process with a sentence where the script is wrong, the address is taken or transformers is missing.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        replies = Script.load(script) if script else None
        asyncio.run(_serve(EmbeddedEngine(model=model, script=replies, host=host, port=port)))
    except (CheckerFailed, OSError, ValueError) as error:
        raise SystemExit(f"toktier embedded: {error}") from None


async def _serve(engine: EmbeddedEngine) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with engine:
        print(json.dumps({"event": "listening", "engine": NAME, "url": engine.url}), flush=True)
        await ended.wait()
    LOG.info("%s has ended", NAME)
