"""What can be told of the launcher without a GPU: its launches are kernels that exist, within what a device takes."""

from __future__ import annotations

import re

import pytest

from toktier.gpu.buffers import LARGE, SMALL, Layout
from toktier.gpu.fatbin import SOURCES
from toktier.gpu.launcher import LARGE_FROM, SMALLEST_ROOM, chain

DECLARED = r'extern "C" __global__ void __launch_bounds__\((\w+(?:::\w+)?)\) tt_(\w+?)(?:_##NAME)?\('


def declared() -> dict[str, str]:
    """The kernels of ``kernels.cu`` with the threads that each is compiled for."""
    source = (SOURCES / "kernels.cu").read_text().replace("\\\n", "\n")
    return {name: threads for threads, name in re.findall(DECLARED, source)}


def test_every_launch_is_a_kernel_with_its_threads() -> None:
    kernels = declared()
    assert len(kernels) > 12
    for room, shape in ((SMALLEST_ROOM, SMALL), (1 << 20, SMALL), (LARGE_FROM, LARGE), (64 << 20, LARGE)):
        for kernel in chain(Layout.of(room, shape), 132):
            threads = kernels[kernel.name.removesuffix(f"_{shape.name}")]
            known = {"GROUP": 64, "THREADS": shape.threads}
            assert kernel.threads == (known[threads] if threads in known else int(threads)), kernel


@pytest.mark.parametrize("processors", [1, 16, 132])
def test_launches_fit_every_device(processors: int) -> None:
    for bits in range(12, 28):
        for shape in (SMALL, LARGE):
            for kernel in chain(Layout.of(1 << bits, shape), processors):
                assert 1 <= kernel.blocks < 1 << 16
                assert kernel.threads in (64, 128, 256, 1024)


def test_large_texts_are_merged_by_threads_and_summed_up_apart() -> None:
    small = [kernel.name for kernel in chain(Layout.of(LARGE_FROM // 2, SMALL), 132)]
    large = [kernel.name for kernel in chain(Layout.of(LARGE_FROM, LARGE), 132)]
    assert "merge" in small
    assert "scan" not in small  # the last block of merge does it
    assert large[-4:] == ["merge_many", "scan", "compact", "deliver"]
