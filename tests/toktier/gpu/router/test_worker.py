"""One device and its tokenizers: which of them it serves, and what a failure costs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

import pytest

from tests.support.byte_device import KEY, ByteDevice, Held, accepts, encoded, reason, routing, until
from toktier.gpu.graph import DriverError
from toktier.gpu.router.devices import Failed, State
from toktier.gpu.router.jobs import Encode, Limits, Tokenizer
from toktier.gpu.router.router import Router
from toktier.reasons import Gpu
from tools.kernels.faults import Script

MEMORY = DriverError("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY")


class Short(ByteDevice):
    """A device without room for the tables that are named ``lacking``."""

    def __init__(self, lacking: set[str]) -> None:
        self.lacking = lacking

    def encoder(self, tables: object, room: int) -> ByteDevice:
        if tables in self.lacking:
            raise MEMORY
        return super().encoder(tables, room)


@contextmanager
def tokenizers(lacking: set[str], *keys: str) -> Iterator[tuple[Router, Script]]:
    """A router over a device that is short of memory for some of these tokenizers, whose tables are their keys."""
    script = Script(lambda _: Short(lacking))
    router = Router(script, [0], Limits(timeout_s=10.0, first_retry_s=0.01))
    try:
        for key in keys:
            router.add(Tokenizer(key, cast(Any, key), accepts))
        yield router, script
    finally:
        router.close()


@pytest.mark.parametrize("large", ["first", "second"])
def test_a_tokenizer_whose_tables_do_not_fit_stands_alone_and_comes_back_with_the_memory(large: str) -> None:
    lacking = {large}
    (small,) = {"first", "second"} - lacking
    with tokenizers(lacking, "first", "second") as (router, script):
        until(lambda: router.refuses(small) is None and router.refuses(large) is Gpu.OUT_OF_MEMORY)
        assert (router.states()[0].state, script.opened) == (State.OK, 1)
        lacking.clear()
        until(lambda: router.refuses(large) is None)
        assert (router.refuses(small), script.opened) == (None, 1)


def test_memory_that_runs_out_in_a_check_comes_back_too() -> None:
    lacking = [1, 1, 1]

    def accept(encode: Encode) -> None:
        if lacking:
            lacking.pop()
            raise MEMORY

    with tokenizers(set(), "first") as (router, script):
        until(lambda: router.refuses("first") is None)
        router.add(Tokenizer("second", cast(Any, None), accept))
        until(lambda: router.refuses("second") is None)
        assert (router.refuses("first"), script.opened, lacking) == (None, 1, [])


def test_a_device_without_room_for_any_tokenizer_is_given_up() -> None:
    lacking = {"first", "second"}
    with tokenizers(lacking, "first", "second") as (router, script):
        until(lambda: script.opened > 2)
        assert router.states()[0].reason in (Gpu.OUT_OF_MEMORY, None)
        lacking.clear()
        until(lambda: router.refuses("first") is router.refuses("second") is None)


def test_a_check_that_breaks_costs_its_own_tokenizer_alone() -> None:
    broken = [1]

    def accept(encode: Encode) -> None:
        if broken:
            raise ZeroDivisionError

    with tokenizers(set(), "first") as (router, script):
        until(lambda: router.refuses("first") is None)
        router.add(Tokenizer("second", cast(Any, None), accept))
        until(lambda: router.refuses("second") is Gpu.INTERNAL_ERROR)
        assert (router.refuses("first"), router.states()[0].state) == (None, State.OK)
        broken.clear()
        until(lambda: router.refuses("second") is None)
        assert script.opened == 1


def test_another_tokenizer_under_the_same_key_is_checked_though_the_thread_was_busy() -> None:
    checked: list[str] = []
    with routing() as (router, (script,)), ThreadPoolExecutor(2) as pool:
        held = Held(router, script, pool)
        router.remove(KEY)
        router.add(Tokenizer(KEY, cast(Any, None), lambda _: checked.append("second")))
        assert router.refuses(KEY) is Gpu.LOADING
        held.go.set()
        until(lambda: router.refuses(KEY) is None)
        assert (checked, script.opened) == (["second"], 1)


def test_a_verdict_on_a_tokenizer_that_went_meanwhile_is_none_on_the_next() -> None:
    go, begun = threading.Event(), threading.Event()

    def first(_encode: Encode) -> None:
        begun.set()
        go.wait()
        raise Failed(Gpu.SELF_CHECK)

    with routing(accept=first, wait=False) as (router, _):
        begun.wait()
        router.remove(KEY)
        router.add(Tokenizer(KEY, cast(Any, None), accepts))
        go.set()
        until(lambda: router.refuses(KEY) is None)
        assert encoded(router, "x") == [b"x"]


def test_a_router_that_was_closed_opens_no_device_and_checks_no_tokenizer() -> None:
    script, checked = Script(lambda _: ByteDevice()), []
    go = threading.Event()

    def opener(number: int) -> Any:
        go.wait()
        return script(number)

    router = Router(opener, [0], Limits(first_retry_s=0.01))
    router.add(Tokenizer(KEY, cast(Any, None), lambda _: checked.append(1)))
    router.close(0.0)
    go.set()
    router.workers[0].join(10.0)
    assert not router.workers[0]._thread.is_alive()
    worker = router.workers[0]
    opened = script.opened
    worker._turn()  # as if the end had come between the thread's question and its turn
    assert (checked, script.opened, worker._device) == ([], opened, None)


@pytest.mark.parametrize("error", [ZeroDivisionError, type("PanicException", (BaseException,), {})])
def test_jobs_whose_launch_breaks_off_are_told_at_once(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """By a panic of native code too, which ends neither the thread nor its jobs."""
    with routing(timeout_s=60.0) as (router, _):
        worker = router.workers[0]

        def broken(*_: object) -> Any:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(worker, "_answers", broken)
            assert reason(lambda: encoded(router, "x")) is Gpu.INTERNAL_ERROR
        until(lambda: KEY in worker.serves)
        assert (worker.queued, worker._batch) == (0, [])
        assert encoded(router, "x") == [b"x"]
