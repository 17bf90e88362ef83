"""Devices of the CUDA driver: what all tokenizers of one share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.support.cuda import Cuda
from toktier.gpu.driver import DriverError
from toktier.gpu.router.cuda import CudaDevice
from toktier.gpu.workspace import device_bytes
from toktier.reasons import Gpu

ROOM = 1 << 16
TABLES: Any = SimpleNamespace(
    image=lambda: (np.zeros(100, np.uint8), {"pages": 0}),
    numbers={"states": 9, "moves_size": 100, "sync_size": 100},
    structure=lambda at: b"tables",
)


def opened(cuda: Cuda) -> CudaDevice:
    device = object.__new__(CudaDevice)
    device.device, device._workspace = cast(Any, cuda.device), None
    cuda.device.close = lambda: cuda.detach()
    return device


def test_tokenizers_of_a_device_share_what_launches_work_on(cuda: Cuda) -> None:
    device = opened(cuda)
    encoders = [device.encoder(TABLES, ROOM) for _ in range(3)]
    assert cuda.device_bytes == device_bytes(ROOM) + 300
    assert [bytes(one.encode_view(b"text").astype(np.uint8)) for one in encoders] == [b"text"] * 3
    encoders[0].close()
    assert encoders[1].encode_view(b"abc").tolist() == list(b"abc")
    for encoder in encoders[1:]:
        encoder.close()
    device.close()
    assert (cuda.device_bytes, cuda.detached, cuda.pushed) == (0, 1, 0)


def test_a_tokenizer_that_does_not_fit_takes_nothing_from_the_others(cuda: Cuda) -> None:
    device = opened(cuda)
    kept = device.encoder(TABLES, ROOM)
    cuda.lacks = "image"
    with pytest.raises(DriverError) as error:
        device.encoder(TABLES, ROOM)
    assert device.failure(error.value).reason is Gpu.OUT_OF_MEMORY
    assert cuda.device_bytes == device_bytes(ROOM) + 100
    assert kept.encode_view(b"abc").tolist() == list(b"abc")
    cuda.lacks = ""
    assert device.encoder(TABLES, ROOM).encode_view(b"ab").tolist() == list(b"ab")
