"""What can be told of the launcher without a GPU: its launches are kernels that exist, within what a device takes."""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.support.cuda import Cuda
from toktier.gpu import launcher
from toktier.gpu.buffers import LARGE, REQUEST, SMALL, TEAM_BLOCKS, Layout, Shape
from toktier.gpu.chain import BRIEF, BULK_FROM, NAMES, ONE, Automata, Sizes, chain, is_bulk, layout_for, room_for, rooms
from toktier.gpu.fatbin import SOURCES
from toktier.gpu.graph import DriverError
from toktier.gpu.launcher import LOOKS, Bucket, Device, Encoder, KernelFault, quicker
from toktier.gpu.workspace import Workspace, device_bytes, locked_bytes

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
            known = {"THREADS": shape.threads, "PROBE_THREADS": 128, "Brief::THREADS": 512}
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
    sizes = Sizes(10_000, 20_000, stretches=40_000, probe=9_500, merge=9_800, brief=70_000, pulled=2_144)
    assert sizes.shared("tiles_small", Automata(20, 101, 303)) == 10_000 + 1_024 + 2_144
    assert sizes.shared("heads_small", Automata(20, 101, 303)) == 10_000 + 1_024 + 4 * 20 * 128 + 16 * 128
    assert sizes.shared("tiles_large") == 20_000 + 4 * 1024 + 2 * 2560
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
        self.bucket._next_turn = lambda: self.bucket._turn + 1
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


def test_tables_that_the_kernels_give_up_on_are_for_the_first_text_to_tell() -> None:
    def faults(_text: bytes) -> int:
        raise KernelFault

    ways: Any = [SimpleNamespace(time=faults, graph=SimpleNamespace(close=lambda: None)) for _ in range(2)]
    assert quicker(list(ways)) is ways[0]


def made(cuda: Cuda, limit: int = 1 << 16, workspace: Workspace | None = None) -> Encoder:
    tables = SimpleNamespace(
        image=lambda: (np.zeros(100, np.uint8), {"pages": 0}),
        numbers={"states": 9, "moves_size": 100, "sync_size": 100},
        structure=lambda at: b"tables",
    )
    return Encoder(cuda.device, cast(Any, tables), room_limit=limit, workspace=workspace)


def test_an_encoder_takes_all_that_it_needs_when_it_is_made(cuda: Cuda) -> None:
    encoder = made(cuda, 32 << 20)
    assert cuda.device_bytes == 100 + device_bytes(32 << 20)
    assert cuda.locked_bytes == locked_bytes(32 << 20)
    taken = cuda.device_bytes, cuda.locked_bytes, len(cuda.graphs)
    for size in (1, 2047, 2048, 4096, 4097, 40_000, 3_000_000, (16 << 20) - 1, 32 << 20):
        text = np.arange(size, dtype=np.uint8).tobytes()
        assert np.array_equal(encoder.encode(text), np.frombuffer(text, np.uint8)), size
    assert (cuda.device_bytes, cuda.locked_bytes, len(cuda.graphs)) == taken
    with pytest.raises(ValueError, match="33,554,433 bytes"):
        encoder.encode(bytes((32 << 20) + 1))
    encoder.close()
    assert (cuda.device_bytes, cuda.open_graphs) == (0, 0)


def test_encoders_of_one_workspace_take_turns_in_the_same_memory(cuda: Cuda) -> None:
    workspace = cuda.device.workspace(1 << 16)
    encoders = [made(cuda, workspace=workspace) for _ in range(3)]
    assert cuda.device_bytes == 3 * 100 + device_bytes(1 << 16)
    assert cuda.locked_bytes == locked_bytes(1 << 16)
    with ThreadPoolExecutor(3) as pool:
        texts = [bytes([k % 251]) * (k * 37 % 5000 + 1) for k in range(90)]
        asked = [pool.submit(encoders[k % 3].encode, text) for k, text in enumerate(texts)]
        assert all(bytes(future.result().astype(np.uint8)) == text for future, text in zip(asked, texts, strict=True))
    for encoder in encoders:
        encoder.close()
    assert (cuda.device_bytes, cuda.open_graphs) == (device_bytes(1 << 16), 0)
    with cuda.device.current():
        workspace.close()
    assert cuda.device_bytes == 0


def test_what_another_size_was_told_is_not_the_answer(cuda: Cuda) -> None:
    """All sizes are told in the same place: an answer that comes late must be waited for."""
    encoder = made(cuda)
    sizes = (1, 3000, 50_000)
    for size in sizes:
        encoder.encode(b"a" * size)
    cuda.late = True
    for k in range(9):
        text = bytes([k]) * sizes[k % 3]
        assert encoder.encode(text).tolist() == list(text)


def test_every_text_finds_its_counters_at_zero(cuda: Cuda) -> None:
    """The last kernel leaves them so, but of texts of which the host copies the IDs."""
    encoder = made(cuda, 32 << 20)
    bulk = sum(is_bulk(layout_for(room)) for room in rooms(32 << 20))
    assert bulk == 2
    assert cuda.zeroed == [REQUEST.itemsize] * (1 + bulk)
    encoder.close()


def test_no_stream_waits_for_the_default_one(cuda: Cuda) -> None:
    """`Cuda` has no copy on the default stream: the tables lie there before the first launch all the same."""
    encoder = made(cuda)
    assert cuda.streams == [1]
    assert cuda.copied_before_synchronised == [100]
    encoder.close()


@pytest.mark.parametrize("step", ["graph", "upload", "image", "locked"])
def test_what_was_taken_is_given_back_where_memory_does_not_suffice(cuda: Cuda, step: str) -> None:
    cuda.lacks = step
    with pytest.raises(DriverError, match="OUT_OF_MEMORY"):
        made(cuda)
    assert (cuda.device_bytes, cuda.open_graphs, cuda.pushed) == (0, 0, 0)


def test_a_device_that_cannot_be_opened_holds_nothing(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []

    class Strange:
        def __init__(self, _content: bytes) -> None: ...

        def numbers(self, _name: str) -> Any:
            return np.zeros(9, np.uint32)

        def close(self) -> None:
            closed.append(cuda.pushed)

    monkeypatch.setattr(launcher, "Module", Strange)
    monkeypatch.setitem(sys.modules, "pycuda", ModuleType("pycuda"))
    monkeypatch.setitem(sys.modules, "pycuda.driver", cast(Any, cuda))
    sys.modules["pycuda"].driver = cuda  # type: ignore[attr-defined]
    with pytest.raises(KernelFault, match="build them again"):
        Device(cast(Any, SimpleNamespace(content=b"")))
    assert (closed, cuda.detached, cuda.pushed) == ([1], 1, 0)
