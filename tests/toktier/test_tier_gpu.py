"""The tier with a GPU path, the device core in a GPU's place: what is told of it, and where a wrong answer leads."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path as File
from typing import Any

import pytest

from proxy.captures import Captures
from proxy.config import Shadow
from proxy.metrics import Metrics
from proxy.mismatch import Mismatches, of_verdict
from tests.support.host_gpu import HostGpu, host_gpu, qwen3_files
from tests.support.models import qwen3
from tests.support.sent import sent
from tests.support.shadow import Subject
from tests.support.tiers import LONG, ask, body, maker, say
from toktier.quarantine import Level, Quarantine, Source
from toktier.reasons import FullEncode, Gpu, Path
from toktier.shadow.check import Checker
from toktier.shadow.job import Kind, Verdict, setup_of
from toktier.tier import ModelTier
from tools.kernels.faults import wrong

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed"),
    pytest.mark.xdist_group("qwen3"),
]


@pytest.fixture(scope="module")
def make() -> Callable[..., ModelTier]:
    return maker()


@pytest.fixture(scope="module")
def gpu() -> Iterator[HostGpu]:
    with host_gpu() as it:
        it.engine(qwen3(), qwen3_files())
        yield it


def engine(gpu: HostGpu, quarantine: Quarantine) -> Any:
    ready = gpu.engine(qwen3(), qwen3_files())
    return replace(ready, allowed=lambda: quarantine.level(qwen3().digest_of_files, Path.GPU) is None)


@pytest.fixture
def quarantine(tmp_path: File) -> Quarantine:
    return Quarantine(tmp_path / "quarantine.json")


def test_sessions_begin_and_go_on_with_the_devices_ids(
    make: Callable[..., ModelTier], gpu: HostGpu, quarantine: Quarantine
) -> None:
    tier = make(gpu=engine(gpu, quarantine), quarantine=quarantine)
    messages = [say("system", LONG), say("user", "na\u00efve e\u0301 <|im_end|> q")]
    first = ask(tier, body(*messages))
    assert (first.path, first.full, first.gpu, first.by_gpu) == (Path.INIT, FullEncode.NO_SESSION, Gpu.USED, True)
    more = [*messages, say("assistant", "a" * 700), say("user", "r")]
    second = ask(tier, body(*more))
    assert (second.path, second.gpu, second.by_gpu) == (Path.APPEND, Gpu.USED, True)
    assert ask(make(), body(*more)).gpu is None


def test_what_was_kept_from_a_device_is_told_of_later_requests(
    make: Callable[..., ModelTier], gpu: HostGpu, quarantine: Quarantine
) -> None:
    own = engine(gpu, quarantine)
    tier = make(gpu=own, quarantine=quarantine)
    messages = [say("system", LONG), say("user", "q")]
    ask(tier, body(*messages))
    own.shared.from_chars = 1 << 30
    try:
        later = ask(tier, body(*messages, say("assistant", "a"), say("user", "r")))
        assert (later.gpu, later.by_gpu) == (Gpu.SMALL, True)
        fresh = ask(tier, body(say("user", "another")))
        assert (fresh.gpu, fresh.by_gpu) == (Gpu.SMALL, False)
    finally:
        own.shared.from_chars = 1


def test_a_wrong_answer_is_caught_by_the_shadow_and_ends_the_gpu_path_alone(
    make: Callable[..., ModelTier], gpu: HostGpu, quarantine: Quarantine, tmp_path: File
) -> None:
    tier = make(gpu=engine(gpu, quarantine), quarantine=quarantine)
    request = body(say("system", LONG), say("user", "q"))
    gpu.script.calls.append(wrong)
    verdict = Checker().check(Subject(tier, setup_of(tier)).job(request))
    assert isinstance(verdict, Verdict)
    assert verdict.kind is Kind.IDS

    act = Mismatches(Shadow(), quarantine, tier.store, Captures(tmp_path / "captures"), Metrics())
    served = sent(trust_digest=qwen3().digest_of_files, path=Path.INIT, by_gpu=True)
    act.found(Source.SHADOW, served, of_verdict(verdict), 5)
    assert [(entry.path, entry.level) for entry in quarantine.entries()] == [(Path.GPU, Level.REFERENCE)]
    assert len(tier.store) == 0

    again = ask(tier, request)
    assert (again.path, again.full, again.gpu, again.by_gpu) == (
        Path.INIT,
        FullEncode.NO_SESSION,
        Gpu.QUARANTINED,
        False,
    )
    quarantine.lift()
    assert ask(tier, body(say("user", LONG))).gpu is Gpu.USED
