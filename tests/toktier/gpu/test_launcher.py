"""What can be told of the launcher without a GPU: its launches are kernels that exist, within what a device takes."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from toktier.gpu.buffers import LARGE, REQUEST, SMALL, TEAM_BLOCKS, Layout, Shape
from toktier.gpu.chain import BRIEF, BULK_FROM, NAMES, ONE, Sizes, chain, is_bulk, layout_for, room_for
from toktier.gpu.fatbin import SOURCES
from toktier.gpu.graph import DriverError
from toktier.gpu.launcher import LOOKS, Bucket, Device, KernelFault, quicker

DECLARED = r'extern "C" __global__ void __launch_bounds__\((\w+(?:::\w+)?)(?:, \d+)?\) tt_(\w+?)(?:_##NAME)?\('


def declared() -> dict[str, str]:
    """The kernels of ``kernels.cu`` with the threads that each is compiled for."""
    source = (SOURCES / "kernels.cu").read_text().replace("\\\n", "\n")
    return {name: threads for threads, name in re.findall(DECLARED, source)}


def test_every_launch_is_a_kernel_with_its_threads() -> None:
    kernels = declared()
    assert len(kernels) > 9
    for room, shape in ((BRIEF, SMALL), (2 * BRIEF, SMALL), (1 << 20, SMALL), (BULK_FROM, LARGE), (64 << 20, LARGE)):
        for kernel in [*chain(Layout.of(room, shape), 132), *ONE]:
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
    assert [is_bulk(layout_for(1 << bits)) for bits in range(11, 27)] == [False] * 13 + [True] * 3


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


class _Watched:
    """A bucket without a device: what its kernel tells comes after so many looks, or when the driver is asked."""

    def __init__(self, looks: int, *, bulk: bool = False, error: int = 0) -> None:
        self.bucket: Any = object.__new__(Bucket)
        self.looks, self.error, self.asked = looks, error, 0
        self.told = [0] * (REQUEST.itemsize // 4 + 1)
        self.bucket._told, self.bucket._request, self.bucket._turn, self.bucket._size = self, [0] * 64, 0, 9
        self.bucket.stream = SimpleNamespace(synchronize=self.synchronize)
        self.bucket._ids = 1 if bulk else None
        self.bucket._driver = SimpleNamespace(memcpy_dtoh_async=lambda *_: None)
        self.bucket.out = np.arange(99, dtype=np.uint32)

    def synchronize(self) -> None:
        self.asked += 1
        self._tell()

    def __getitem__(self, word: int) -> int:
        if word == len(self.told) - 1:
            self.looks -= 1
            if self.looks == 0:
                self._tell()
        return self.told[word]

    def _tell(self) -> None:
        self.told = np.zeros(2 * REQUEST.itemsize, np.uint8).view(np.uint32).tolist()[: len(self.told)]
        self.told[REQUEST.fields["total"][1] // 4] = 7  # type: ignore[index]
        self.told[REQUEST.fields["error"][1] // 4] = self.error  # type: ignore[index]
        self.told[-1] = self.bucket._turn


def test_the_host_watches_for_its_turn_and_asks_the_driver_only_where_that_takes_long() -> None:
    for looks, asked in ((1, 0), (LOOKS // 2, 0), (LOOKS + 1, 1)):
        watched = _Watched(looks)
        watched.bucket._head()
        assert watched.bucket._request[:1] == [9]
        watched.bucket.wait()
        assert (watched.asked, len(watched.bucket.result())) == (asked if LOOKS else 1, 7)


def test_an_earlier_turn_is_not_this_one() -> None:
    watched = _Watched(0)
    watched.told[-1] = 5
    watched.bucket._turn = 5
    watched.bucket._head()
    watched.bucket.wait()
    assert watched.asked == 1
    watched.bucket._turn = 0xFFFFFFFF
    watched.bucket._head()
    assert watched.bucket._turn == 0


def test_of_long_texts_the_driver_is_asked() -> None:
    watched = _Watched(1, bulk=True)
    watched.bucket._head()
    watched.bucket.wait()
    assert watched.asked == 2


def test_a_fault_is_told_with_the_turn() -> None:
    watched = _Watched(1, error=1)
    watched.bucket._head()
    with pytest.raises(KernelFault):
        watched.bucket.wait()


def test_the_quicker_way_is_kept_and_the_other_one_given_up() -> None:
    closed: list[int] = []

    def way(ns: int) -> Any:
        return SimpleNamespace(time=lambda _: ns, graph=SimpleNamespace(close=lambda: closed.append(ns)), ns=ns)

    for times in ((3, 2), (2, 3)):
        assert quicker([way(ns) for ns in times]).ns == 2
    assert closed == [3, 3]
    only = way(1)
    assert quicker([only]) is only
