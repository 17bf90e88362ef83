"""The device core in the place of a GPU: a router over it, and the GPU path of a tokenizer, made ready."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache

from tests.support.byte_device import until
from tests.support.gpu import host_core
from tests.support.tokenizer_files import CACHE
from toktier import files
from toktier.chunks import ChunkEncoder
from toktier.gpu.router.engine import Engines, GpuEngine
from toktier.gpu.router.jobs import Limits
from toktier.gpu.router.router import Router
from toktier.reasons import Gpu
from toktier.tokenizer import EMBEDDED, FrozenTokenizer
from tools.kernels.faults import Script
from tools.kernels.host import HostDevice


@dataclass
class HostGpu:
    """``script``: what the device's next calls do."""

    script: Script
    engines: Engines
    allowed: bool = True
    made: dict[str, GpuEngine] = field(default_factory=dict)

    def engine(self, tokenizer: FrozenTokenizer, read: files.TokenizerFiles) -> GpuEngine:
        """The GPU path of a tokenizer, checked and ready."""
        if tokenizer.digest not in self.made:
            engine = self.engines.engine(tokenizer, read, lambda: self.allowed, CACHE)
            until(lambda: engine.standing is not Gpu.LOADING, 120)
            self.made[tokenizer.digest] = engine
            assert engine.standing is Gpu.USED, engine.standing
        engine = self.made[tokenizer.digest]
        until(lambda: engine.standing is Gpu.USED)  # again, after a fault
        return engine

    def encoder(self, tokenizer: FrozenTokenizer, read: files.TokenizerFiles) -> ChunkEncoder:
        return replace(tokenizer.encoder, gpu=self.engine(tokenizer, read))


@contextmanager
def host_gpu(shape: str = "small", *, from_chars: int = 1, devices: int = 1, **limits: float) -> Iterator[HostGpu]:
    """Devices of the core, whose tiles have ``shape``."""
    script = Script(lambda _: HostDevice(host_core(), shape))
    router = Router(script, range(devices), replace(Limits(timeout_s=60.0, first_retry_s=0.01), **limits))
    try:
        yield HostGpu(script, Engines(router, from_chars=from_chars))
    finally:
        router.close()


@cache
def qwen3_files() -> files.TokenizerFiles:
    """Those of the embedded tokenizer, read once a process."""
    return files.read(EMBEDDED)
