"""A tier for tests of the HTTP part alone: one ID per character, and whatever fault a test wants."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from proxy.registry import Loaded
from toktier.reasons import Cause, Path
from toktier.tier import Prepared, SessionBusy


def ids_of(body: Mapping[str, Any]) -> list[int]:
    """What this pretended model's reference yields."""
    text = json.dumps([body["messages"], body.get("tools")], ensure_ascii=False)
    return [ord(c) % 1000 for c in text]


class FakeTier:
    """Deterministic; ``fault`` is raised instead, ``delay_s`` is slept first (in the caller's thread).

    ``busy``: another request holds the session, as a caller is told that does not want to wait.
    """

    def __init__(self) -> None:
        self.fault: BaseException | None = None
        self.delay_s = 0.0
        self.calls: list[tuple[str, str | None]] = []
        self.wrong = False
        self.busy = False

    def prepare(
        self, tenant: str, body: Mapping[str, Any], hint: str | None = None, *, wait: bool = True, **_: object
    ) -> Prepared:
        self.calls.append((tenant, hint))
        if tenant != "toktier-probe":
            if self.busy and not wait:
                raise SessionBusy
            time.sleep(self.delay_s)
            if self.fault is not None:
                raise self.fault
        ids = np.array(ids_of(body), np.uint32)
        if self.wrong:
            ids = ids[:-1]
        return Prepared(
            ids=ids,
            texts=(json.dumps(body["messages"]),),
            path=Path.INIT,
            cause=Cause.NONE,
            full=None,
            messages=len(body["messages"]),
            chars=len(ids),
            scanned=len(ids),
            common=0,
            first_changed=0,
            lost_reuse_tokens=0,
            first_changed_message=None,
            session="s",
            stages={"normalise": 1, "render": 1, "match": 1, "splice": 1},
            control_tokens=0,
            tokenizer_digest="t",
            template_digest="c",
        )

    def load(self, *_: object) -> Loaded:
        return Loaded(self, 1000, {"fake": "1"})
