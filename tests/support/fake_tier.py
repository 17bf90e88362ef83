"""A tier for tests of the HTTP part alone: one ID per character, and whatever fault a test wants."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from proxy.registry import Loaded
from toktier.reasons import Cause, Path
from toktier.tier import Prepared, SessionBusy


def ids_of(body: Mapping[str, Any]) -> list[int]:
    """What this pretended model's reference yields."""
    text = json.dumps([body["messages"], body.get("tools")], ensure_ascii=False)
    return [ord(c) % 1000 for c in text]


HELD_S = 30.0
"""Longest wait at a gate: who cannot open it because it stands still itself goes on, and its test fails."""


class FakeTier:
    """Deterministic; ``fault`` is raised instead. ``late``: the fault comes when the IDs are ready.

    ``gate``: a request that finds one waits until it is set, in the caller's thread; ``held`` of them do.

    ``busy``: another request holds the session, as a caller is told that does not want to wait.
    """

    def __init__(self) -> None:
        self.fault: BaseException | None = None
        self.gate: threading.Event | None = None
        self.held = 0
        self._lock = threading.Lock()
        self.calls: list[tuple[str, str | None]] = []
        self.late = False
        self.wrong = False
        self.busy = False

    def prepare(
        self,
        tenant: str,
        body: Mapping[str, Any],
        hint: str | None = None,
        *,
        wait: bool = True,
        ready: Callable[[list[bytes]], None] | None = None,
        **_: object,
    ) -> Prepared:
        self.calls.append((tenant, hint))
        fault = self.fault if tenant != "toktier-probe" else None
        if tenant != "toktier-probe":
            if self.busy and not wait:
                raise SessionBusy
            if self.gate is not None:
                self._wait(self.gate)
        if fault is not None and not self.late:
            raise fault
        ids = np.array(ids_of(body), np.uint32)
        if self.wrong:
            ids = ids[:-1]
        prepared = Prepared(
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
        if ready is not None:
            ready(prepared.json())
        if fault is not None:
            raise fault
        return prepared

    def _wait(self, gate: threading.Event) -> None:
        with self._lock:
            self.held += 1
        gate.wait(HELD_S)
        with self._lock:
            self.held -= 1

    def load(self, *_: object) -> Loaded:
        return Loaded(self, 1000, {"fake": "1"})
