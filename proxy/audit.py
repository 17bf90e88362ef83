"""What is known of one request, and the one line that the log keeps of it.

Invariants
1. The record holds no prompt or reply text, no credential and no list of IDs: only names from the configuration,
   members of enums, numbers, digests and HMACs. `proxy.logs` refuses what is neither short nor plain a second time.
2. Every request gets exactly one line, whatever becomes of it (`emit` writes once).
3. `docs/log-schema.md` lists the fields below, and a test compares the two. A field that changes its meaning or goes
   raises `SCHEMA`; a new field does not.

Two accounts are never mixed: ``served_chars`` is context delivered to the engine as IDs, ``scanned_chars`` is text that
was actually encoded for it.
"""

from __future__ import annotations

import dataclasses
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import structlog

from toktier.reasons import Bypass, Cause, FullEncode, FullRender, Gpu, Path
from toktier.shortcuts import Way

if TYPE_CHECKING:
    from toktier.tier import Prepared

SCHEMA = 1
"""Version of the log's schema, on every line."""

STAGES = ("read", "parse", "normalise", "match", "render", "splice", "serialise", "connect", "ttfb", "total")
"""Keys of `RequestRecord.stages_us`, in the order in which they happen. ``ttfb`` is counted from the send."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_log = structlog.get_logger("toktier.request")


class Flag(StrEnum):
    """Something unusual that happened to a request. Several may hold."""

    CLIENT_GONE = "client_gone"
    CLIENT_STALLED = "client_stalled"
    INCOMPLETE_STREAM = "incomplete_stream"
    CONTROL_TOKEN_IN_CONTENT = "control_token_in_content"  # noqa: S105 - no password
    IDS_REFUSED_RETRY = "ids_refused_retry"
    CONNECTION_RETRY = "connection_retry"
    UPSTREAM_UNREACHABLE = "upstream_unreachable"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    ERROR_UNDER_200 = "error_under_200"


def request_id(given: str | None) -> str:
    """The client's X-Request-Id where it is a plain identifier, else a new one. Free text never reaches the log."""
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given
    return secrets.token_hex(16)


