"""The models that clients may name, and what each of them can do at this moment.

Invariants
1. A model is found by its exact name or a listed alias, and by nothing else: no name reaches a file, a hub or a URL.
2. IDs are sent to a model only in state `State.OK`: its tokenizer is loaded, and the probe found, on the process that
   listens there now, that IDs are honoured and that ours are the engine's. Every other state forwards text, with a
   `Bypass` that says why.
3. Doubt ends the state at once (`ModelRuntime.doubt`); only a new probe brings it back.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from proxy import config
from proxy.beginnings import Beginnings
from proxy.marks import Marks
from proxy.upstream import Upstream
from toktier.reasons import Bypass

if TYPE_CHECKING:
    from toktier.known import Source
    from toktier.parity import Parity
    from toktier.profiles.base import ProfileSettings
    from toktier.shadow.job import Setup
    from toktier.tier import Prepared

_log = structlog.get_logger("toktier.registry")

FORGIVEN_S = 60.0
"""What a doubt says of an upstream that has served undoubted for so long since: nothing."""
REFUSALS_IN_A_ROW = 3
"""So many 400s about the ID field, one after the other, and the model goes to text mode until it is probed again."""


class State(StrEnum):
    """Whether IDs go to a model's upstream."""

    UNPROBED = "unprobed"
    OK = "ok"
    TEXT = "text"


class Tier(Protocol):
    """What a model needs of `toktier.tier.ModelTier`."""

    def prepare(
        self,
        tenant: str,
        body: Mapping[str, Any],
        hint: str | None = None,
        *,
        wait: bool = True,
        source: Source | None = None,
        ready: Callable[[list[bytes]], None] | None = None,
    ) -> Prepared: ...


class Begins(Protocol):
    """What takes long with its first use in a thread."""

    @property
    def begun(self) -> bool: ...

    def begin(self) -> None: ...


@dataclass(frozen=True)
class Loaded:
    """A model that can be repaired. ``vocab_size``: IDs from here on are out of the engine's range."""

    tier: Tier
    vocab_size: int
    versions: Mapping[str, str]
    """Of the encoding engines, by name."""
    control: re.Pattern[bytes] | None = None
    """Finds the literal of any special token in UTF-8; None where there is none."""
    parity: Parity | None = None
    """What the comparison with transformers found; None where there was none."""
    again: Callable[[], Loaded | None] | None = None
    """Reads the model's files again: None where they are what they were, else what serves from now on. Seconds of work
    where they changed. Raises `CannotLoad`."""
    checked: Callable[[], Loaded | None] | None = None
    """Checks the certificate on other texts than at load: None where it holds, else what serves from now on. Up to a
    second of work. Raises `CannotLoad`."""
    setup: Setup | None = None
    """What another process loads to check the tier's work; None where it cannot."""
    trust_digest: str | None = None
    """What a quarantine of the tier's tokenizer is looked up by; None: by its digest."""
    certificate: str | None = None
    """Digest of the tokenizer's certificate; None where there is none."""
    window: Begins | None = None
    """The tier's window engine, where it is of that kind."""

    @property
    def begun(self) -> bool:
        """Whether the calling thread, which is the event loop's, may use the tier without waiting for that."""
        return self.window is None or self.window.begun


class CannotLoad(Exception):
    """The model is served as text. ``detail`` is for the operator."""

    def __init__(self, reason: Bypass, detail: str, *, final: bool) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.final = final
        """Whether only another configuration can help; else loading is tried again."""


