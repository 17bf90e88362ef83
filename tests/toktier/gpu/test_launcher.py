"""What can be told of the launcher without a GPU: its launches are kernels that exist, within what a device takes."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from toktier.gpu.buffers import LARGE, SMALL, TEAM_BLOCKS, Layout, Shape
from toktier.gpu.chain import BRIEF, BULK_FROM, NAMES, Sizes, chain, is_brief, is_bulk, layout_for, room_for
from toktier.gpu.fatbin import SOURCES
from toktier.gpu.graph import DriverError
from toktier.gpu.launcher import Device

DECLARED = r'extern "C" __global__ void __launch_bounds__\((\w+(?:::\w+)?)(?:, \d+)?\) tt_(\w+?)(?:_##NAME)?\('


def declared() -> dict[str, str]:
    """The kernels of ``kernels.cu`` with the threads that each is compiled for."""
    source = (SOURCES / "kernels.cu").read_text().replace("\\\n", "\n")
    return {name: threads for threads, name in re.findall(DECLARED, source)}


def test_every_launch_is_a_kernel_with_its_threads() -> None:
    kernels = declared()
    assert len(kernels) > 9
    for room, shape in ((BRIEF, SMALL), (2 * BRIEF, SMALL), (1 << 20, SMALL), (BULK_FROM, LARGE), (64 << 20, LARGE)):
        for kernel in chain(Layout.of(room, shape), 132):
            threads = kernels[kernel.name.removesuffix(f"_{shape.name}")]
            known = {"THREADS": shape.threads, "PROBE_THREADS": 128, "Brief::THREADS": 256}
            assert kernel.threads == (known[threads] if threads in known else int(threads)), kernel
    assert {name.removesuffix("_small").removesuffix("_large") for name in NAMES} == kernels.keys()


@pytest.mark.parametrize("processors", [1, 16, 132])
def test_launches_fit_every_device(processors: int) -> None:
    for bits in range(11, 28):
        for shape in (SMALL, LARGE):
            for kernel in chain(Layout.of(1 << bits, shape), processors):
                assert 1 <= kernel.blocks < 1 << 16
                assert kernel.threads in (128, 256, 1024)
                assert not kernel.together or kernel.blocks <= TEAM_BLOCKS


@pytest.mark.parametrize(
    ("room", "shape", "rest"),
    [
        (1 << 20, SMALL, ["longs", "probe", "merge_few", "finish"]),
        (8 << 20, SMALL, ["longs", "probe", "merge", "finish"]),
        (BULK_FROM, LARGE, ["windows", "stretches", "probe", "merge", "sums", "compact"]),
    ],
)
def test_long_texts_have_more_launches(room: int, shape: Shape, rest: list[str]) -> None:
    names = [kernel.name for kernel in chain(Layout.of(room, shape), 132)]
    assert names == [f"tiles_{shape.name}", f"heads_{shape.name}", *rest]
    assert set(names) <= set(NAMES)


def test_blocks_that_wait_for_each_other_are_launched_together() -> None:
    for room, shape in ((BULK_FROM // 2, SMALL), (BULK_FROM, LARGE)):
        kernels = chain(Layout.of(room, shape), 132)
        assert {kernel.name for kernel in kernels if kernel.together} <= {f"heads_{shape.name}", "longs", "stretches"}
        assert sum(kernel.together for kernel in kernels) == 2


def test_shared_memory_is_what_a_transducer_needs() -> None:
    sizes = Sizes(10_000, 20_000, stretches=40_000, probe=9_500, merge=9_800, brief=70_000)
    assert sizes.shared("tiles_small", 20) == 10_000
    assert sizes.shared("heads_small", 20) == 10_000 + 4 * 20 * 128 + 16 * 128
    assert sizes.shared("stretches") == sizes.shared("longs") == 40_000
    assert sizes.shared("merge") == 9_800
    assert sizes.shared("windows") == 0
    assert sizes.shared("brief") == 70_000


def test_brief_texts_are_shorter_than_a_tile() -> None:
    """A text that fills a tile has another one behind it, which may begin with what only the first tile never has."""
    rooms = {size: room_for(size) for size in (1, BRIEF - 1, BRIEF, BRIEF + 1, 2 * BRIEF, 2 * BRIEF + 1, 3_000_000)}
    assert list(rooms.values()) == [BRIEF, BRIEF, 2 * BRIEF, 2 * BRIEF, 2 * BRIEF, 4 * BRIEF, 1 << 22]
    assert all(size <= room for size, room in rooms.items())
    assert SMALL.tile == BRIEF
    ways = [(is_brief(layout_for(1 << bits)), is_bulk(layout_for(1 << bits))) for bits in range(11, 27)]
    assert ways == [(True, False), *[(False, False)] * 12, *[(False, True)] * 3]
    assert [kernel.name for kernel in chain(layout_for(BRIEF), 132)] == ["brief"]


def test_a_lost_context_is_given_back_all_the_same() -> None:
    """Else the process holds on to it for good."""

    class Context:
        pushed = 0
        detached = False

        def push(self) -> None:
            self.pushed += 1

        def pop(self) -> None:
            self.pushed -= 1

        def detach(self) -> None:
            self.detached = True

    class Lost:
        def close(self) -> None:
            raise DriverError("cuModuleUnload", "CUDA_ERROR_LAUNCH_FAILED")

    context = Context()
    device: Any = object.__new__(Device)
    device.driver = SimpleNamespace(Context=context)
    device._context, device._module, device._functions = context, Lost(), {}
    with pytest.raises(DriverError):
        device.close()
    assert (context.detached, context.pushed) == (True, 0)