@dataclass(slots=True)
class RequestRecord:
    """One request. The handlers fill it in along the way; what stays None is not known or has no meaning here."""

    request_id: str
    route: str
    """The route's pattern, never the path that the client sent."""
    tenant: str | None = None
    """HMAC, as `Tenant.id_hash`."""
    session: str | None = None
    """HMAC or hash of the session."""
    model: str | None = None
    """Name from the configuration. A name that is not configured is never recorded."""
    upstream: str | None = None
    path: Path | None = None
    bypass: Bypass | None = None
    bypass_detail: str | None = None
    """The construct that led to the bypass, without any of the client's text."""
    error: str | None = None
    """Code of the error that TokTier itself answered with."""
    cause: Cause | None = None
    full: FullEncode | None = None
    encoded: Way | None = None
    full_render: FullRender | None = None
    iterations: int | None = None
    """Iterations of the template's folded loops that ran; None where the whole template did, unfolded."""
    gpu: Gpu | None = None
    """What a GPU did for the text that was encoded; None where nothing was, or there is no GPU."""
    stream: bool | None = None
    messages: int | None = None
    chars: int | None = None
    """Characters of the rendered context."""
    served_chars: int | None = None
    scanned_chars: int | None = None
    tokens: int | None = None
    """IDs sent."""
    first_changed: int | None = None
    """Leading IDs shared with the session's last ones: what the engine's prefix cache can use again."""
    lost_reuse_tokens: int | None = None
    """IDs of the session's last state after those: what the engine's prefix cache holds in vain."""
    first_changed_message: int | None = None
    """Index in the body of the first message that the session did not have."""
    common_chars: int | None = None
    """Leading characters that the rendered text shares with the session's last one."""
    control_tokens: int | None = None
    """Messages whose client-written text holds an added-token literal."""
    stages_us: dict[str, int] = field(default_factory=dict)
    """Microseconds by stage; the keys are `STAGES`."""
    upstream_status: int | None = None
    attempts: int = 0
    """Times that the request was sent upstream."""
    usage_prompt_tokens: int | None = None
    """What the engine counted."""
    prompt_tokens_equal: bool | None = None
    """Whether the engine counted as many prompt tokens as IDs were sent."""
    flags: set[Flag] = field(default_factory=set)
    tokenizer_digest: str | None = None
    template_digest: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of the encoding engines."""
    bytes_in: int | None = None
    """Of the request body as TokTier received it."""
    bytes_out: int | None = None
    """Of the reply's body."""
    status: int | None = None
    """What the client got; None when it left before anything was sent."""
    started_ns: int = field(default_factory=time.perf_counter_ns, repr=False, metadata={"logged": False})
    emitted: bool = field(default=False, repr=False, metadata={"logged": False})

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Adds the time inside the block to ``stages_us[name]``, also when it raises."""
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            self.add_stage(name, time.perf_counter_ns() - start)

    def add_stage(self, name: str, nanoseconds: int) -> None:
        """Adds to one stage. Raises ValueError for a name outside `STAGES`."""
        if name not in STAGES:
            raise ValueError(f"no stage {name!r}")
        self.stages_us[name] = self.stages_us.get(name, 0) + nanoseconds // 1000

    def take(self, prepared: Prepared) -> None:
        """Everything that the tier found out about the request."""
        self.path, self.cause, self.full = prepared.path, prepared.cause, prepared.full
        self.full_render, self.encoded, self.gpu = prepared.full_render, prepared.way, prepared.gpu
        self.session, self.messages = prepared.session, prepared.messages
        self.iterations = prepared.iterations
        self.chars = self.served_chars = prepared.chars
        self.scanned_chars, self.tokens = prepared.scanned, len(prepared.ids)
        self.first_changed, self.first_changed_message = prepared.first_changed, prepared.first_changed_message
        self.lost_reuse_tokens = prepared.lost_reuse_tokens
        self.common_chars = prepared.common
        self.tokenizer_digest, self.template_digest = prepared.tokenizer_digest, prepared.template_digest
        self.control_tokens = prepared.control_tokens
        if prepared.control_tokens:
            self.flags.add(Flag.CONTROL_TOKEN_IN_CONTENT)
        for name, microseconds in prepared.stages.items():
            self.add_stage(name, microseconds * 1000)

    def bypassed(self, reason: Bypass, detail: str | None = None) -> None:
        """The request goes upstream as text. Whatever was counted as served no longer is: no IDs are delivered."""
        self.path, self.bypass, self.bypass_detail = Path.BYPASS, reason, detail
        self.served_chars, self.tokens = 0, None

    def usage(self, prompt_tokens: int) -> None:
        """What the engine's reply says about the prompt. Compared only where IDs were sent."""
        self.usage_prompt_tokens = prompt_tokens
        if self.tokens is not None:
            self.prompt_tokens_equal = prompt_tokens == self.tokens

    def emit(self, status: int | None) -> None:
        """Writes the line, once; later calls do nothing. A warning where TokTier or the engine was at fault."""
        if self.emitted:
            return
        self.emitted = True
        self.status = status
        self.stages_us.setdefault("total", (time.perf_counter_ns() - self.started_ns) // 1000)
        wrong = self.prompt_tokens_equal is False or self.bypass is Bypass.INTERNAL_ERROR
        broken = self.flags & {Flag.INCOMPLETE_STREAM, Flag.ERROR_UNDER_200}
        bad = wrong or (status is not None and status >= 500) or bool(broken)
        (_log.warning if bad else _log.info)("request", **self.fields())

    def fields(self) -> dict[str, Any]:
        """The line's fields, all of them on every line, without what the log adds itself."""
        out = dict(zip(LOGGED, _logged(self), strict=True))
        out["flags"] = sorted(self.flags)
        return out


LOGGED = tuple(f.name for f in dataclasses.fields(RequestRecord) if f.metadata.get("logged", True))
"""Names of the fields on a request's line."""
_logged = attrgetter(*LOGGED)
