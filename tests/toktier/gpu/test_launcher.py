"""What can be told of the launcher without a GPU: its launches are kernels that exist, within what a device takes."""

from __future__ import annotations

import re

import pytest

from toktier.gpu.buffers import LARGE, SMALL, TEAM_BLOCKS, Layout
from toktier.gpu.chain import LARGE_FROM, NAMES, SMALLEST_ROOM, Sizes, chain
from toktier.gpu.fatbin import SOURCES

OTHER = {"small": "_large", "large": "_small"}
DECLARED = r'extern "C" __global__ void __launch_bounds__\((\w+(?:::\w+)?)(?:, \d+)?\) tt_(\w+?)(?:_##NAME)?\('


def declared() -> dict[str, str]:
    """The kernels of ``kernels.cu`` with the threads that each is compiled for."""
    source = (SOURCES / "kernels.cu").read_text().replace("\\\n", "\n")
    return {name: threads for threads, name in re.findall(DECLARED, source)}


def test_every_launch_is_a_kernel_with_its_threads() -> None:
    kernels = declared()
    assert len(kernels) > 9
    for room, shape in ((SMALLEST_ROOM, SMALL), (1 << 20, SMALL), (LARGE_FROM, LARGE), (64 << 20, LARGE)):
        for kernel in chain(Layout.of(room, shape), 132):
            threads = kernels[kernel.name.removesuffix(f"_{shape.name}")]
            known = {"THREADS": shape.threads}
            assert kernel.threads == (known[threads] if threads in known else int(threads)), kernel
    assert {name.removesuffix("_small").removesuffix("_large") for name in NAMES} == kernels.keys()


@pytest.mark.parametrize("processors", [1, 16, 132])
def test_launches_fit_every_device(processors: int) -> None:
    for bits in range(12, 28):
        for shape in (SMALL, LARGE):
            for kernel in chain(Layout.of(1 << bits, shape), processors):
                assert 1 <= kernel.blocks < 1 << 16
                assert kernel.threads in (128, 256, 1024)
                assert not kernel.together or kernel.blocks <= TEAM_BLOCKS


def test_every_kernel_of_the_chain_is_launched_once() -> None:
    for room, shape in ((1 << 20, SMALL), (LARGE_FROM, LARGE)):
        names = [kernel.name for kernel in chain(Layout.of(room, shape), 132)]
        assert names == [name for name in NAMES if not name.endswith(OTHER[shape.name])]


def test_blocks_that_wait_for_each_other_are_launched_together() -> None:
    kernels = chain(Layout.of(LARGE_FROM, LARGE), 132)
    assert [kernel.name for kernel in kernels if kernel.together] == ["heads_large", "stretches"]


def test_shared_memory_is_what_a_transducer_needs() -> None:
    sizes = Sizes(10_000, 20_000, stretches=40_000, probe=9_500, merge=9_800)
    assert sizes.shared("tiles_small", 20) == 10_000
    assert sizes.shared("heads_small", 20) == 10_000 + 4 * 20 * 128 + 16 * 128
    assert sizes.shared("stretches") == 40_000
    assert sizes.shared("merge") == 9_800
    assert sizes.shared("windows") == 0
