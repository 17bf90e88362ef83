"""Real worker processes: verdicts, and what happens when they are killed, stopped, told to end, or left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path as File

import pytest

from tests.conftest import ROOT
from tests.support import shadow
from tests.support.shadow import Ends, Subject, ids_of, say, with_ids
from tests.support.tokenizer_files import CACHE, small_spec, write
from toktier.shadow.job import Drop, Job, Kind, WorkerState
from toktier.shadow.pool import Pool
from toktier.tokenizer import FrozenTokenizer

Make = Callable[..., tuple[Pool, Ends]]


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return shadow.small(tmp_path_factory.mktemp("small"))


BOS = {"SpecialToken": {"id": "<|bos|>", "type_id": 0}}


@pytest.fixture(scope="module")
def special(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """Another small model, which puts a token before a text where a request asks for that."""
    spec = small_spec("tok_llamalike")
    bos = next(token["id"] for token in spec["added_tokens"] if token["content"] == "<|bos|>")
    spec["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [BOS, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|bos|>": {"id": "<|bos|>", "ids": [bos], "tokens": ["<|bos|>"]}},
    }
    folder = write(tmp_path_factory.mktemp("special"), spec)
    (folder / "own.jinja").write_text(shadow.PLAIN)
    tokenizer = FrozenTokenizer.load(folder, cache_dir=CACHE, window=False)
    assert tokenizer.special is not None
    assert tokenizer.special.prefix.tolist() == [bos]
    return shadow.subject(tokenizer, template=folder / "own.jinja", special=True)


@pytest.fixture
def make() -> Iterator[Make]:
    pools: list[Pool] = []

    def made(timeout_s: float = 120.0, workers: int = 1) -> tuple[Pool, Ends]:
        ends = Ends()
        pools.append(Pool(workers, 1000, 64 << 20, timeout_s, ends.on_result, ends.on_drop, ends.on_worker))
        return pools[-1], ends

    yield made
    for pool in pools:
        pool.close(0)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return File(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def wait_until(condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def warm(pool: Pool, ends: Ends, job: Job) -> int:
    pool.submit(job)
    ends.wait(1)
    assert ends.results[0][1].equal
    return ends.pid


def test_verdicts_of_two_models_in_one_process(make: Make, subject: Subject, special: Subject) -> None:
    pool, ends = make()
    jobs = [
        special.job(say("hello", "w\u00f6rld", "\U0001f600" * 50)),
        subject.job(say("hello")),
        special.job({**say("special"), "add_special_tokens": True}),
    ]
    assert ids_of(jobs[2])[1:] == ids_of(special.job(say("special")))
    wrong = [with_ids(job, [*ids_of(job)[:-1], 0]) for job in jobs]
    for job in [*jobs, *wrong]:
        pool.submit(job)
    ends.wait(6)
    assert not ends.drops
    assert [job for job, *_ in ends.results] == [*jobs, *wrong]
    verdicts = [verdict for _, verdict, _ in ends.results]
    assert [verdict.kind for verdict in verdicts] == [None] * 3 + [Kind.IDS] * 3
    for job, verdict in zip(wrong, verdicts[3:], strict=True):
        assert verdict.first_id == len(job.ids) // 4 - 1
        assert verdict.piece is not None
    assert ends.states == [WorkerState.STARTED]
    assert all(timing.check_us > 0 and timing.delay_us >= timing.check_us for *_, timing in ends.results)
    assert os.getpriority(os.PRIO_PROCESS, ends.pid) == 19
    pool.close(30)
    assert ends.states == [WorkerState.STARTED, WorkerState.STOPPED]
    assert ends.workers[-1].exit_code == 0
    assert gone(ends.pid)


def test_a_killed_worker_is_replaced_and_costs_no_job(make: Make, subject: Subject) -> None:
    pool, ends = make()
    job = subject.job(say("q"))
    first = warm(pool, ends, job)
    os.kill(first, signal.SIGKILL)  # while it is idle
    wait_until(lambda: gone(first))
    pool.submit(job)
    ends.wait(2)
    second = ends.pid
    assert second != first
    os.kill(second, signal.SIGSTOP)
    pool.submit(job)
    wait_until(lambda: pool.running == 1)
    os.kill(second, signal.SIGKILL)  # while it has a job
    ends.wait(3)
    assert len(ends.results) == 3
    S, D = WorkerState.STARTED, WorkerState.DIED
    assert ends.states == [S, D, S, D, S]
    assert [event.exit_code for event in ends.workers if event.state is D] == [-9, -9]


def test_a_worker_that_hangs_is_killed_and_replaced(make: Make, subject: Subject) -> None:
    pool, ends = make()
    job = subject.job(say("q"))
    pid = warm(pool, ends, job)
    os.kill(pid, signal.SIGSTOP)
    pool._timeout_s = 0.2
    pool.submit(job)  # small: all of it is sent, and no answer comes
    ends.wait_for(WorkerState.KILLED)
    pool._timeout_s = 120.0
    ends.wait(2)
    assert ends.reasons == [Drop.TIMEOUT]
    assert gone(pid)
    pool.submit(job)
    ends.wait(3)
    os.kill(ends.pid, signal.SIGSTOP)
    pool._timeout_s = 0.2
    pool.submit(replace(job, body=job.body + b" " * 4_000_000))  # too large for any buffer: it cannot even be sent
    ends.wait(4)
    assert ends.reasons == [Drop.TIMEOUT, Drop.TIMEOUT]
    assert len(ends.results) == 2


def test_a_close_does_not_wait_for_a_worker_that_hangs(make: Make, subject: Subject) -> None:
    pool, ends = make()
    job = subject.job(say("q"))
    pid = warm(pool, ends, job)
    os.kill(pid, signal.SIGSTOP)
    pool.submit(job)
    pool.submit(job)
    wait_until(lambda: pool.running == 1)
    start = time.monotonic()
    pool.close(0.1)
    assert time.monotonic() - start < 20
    assert ends.reasons == [Drop.SHUTDOWN] * 2
    assert gone(pid)
    assert ends.states[-1] is WorkerState.STOPPED


def test_neither_signals_for_the_whole_group_nor_errors_end_it(make: Make, subject: Subject) -> None:
    pool, ends = make()
    job = subject.job(say("q"))
    pid = warm(pool, ends, job)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(pid, number)
        pool.submit(job)
    pool.submit(replace(job, body=b'{"messages": secret'))
    pool.submit(job)
    ends.wait(5)
    assert len(ends.results) == 4
    assert ends.states == [WorkerState.STARTED]
    ((_, reason, detail),) = ends.drops
    assert reason is Drop.INTERNAL_ERROR
    assert detail.startswith("JSONDecodeError at "), "type and place; a message may quote text"
    assert "secret" not in detail


FAST_PATH = (
    *("tier", "sessions", "rope", "chunks", "certificate", "folding", "quarantine", "tokenizer"),
    "engines.fastokens",
)


def test_the_worker_has_none_of_the_fast_paths_code() -> None:
    """A fault there cannot be repeated here."""
    told = "import sys, toktier.shadow.worker, toktier.shadow.check; print(*sys.modules)"
    asked = subprocess.run(
        [sys.executable, "-P", "-c", told], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, check=True
    )
    modules = set(asked.stdout.decode().split())
    assert "toktier.engines.reference" in modules
    assert modules.isdisjoint(f"toktier.{name}" for name in FAST_PATH)
    assert "fastokens" not in modules


PARENT = """
import pickle, sys, time
from tests.support.shadow import Ends
from toktier.shadow.pool import Pool
ends = Ends()
pool = Pool(1, 10, 1 << 24, 120.0, ends.on_result, ends.on_drop, ends.on_worker)
pool.submit(pickle.load(sys.stdin.buffer))
ends.wait(1)
assert ends.results
print(ends.pid, flush=True)
time.sleep(600)
"""


def test_a_worker_does_not_outlive_whoever_started_it(subject: Subject) -> None:
    import pickle

    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd=ROOT
    )
    try:
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdin.write(pickle.dumps(subject.job(say("q"))))
        parent.stdin.close()
        pid = int(parent.stdout.readline())
        assert not gone(pid)
        parent.kill()
        wait_until(lambda: gone(pid))
    finally:
        with contextlib.suppress(ProcessLookupError):
            parent.kill()
        parent.wait()
        assert parent.stdout is not None
        parent.stdout.close()