class ModelRuntime:
    """One configured model: its tier when loaded, and its state."""

    def __init__(self, name: str, settings: config.Model, upstream: Upstream) -> None:
        self.name = name
        self.settings = settings
        self.upstream = upstream
        self.loaded: Loaded | None = None
        self.tier: Tier | None = None
        self.vocab_size: int | None = None
        """IDs from here on are out of range; None while no tokenizer says so."""
        self.versions: Mapping[str, str] = {}
        self.state = State.UNPROBED
        self.reason: Bypass | None = Bypass.UPSTREAM_UNPROBED
        self.detail: str | None = None
        """For the operator: why it is not in state OK. No text of any request."""
        self.reachable: bool | None = None
        """Whether the upstream answered when it was last asked; None before."""
        self.recheck = asyncio.Event()
        """Set to have the probe run again soon."""
        self.doubts = 0
        """Times in a row that doubt ended state OK, each within `FORGIVEN_S`; the next probe waits longer."""
        self._ok_since = 0.0
        self.replaced = False
        """Whether another process may listen at the upstream than the one that was probed last: before the next probe
        the model's files are read again."""
        self.trusts = 0
        """How often the upstream was found to take our IDs: what was asked under another count is about the past."""
        self.marks = Marks()
        """Of the process that was probed last."""
        self.beginnings = Beginnings()
        self._refusals = 0
        if settings.mode == "text":
            self.set_text(Bypass.TEXT_MODE_CONFIGURED)
        elif settings.tokenizer is None:
            self.set_text(Bypass.TEXT_MODE_CONFIGURED, "no tokenizer is configured")

    def take(self, loaded: Loaded) -> None:
        """The tier is there; whether it may be used is for the probe to say."""
        self.loaded = loaded
        self.tier, self.vocab_size, self.versions = loaded.tier, loaded.vocab_size, loaded.versions
        self.set_unprobed("not probed yet")

    @property
    def probe_name(self) -> str:
        """The name that TokTier's own requests use for the model."""
        return self.settings.served_name or self.name

    @property
    def settled(self) -> bool:
        """Whether nothing is gained by making it anew from the same settings."""
        return self.state is State.OK or not self.wants_ids

    @property
    def wants_ids(self) -> bool:
        """Whether the configuration lets this model be repaired at all."""
        return self.settings.mode == "auto" and self.settings.tokenizer is not None

    def renders_as(self, settings: ProfileSettings) -> None:
        """The tier follows these settings from now on; so must a check of it."""
        if self.loaded is not None and self.loaded.setup is not None:
            self.loaded = replace(self.loaded, setup=replace(self.loaded.setup, settings=settings))

    def set_ok(self, marks: Marks | None = None) -> None:
        """The probe passed on a process whose replies bear ``marks``."""
        self.marks = marks or Marks()
        if self.state is not State.OK:
            self.trusts += 1
            self._ok_since = time.monotonic()
            _log.info("model_state", model=self.name, upstream=self.upstream.name, state="ok")
        self.state, self.reason, self.detail = State.OK, None, None
        self._refusals = 0

    def set_text(self, reason: Bypass, detail: str | None = None) -> None:
        """Text mode, loudly where the operator did not ask for it."""
        if (self.state, self.reason, self.detail) != (State.TEXT, reason, detail):
            say = _log.info if reason is Bypass.TEXT_MODE_CONFIGURED else _log.error
            fields = {"reason": reason.value, "detail": detail}
            say("model_state", model=self.name, upstream=self.upstream.name, state="text", **fields)
        self.state, self.reason, self.detail = State.TEXT, reason, detail

    def set_unprobed(self, detail: str) -> None:
        """Not known (any more) whether IDs may be sent."""
        if (self.state, self.detail) != (State.UNPROBED, detail):
            _log.warning("model_state", model=self.name, upstream=self.upstream.name, state="unprobed", detail=detail)
        self.state, self.reason, self.detail = State.UNPROBED, Bypass.UPSTREAM_UNPROBED, detail

    def doubt(self, detail: str) -> None:
        """Something happened that the last probe does not cover. Text until the next one."""
        if not self.wants_ids or self.reason is Bypass.TOKENIZER_UNAVAILABLE:
            return
        if self.state is State.OK:
            self._doubted()
            self.set_unprobed(detail)
        self.recheck.set()

    def _doubted(self) -> None:
        if time.monotonic() - self._ok_since > FORGIVEN_S:
            self.doubts = 0
        self.doubts += 1

    def suspect(self, detail: str) -> None:
        """Another process may listen at the upstream from now on."""
        self.replaced = True
        self.doubt(detail)

    def answered(self, status: int, marks: Marks) -> bool:
        """What a reply to a request that names `probe_name` says of the process that wrote it.

        False where that is seen to be another one than the probe asked.
        """
        if self.state is not State.OK:
            return True
        if status == 404:
            self.suspect("the upstream does not know the model any more")
        elif status == 200 and (mark := self.marks.differs(marks)) is not None:
            self.suspect(f"a reply bears another {mark} than those to the probe")
        else:
            return True
        return False

    def refused(self) -> None:
        """The upstream answered 400 about the IDs."""
        self._refusals += 1
        if self._refusals >= REFUSALS_IN_A_ROW and self.state is State.OK:
            self._doubted()
            self.set_text(Bypass.UPSTREAM_REFUSED_IDS, f"{self._refusals} refusals in a row")
            self.recheck.set()

    def accepted(self) -> None:
        """The upstream took the IDs."""
        self._refusals = 0

    def counted(self, equal: bool) -> None:
        """Whether ``usage.prompt_tokens`` was the number of IDs sent."""
        if equal:
            self.doubts = 0
        else:
            self.doubt("usage.prompt_tokens is not the number of IDs sent")


