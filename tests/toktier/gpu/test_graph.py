"""What becomes of a graph whose making fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from toktier.gpu import graph
from toktier.gpu.graph import DriverError, capture

STREAM = SimpleNamespace(handle=7)


class Calls:
    """The driver's calls, by name; one of them fails. A capture that has ended leaves a graph."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.made: list[str] = []

    def __call__(self, name: str, *arguments: Any, quick: bool = False) -> None:
        self.made.append(name)
        if name == self.fails:
            raise DriverError(name, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED")
        if name == "cuStreamEndCapture":
            arguments[1]._obj.value = 99


def broken() -> None:
    raise DriverError("cuLaunchKernel", "CUDA_ERROR_OUT_OF_MEMORY")


@pytest.mark.parametrize(
    ("fails", "record", "want", "destroyed"),
    [
        ("", broken, "OUT_OF_MEMORY", True),
        ("cuStreamEndCapture", broken, "OUT_OF_MEMORY", False),
        ("cuStreamEndCapture", lambda: None, "INVALIDATED", False),
        ("cuGraphInstantiateWithFlags", lambda: None, "INVALIDATED", True),
    ],
)
def test_a_graph_that_is_of_no_use_is_destroyed(
    fails: str, record: Any, want: str, destroyed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(fails)
    monkeypatch.setattr(graph, "call", calls)
    with pytest.raises(DriverError, match=want):
        capture(STREAM, record)
    assert "cuStreamEndCapture" in calls.made
    assert ("cuGraphDestroy" in calls.made) == destroyed


def test_what_was_recorded_is_launched_and_freed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    monkeypatch.setattr(graph, "call", calls)
    made = capture(STREAM, lambda: calls("cuLaunchKernel"))
    made.launch(STREAM)
    made.close()
    made.close()
    assert calls.made[1:] == [
        "cuLaunchKernel",
        "cuStreamEndCapture",
        "cuGraphInstantiateWithFlags",
        "cuGraphDestroy",
        "cuGraphLaunch",
        "cuGraphExecDestroy",
    ]
