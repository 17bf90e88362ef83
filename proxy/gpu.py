"""The GPU path of this process: whether there is one, and what it tells of itself.

Invariant: where the configuration says off, or there is no driver, nothing of the GPU path is imported, PyCUDA neither.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path as Folder
from typing import TYPE_CHECKING, Any

import structlog
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from proxy import config
from toktier.errors import UnusableFile
from toktier.gpu.router.driver import driver_there
from toktier.quarantine import Quarantine
from toktier.reasons import GPU_HELP, Gpu, Path

if TYPE_CHECKING:
    from toktier.files import TokenizerFiles
    from toktier.gpu.router.devices import Opener
    from toktier.gpu.router.engine import Engines, GpuEngine
    from toktier.gpu.router.router import DeviceState
    from toktier.tokenizer import FrozenTokenizer

_log = structlog.get_logger("toktier.gpu")


class Gpus:
    """The devices, or why there are none. Thread-safe."""

    def __init__(self, settings: config.Gpu, opener: Opener | None = None) -> None:
        """Opens devices in threads of their own and returns at once. ``opener``: other devices than CUDA's."""
        self.settings = settings
        self.engines: Engines | None = None
        self.missing: Gpu | None = None
        """Why there is no device to be asked; None where the configuration wants none."""
        if settings.mode == "off":
            return
        if opener is None and not driver_there():
            self.missing = Gpu.NO_DRIVER
            say = _log.warning if settings.mode == "required" else _log.info
            say("gpu_missing", reason=self.missing.value)
            return
        from toktier.gpu.router.cuda import CudaDevice
        from toktier.gpu.router.engine import Engines
        from toktier.gpu.router.jobs import Limits
        from toktier.gpu.router.router import Router

        limits = Limits(settings.max_bytes, settings.queue_bytes, settings.window_us / 1e6, settings.timeout_s)
        router = Router(opener or CudaDevice, settings.devices, limits)
        self.engines = Engines(router, from_chars=settings.from_chars)

    def engine(
        self, tokenizer: FrozenTokenizer, read: TokenizerFiles, cache_dir: Folder, quarantine: Quarantine | None
    ) -> GpuEngine | None:
        """That of a tokenizer; None without a certificate, and where there is no device to be asked."""
        if self.engines is None or tokenizer.certificate is None:
            return None
        digest = tokenizer.digest_of_files

        def allowed() -> bool:
            return quarantine is None or quarantine.level(digest, Path.GPU) is None

        return self.engines.engine(tokenizer, read, allowed, cache_dir)

    def spare(self) -> None:
        """The calling thread must never wait for a device."""
        if self.engines is not None:
            self.engines.router.spare(threading.get_ident())

    def close(self) -> None:
        """Give the devices back."""
        if self.engines is not None:
            self.engines.router.close()

    # what there is

    @property
    def states(self) -> list[DeviceState]:
        """Of the devices; none where none is asked."""
        return [] if self.engines is None else self.engines.router.states()

    @property
    def degraded(self) -> str | None:
        """What is not as the configuration requires; None where nothing is."""
        if self.settings.mode != "required" or any(one.state == "ok" for one in self.states):
            return None
        reasons = [self.missing] if self.missing is not None else [one.reason or Gpu.LOADING for one in self.states]
        return f"gpu: {', '.join(dict.fromkeys(reason.value for reason in reasons))}"

    def told(self) -> dict[str, Any]:
        """For ``GET /ready``: the mode, and each device."""
        told: dict[str, Any] = {"mode": self.settings.mode, "devices": [_told(one) for one in self.states]}
        if self.missing is not None:
            told |= {"reason": self.missing.value, "help": GPU_HELP[self.missing]}
        return told


def ready_path(tokenizer: FrozenTokenizer, read: TokenizerFiles, *, cache_dir: Folder) -> GpuEngine:
    """The GPU path of a tokenizer for a command, for texts of every size, once it is ready. Raises `UnusableFile`."""
    gpus = Gpus(config.Gpu(mode="required", from_chars=1, timeout_s=60.0))
    engine = gpus.engine(tokenizer, read, cache_dir, None)
    if engine is None:
        raise UnusableFile(f"no GPU: {GPU_HELP[gpus.missing or Gpu.REFUSED]}")
    while (standing := engine.standing) is Gpu.LOADING:
        time.sleep(0.05)
    if standing is not Gpu.USED:
        raise UnusableFile(f"no GPU: {GPU_HELP[standing]}")
    return engine


def _told(one: DeviceState) -> dict[str, Any]:
    told: dict[str, Any] = {"device": one.number, "name": one.name, "state": one.state.value}
    if one.reason is not None:
        told |= {"reason": one.reason.value, "help": GPU_HELP[one.reason], "detail": one.detail or None}
    return told


class GpuCollector(Collector):
    """The GPU path in the metrics, read at each scrape; nothing where there is none."""

    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        if self._gpus.engines is None:
            return
        router = self._gpus.engines.router
        outcomes = CounterMetricFamily(
            "toktier_gpu_texts", "Texts that a GPU might have encoded, by what became of them", labels=["outcome"]
        )
        for outcome in Gpu:
            outcomes.add_metric([outcome.value], router.outcomes[outcome])
        yield outcomes
        yield CounterMetricFamily("toktier_gpu_chars", "Characters that GPUs encoded", value=router.chars)
        states = GaugeMetricFamily("toktier_gpu_state", "1 for the state it is in", labels=["device", "state"])
        queued = GaugeMetricFamily("toktier_gpu_queued_bytes", "Text that waits for a device", labels=["device"])
        launches = CounterMetricFamily("toktier_gpu_launches", "Launches", labels=["device"])
        requests = CounterMetricFamily("toktier_gpu_jobs", "Texts or parts of them in launches", labels=["device"])
        seconds = CounterMetricFamily("toktier_gpu_seconds", "Time in launches", labels=["device"])
        for worker in router.workers:
            number, tally = [str(worker.number)], worker.tally
            for state in type(worker.state):
                states.add_metric([*number, state.value], float(state is worker.state))
            queued.add_metric(number, worker.queued)
            launches.add_metric(number, tally.launches)
            requests.add_metric(number, tally.jobs)
            seconds.add_metric(number, tally.seconds)
        yield from (states, queued, launches, requests, seconds)
