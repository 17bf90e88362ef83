"""How much memory launches take, and what the documents say of it."""

from __future__ import annotations

import re

from tests.conftest import ROOT
from tests.support.cuda import Cuda
from toktier.gpu import launcher
from toktier.gpu.chain import layout_for, rooms
from toktier.gpu.router.jobs import Limits
from toktier.gpu.workspace import Workspace, device_bytes, locked_bytes


def test_memory_for_the_longest_text_is_enough_for_all() -> None:
    for limit in (1, 2047, 2048, 5000, 1 << 23, (1 << 24) - 1, 1 << 24, (1 << 24) + 1):
        sizes = [layout_for(room).size for room in rooms(limit)]
        assert device_bytes(limit) == max(sizes)
        assert rooms(limit)[-1] >= limit
    cuda = Cuda()
    workspace = Workspace(cuda, 5000)
    assert (cuda.device_bytes, cuda.locked_bytes) == (device_bytes(5000), locked_bytes(5000))
    assert len(workspace.staging) > 8192 <= len(workspace.out)


def test_the_documents_say_how_much_that_is() -> None:
    """With ``gpu.max_bytes`` as it is."""
    most = Limits().max_bytes
    gpu = (ROOT / "docs" / "gpu.md").read_text()
    (device, locked) = re.findall(r"(\d+) MB of the device's memory.*?(\d+) MB of page-locked", gpu, re.S)[0]
    (library,) = re.findall(r"64 MB and so ([\d.]+) GB of the device", gpu)
    assert library == f"{device_bytes(launcher.ROOM_LIMIT) / 1e9:.1f}"
    assert launcher.ROOM_LIMIT == 64 << 20
    assert (int(device), int(locked)) == (round(device_bytes(most) / 1e6), round(locked_bytes(most) / 1e6))
    settings = (ROOT / "docs" / "configuration.md").read_text()
    (times, own) = re.findall(r"takes (\d+) times as much of a device's memory.*?(\d+) times", settings)[0]
    assert (int(times), int(own)) == (round(device_bytes(most) / most), round(locked_bytes(most) / most))


def test_turns_count_up_for_all_and_stay_a_word() -> None:
    workspace = Workspace(Cuda(), 1)
    assert [workspace.next_turn() for _ in range(3)] == [1, 2, 3]
    workspace._turn = 0xFFFFFFFF
    assert workspace.next_turn() == 0
