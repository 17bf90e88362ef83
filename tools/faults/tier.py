"""A tier that sends wrong IDs now and then: faults are put in between splice and forward, and written down.

It stands around the real tier of a proxy that is otherwise the real one (`tools.faults.proxy`). What the tier keeps of
a session stays right; only what one request carries is wrong.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import orjson

from proxy.probe import PROBE_TENANT
from toktier.ids import Ids
from toktier.known import Source
from toktier.reasons import FullEncode
from toktier.template import ChatTemplate
from toktier.tier import ModelTier, Prepared
from tools.faults.kinds import Faults, Kind, Vocabulary
from tools.faults.plan import Plan

KEPT = 4096
"""Sessions whose last IDs are remembered."""


@dataclasses.dataclass(frozen=True)
class Injection:
    """One fault, as it is written down: a line of JSON each."""

    request_id: str
    model: str
    kind: Kind
    path: str
    tokens: int
    """IDs that were right."""
    sent: int
    """IDs that were sent."""
    at: float
    """`time.time` of the injection."""


class Injector:
    """Decides by a plan which requests get a fault, and of which kind, and writes each down.

    Which requests, and the order in which kinds are tried, is a function of the seed and the request's id.
    """

    def __init__(self, todo: Plan) -> None:
        self._rate = todo.rate
        self._seed = todo.seed
        self._kinds = list(todo.kinds)
        self._spare = todo.spare_reference
        self._warm_up = todo.warm_up
        self._file = todo.file.open("ab", buffering=0)
        self._lock = threading.Lock()
        self._last: OrderedDict[tuple[str, str], Ids] = OrderedDict()

    def apply(
        self,
        tier: FaultyTier,
        prepared: Prepared,
        whole: Callable[[], Mapping[str, Any]],
        request_id: str,
        session: str,
    ) -> Prepared:
        """``prepared``, or a copy of it with wrong IDs. ``whole`` gives the body with all its messages."""
        rng = Random(f"{self._seed}/{request_id}")
        chosen = rng.random() < self._rate
        kinds = rng.sample(self._kinds, len(self._kinds))
        with self._lock:
            self._warm_up -= 1
            early = self._warm_up >= 0
        earlier, other = self._exchange(tier.name, session, prepared.ids, rng)
        spared = self._spare and prepared.full is FullEncode.QUARANTINED
        if not chosen or spared or early:
            return prepared
        for kind in kinds:
            changes, in_place = tier.otherwise(whole()) if kind is Kind.WRONG_TEMPLATE else ({}, other)
            wrong = tier.faults.make(kind, prepared.ids, rng, earlier=earlier, other=in_place)
            if wrong is not None:
                wrong.flags.writeable = False
                sizes = len(prepared.ids), len(wrong)
                self._note(Injection(request_id, tier.name, kind, prepared.path.value, *sizes, time.time()))
                return dataclasses.replace(prepared, ids=wrong, **changes)
        return prepared

    def _exchange(self, model: str, session: str, ids: Ids, rng: Random) -> tuple[Ids | None, Ids | None]:
        """The last IDs of this session and of another one of the model; ``ids`` are this session's last ones now."""
        key = model, session
        with self._lock:
            others = [one for one in self._last if one[0] == model and one != key]
            found = self._last.get(key), self._last[rng.choice(others)] if others else None
            self._last[key] = ids
            self._last.move_to_end(key)
            if len(self._last) > KEPT:
                self._last.popitem(last=False)
        return found

    def _note(self, injection: Injection) -> None:
        self._file.write(orjson.dumps(dataclasses.asdict(injection)) + b"\n")


class FaultyTier(ModelTier):
    """The tier of ``inner`` with faults. Requests name themselves in their body's ``user``, sessions in the hint."""

    def __init__(self, inner: ModelTier, injector: Injector, changed: ChatTemplate, vocabulary: Vocabulary) -> None:
        self.__dict__.update(inner.__dict__)
        self.faults = Faults(vocabulary)
        self._injector = injector
        self._changed = changed

    def prepare(self, tenant: str, body: Mapping[str, Any], hint: str | None = None, **more: Any) -> Prepared:
        more.pop("ready", None)  # what is sent is what comes out of here
        source: Source | None = more.get("source")
        prepared = super().prepare(tenant, body, hint, **more)
        request_id = body.get("user")
        if tenant == PROBE_TENANT or not isinstance(request_id, str):
            return prepared
        whole = source.again if source is not None and source.shared else lambda: body
        return self._injector.apply(self, prepared, whole, request_id, hint or request_id)

    def otherwise(self, body: Mapping[str, Any]) -> tuple[dict[str, Any], Ids]:
        """What the changed template makes of ``body``: fields of a `Prepared`, and the IDs."""
        text = self._changed.render(self.profile.normalise(body, self._changed, self.settings))
        return {"texts": (text,), "template_digest": self._changed.digest}, self.tokenizer.window.encode(text)


def changed_template(template: ChatTemplate) -> ChatTemplate:
    """``template`` as another revision might have it: no line end after a message. Raises ValueError if it has none."""
    source = template.source(tools=True)
    changed = source.replace("<|im_end|>\\n", "<|im_end|>")
    if changed == source:
        raise ValueError("the template ends no message with <|im_end|> and a line end")
    return ChatTemplate({"default": changed}, special_tokens=template.special_tokens)