class Registry:
    """All upstreams and models of one configuration. Immutable but for the models' states.

    A registry and the one that follows it may have upstreams and models in common (`Registry.__init__`).
    """

    def __init__(self, settings: config.Settings, before: Registry | None = None) -> None:
        """Inside a running event loop. Raises OSError when an upstream's key file cannot be read.

        What ``before`` has and ``settings`` say again is taken over: upstreams with their connections, and on these
        the models that are settled, in their state.
        """
        self.upstreams: dict[str, Upstream] = {}
        self.models: dict[str, ModelRuntime] = {}
        self._served: dict[Upstream, list[ModelRuntime]] = {}
        """By upstream, the models that hear of what befalls it: of all registries that have it in common."""
        for name, upstream in settings.upstreams.items():
            old = None if before is None else before.upstreams.get(name)
            if before is not None and old is not None and old.serves(upstream):
                self.upstreams[name], self._served[old] = old, before._served[old]
            else:
                self.upstreams[name] = self._new_upstream(name, upstream)
        self.default = self.upstreams.get(settings.default_upstream or "")
        self._by_name: dict[str, ModelRuntime] = {}
        for name, model in settings.models.items():
            runtime = None if before is None else before.models.get(name)
            at = self.upstreams[model.upstream]
            if runtime is None or runtime.upstream is not at or runtime.settings != model or not runtime.settled:
                runtime = ModelRuntime(name, model, at)
                self._served[at].append(runtime)
            self.models[name] = runtime
            for alias in (name, *model.aliases):
                self._by_name[alias] = runtime
        self._longest = max(map(len, self._by_name), default=0)

    def find(self, name: object) -> ModelRuntime | None:
        """The model that a client named, or None."""
        if not isinstance(name, str) or len(name) > self._longest:  # to hash 60 MB takes longer than a request may
            return None
        return self._by_name.get(name)

    async def close(self, living: Collection[Registry] = ()) -> None:
        """Close every upstream connection, but for upstreams that ``living`` registries have too."""
        upstreams = {upstream for one in living for upstream in one.upstreams.values()}
        models = {model for one in living for model in one.models.values()}
        for served in self._served.values():
            served[:] = [model for model in served if model in models]
        await asyncio.gather(*(one.close() for one in self.upstreams.values() if one not in upstreams))

    def states(self) -> dict[str, str]:
        """Each upstream's state for the metrics: ok when all its models are, else the first that is not."""
        out: dict[str, str] = {}
        for runtime in self.models.values():
            name = runtime.upstream.name
            if out.get(name, State.OK) == State.OK:
                out[name] = runtime.state.value
        return out

    def _new_upstream(self, name: str, settings: config.Upstream) -> Upstream:
        upstream = Upstream(name, settings)
        served = self._served[upstream] = []

        def for_models(tell: Callable[[ModelRuntime, str], None], detail: str) -> Callable[[], None]:
            def told() -> None:
                for runtime in served:
                    tell(runtime, detail)

            return told

        upstream.on_failure = for_models(ModelRuntime.doubt, "a connection to the upstream failed")
        upstream.lookout.on_gone = for_models(ModelRuntime.suspect, "the upstream ended the connection that watches it")
        return upstream
