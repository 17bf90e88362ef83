"""The router over devices that do what a test says: what goes in one launch, to which device, and what fails how."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.byte_device import KEY, ByteDevice, Held, encoded, reason, routing, until
from toktier.gpu.graph import DriverError
from toktier.gpu.launcher import KernelFault
from toktier.gpu.router import router as module
from toktier.gpu.router.devices import FINAL, Failed, State
from toktier.gpu.router.jobs import Encode, Tokenizer
from toktier.gpu.router.router import Router
from toktier.gpu.vocabulary import BREAK_ID
from toktier.ids import Ids
from toktier.reasons import Gpu
from tools.kernels.faults import Fault, Script, hangs, raises, wrong

LOST = DriverError("cuStreamSynchronize", "CUDA_ERROR_ILLEGAL_ADDRESS")
MEMORY = DriverError("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY")


def test_ids_come_back_to_their_pieces() -> None:
    with routing() as (router, _):
        assert encoded(router, "ab", "", "c\u00e9") == [b"ab", b"", "c\u00e9".encode()]


def test_what_waits_goes_in_one_launch() -> None:
    with routing() as (router, (script,)), ThreadPoolExecutor(8) as pool:
        held = Held(router, script, pool)
        texts = [f"text {k}" for k in range(5)]
        asked = held.queue(router, pool, texts)
        held.go.set()
        assert [future.result() for future in asked] == [[text.encode()] for text in texts]
        assert script.launches[-2:] == [1, 5]
        assert (router.workers[0].tally.jobs, router.workers[0].queued) == (6, 0)


def test_a_launch_takes_no_more_than_it_may() -> None:
    with routing(max_bytes=20) as (router, (script,)), ThreadPoolExecutor(8) as pool:
        held = Held(router, script, pool)
        asked = held.queue(router, pool, ["0123456789"] * 3)
        held.go.set()
        assert all(future.result() == [b"0123456789"] for future in asked)
        assert script.launches[-3:] == [1, 1, 1]


def test_a_request_waits_for_others_only_while_some_are_on_their_way() -> None:
    with routing(window_s=60.0) as (router, (script,)), ThreadPoolExecutor(2) as pool:
        assert encoded(router, "alone") == [b"alone"]
        with router.coming():
            first = pool.submit(encoded, router, "first")
            until(lambda: len(router.workers[0]._batch) == 1)
            second = pool.submit(encoded, router, "second")
            until(lambda: len(router.workers[0]._batch) == 2)
            assert not first.done()
        assert (first.result(), second.result()) == ([b"first"], [b"second"])
        assert script.launches[-1] == 2


def test_a_long_text_goes_in_several_launches_on_all_devices() -> None:
    with routing(2, max_bytes=64) as (router, scripts):
        pieces = [str(k) * 20 for k in range(10)]
        assert encoded(router, *pieces) == [piece.encode() for piece in pieces]
        assert all(len(script.launches) >= 2 for script in scripts)
        assert reason(lambda: encoded(router, "x" * 65)) is Gpu.TOO_LARGE


def test_requests_go_round_and_leave_out_a_device_that_is_busy() -> None:
    with routing(2) as (router, scripts), ThreadPoolExecutor(2) as pool:
        for _ in range(6):
            encoded(router, "x")
        assert [len(script.launches) for script in scripts] == [3, 3]
        go = threading.Event()
        for script in scripts:
            script.calls.append(hangs(go))
        held = pool.submit(encoded, router, "long" * 9)
        until(lambda: sum(len(script.calls) for script in scripts) == 1)
        for script in scripts:
            script.calls.clear()
        for _ in range(5):
            encoded(router, "y")
        go.set()
        held.result()
        assert sorted(len(script.launches) for script in scripts) == [4, 8]


@pytest.mark.parametrize(
    ("fault", "want"),
    [
        (raises(LOST), Gpu.DEVICE_LOST),
        (raises(ZeroDivisionError()), Gpu.INTERNAL_ERROR),
    ],
)
def test_a_device_that_fails_is_opened_and_checked_again(fault: Fault, want: Gpu) -> None:
    checks: list[int] = []

    def accept(encode: Encode) -> None:
        checks.append(len(encode(b"check")))

    with routing(accept=accept) as (router, (script,)):
        script.opens.append(Failed(Gpu.DEVICE_LOST))  # the first trial fails, too
        script.calls.append(fault)
        assert reason(lambda: encoded(router, "text")) is want
        until(lambda: KEY in router.workers[0].serves)
        assert encoded(router, "text") == [b"text"]
        assert (script.opened, checks) == (2, [5, 5])


def test_what_waits_for_a_device_that_fails_is_told_at_once() -> None:
    with routing(first_retry_s=60.0) as (router, (script,)), ThreadPoolExecutor(8) as pool:
        held = Held(router, script, pool)
        asked = held.queue(router, pool, ["a", "b"])
        script.calls.append(raises(LOST))
        late = threading.Event()
        script.calls.append(hangs(late))
        held.go.set()
        assert held.first.result() == [b"first"]
        assert {reason(future.result) for future in asked} == {Gpu.DEVICE_LOST}
        (told,) = router.states()
        assert (told.state, told.reason, told.queued) == (State.PAUSED, Gpu.DEVICE_LOST, 0)
        assert "ILLEGAL_ADDRESS" in told.detail
        assert router.refuses(KEY) is Gpu.PAUSED
        assert reason(lambda: encoded(router, "c")) is Gpu.PAUSED


def test_a_kernel_fault_is_the_answer_for_its_text_alone() -> None:
    def fault(call: Callable[[], object]) -> object:
        raise KernelFault("a piece was not encoded")

    with routing() as (router, (script,)), ThreadPoolExecutor(8) as pool:
        held = Held(router, script, pool)
        asked = held.queue(router, pool, ["a", "b", "c"])
        script.calls += [raises(KernelFault()), lambda call: call(), raises(KernelFault())]
        held.go.set()
        results = [future.exception() or future.result() for future in asked]
        assert sum(isinstance(one, Failed) and one.reason is Gpu.KERNEL_FAULT for one in results) == 1
        assert sum(isinstance(one, list) for one in results) == 2
        assert router.states()[0].state is State.OK
        assert script.opened == 1


def test_a_call_that_hangs_is_given_up_and_the_device_left_alone_until_it_comes_back() -> None:
    with routing(timeout_s=0.2) as (router, (script,)), ThreadPoolExecutor(8) as pool:
        held = Held(router, script, pool)
        assert reason(held.first.result) is Gpu.TIMEOUT
        assert router.states()[0].reason is Gpu.TIMEOUT
        assert reason(lambda: encoded(router, "next")) is Gpu.PAUSED
        assert script.opened == 1
        held.go.set()
        until(lambda: KEY in router.workers[0].serves)
        assert encoded(router, "again") == [b"again"]
        assert (script.opened, router.workers[0].queued) == (2, 0)


def test_who_waits_too_long_for_its_turn_goes_without_blaming_the_device() -> None:
    with routing(timeout_s=0.3) as (router, (script,)), ThreadPoolExecutor(8) as pool:
        held = Held(router, script, pool)
        worker = router.workers[0]
        (waiting,) = held.queue(router, pool, ["waits"])
        with worker._change:  # as if the device had just begun
            worker._seen = worker._batch[0].started = time.monotonic() + 60
        assert reason(waiting.result) is Gpu.BUSY
        assert worker.state is State.OK
        held.go.set()
        assert held.first.result() == [b"first"]


def test_a_thread_that_hangs_in_a_check_is_noticed_and_requests_do_not_wait_for_it() -> None:
    go = threading.Event()
    with routing(timeout_s=0.2) as (router, (script,)):
        worker = router.workers[0]

        def hang(_encode: Encode) -> None:
            go.wait()

        worker.add(Tokenizer("other", cast(Any, None), hang))
        until(lambda: router.refuses(KEY) is Gpu.LOADING)
        worker.serves = frozenset([KEY])  # as if the check had begun behind a request
        assert reason(lambda: encoded(router, "x")) is Gpu.BUSY
        assert (worker.state, worker.reason) == (State.PAUSED, Gpu.TIMEOUT)
        go.set()
        until(lambda: worker.serves == {KEY, "other"})
        assert encoded(router, "x") == [b"x"]
        assert script.opened == 2


def test_more_than_may_wait_is_for_the_cpu() -> None:
    with routing(queue_bytes=12) as (router, (script,)), ThreadPoolExecutor(8) as pool:
        held = Held(router, script, pool)
        (kept,) = held.queue(router, pool, ["1234567"])
        assert reason(lambda: encoded(router, "x")) is Gpu.BUSY
        held.go.set()
        assert kept.result() == [b"1234567"]
        assert encoded(router, "longer than the queue may be") == [b"longer than the queue may be"]


def test_without_memory_launches_are_smaller_for_a_while() -> None:
    with routing(first_retry_s=60.0) as (router, (script,)):
        script.calls.append(raises(MEMORY))
        pieces = ["x" * 100_000] * 8
        assert reason(lambda: encoded(router, *pieces)) is Gpu.OUT_OF_MEMORY
        assert router.workers[0].most() == 1 << 19
        assert encoded(router, *pieces) == [b"x" * 100_000] * 8
        assert (len(script.launches), script.opened) == (3, 1)
        assert reason(lambda: encoded(router, "\u00e9" * 300_000)) is Gpu.OUT_OF_MEMORY


def test_a_device_without_memory_for_a_small_text_is_of_no_use() -> None:
    with routing() as (router, (script,)):
        script.calls.append(raises(MEMORY))
        assert reason(lambda: encoded(router, "x")) is Gpu.OUT_OF_MEMORY
        until(lambda: script.opened == 2 and KEY in router.workers[0].serves)
        assert encoded(router, "x") == [b"x"]


@pytest.mark.parametrize("why", sorted(FINAL))
def test_what_cannot_change_is_not_tried_again(why: Gpu) -> None:
    script = Script(lambda _: ByteDevice())
    script.opens.append(Failed(why, "detail"))
    router = Router(script, [0])
    until(lambda: not router.workers[0]._thread.is_alive())
    assert (router.states()[0].state, router.refuses(KEY)) == (State.OFF, why)
    router.close()


def test_a_tokenizer_is_refused_where_the_check_speaks_against_it() -> None:
    def accept(encode: Encode) -> None:
        raise Failed(Gpu.SELF_CHECK)

    with routing(accept=accept, wait=False) as (router, _):
        until(lambda: router.refuses(KEY) is Gpu.SELF_CHECK)
        assert router.states()[0].state is State.OK


def test_a_wrong_answer_is_not_noticed_here() -> None:
    with routing() as (router, (script,)):
        script.calls.append(wrong)
        assert encoded(router, "ab") == [b"ac"]


def test_a_thread_that_must_not_wait_never_does() -> None:
    with routing() as (router, _):
        assert router.refuses(KEY) is None
        router.spare(threading.get_ident())
        assert router.refuses(KEY) is Gpu.AT_ONCE


def test_a_tokenizer_that_nobody_has_any_more_is_served_no_more() -> None:
    with routing() as (router, (script,)):
        router.remove(KEY)
        assert reason(lambda: encoded(router, "x")) is Gpu.PAUSED
        until(lambda: router.refuses(KEY) is Gpu.LOADING)
        assert script.opened == 1


def test_the_end_is_told_to_what_waits() -> None:
    with routing() as (router, (script,)), ThreadPoolExecutor(8) as pool:
        held = Held(router, script, pool)
        (waiting,) = held.queue(router, pool, ["waits"])
        for worker in router.workers:
            worker.stop()
        assert reason(waiting.result) is Gpu.CLOSED
        held.go.set()
        assert held.first.result() == [b"first"]
        router.close()
        assert not router.workers[0]._thread.is_alive()
        assert (router.refuses(KEY), router.states()[0].state) == (Gpu.CLOSED, State.CLOSED)


def test_devices_are_given_back_when_the_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[Callable[[], None]] = []
    monkeypatch.setattr(module, "atexit", SimpleNamespace(register=left.append, unregister=left.remove))
    with routing() as (router, _):
        (at_exit,) = left
        at_exit()
        assert not router.workers[0]._thread.is_alive()
        assert left == []
        left.append(router.close)  # for the block's own end


def test_segments_of_a_launch_are_counted() -> None:
    def fewer(call: Callable[[], Ids]) -> Ids:
        ids = call()
        return ids[ids != BREAK_ID]

    with routing() as (router, (script,)), ThreadPoolExecutor(8) as pool:
        script.calls.append(fewer)
        assert reason(lambda: encoded(router, "a", "b")) is Gpu.INTERNAL_ERROR
        held = Held(router, script, pool)
        asked = held.queue(router, pool, ["a", "b"])
        script.calls.append(fewer)
        held.go.set()
        assert {reason(future.result) for future in asked} == {Gpu.INTERNAL_ERROR}
        assert router.workers[0].reason is Gpu.INTERNAL_ERROR


@pytest.mark.parametrize("why", [Gpu.PAUSED, Gpu.BUSY])
def test_a_device_that_does_not_take_a_text_any_more_leaves_it_to_another(
    why: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(_job: object) -> None:
        raise Failed(why)

    with routing(2) as (router, scripts):
        for worker in router.workers:
            with monkeypatch.context() as patch:
                patch.setattr(worker, "submit", refuses)
                for _ in range(3):
                    assert encoded(router, "x") == [b"x"]
        assert all(len(script.launches) == 3 for script in scripts)
        with monkeypatch.context() as patch:
            for worker in router.workers:
                patch.setattr(worker, "submit", refuses)
            assert reason(lambda: encoded(router, "x")) is why
