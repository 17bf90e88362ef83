"""On a machine with a GPU: what goes wrong there in fact, each case in a process of its own, for a minute at most.

``python -m tools.kernels.lost TOKENIZER --json FILE`` prints a line a case and exits 1 where a request was lost, had
other IDs than the reference, or was told another reason than the case's. Cases:

- *trap*, *address*: a kernel ends in a trap, or writes where there is nothing, so that the context is lost, and with
  it, as the driver has it, the device for this process; whether it comes back is told, and no fault if not;
- *trap beside another*: the same, while another user of the device's primary context lives in the process;
- *memory*: somebody takes the device's memory until nothing is left, asks for a long text, and gives it back;
- *memory at the start*: all memory is taken when the device is opened.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from toktier.gpu.router.cuda import CudaDevice
from toktier.gpu.router.engine import Engines
from toktier.gpu.router.jobs import Limits
from toktier.gpu.router.router import Router
from toktier.ids import Ids
from toktier.reasons import Gpu
from toktier.rope import Rope
from toktier.tokenizer import FrozenTokenizer
from tools.bench.texts import corpus
from tools.kernels.check import read
from tools.kernels.faults import Script

CACHE = Path("var") / "gpu-check"
LIMIT_S = 60.0
LOST = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry trap() { trap; }
.visible .entry address() { .reg .u64 %a; .reg .u32 %v; mov.u64 %a, 16; mov.u32 %v, 1; st.global.u32 [%a], %v; ret; }
"""
"""Kernels whose context is lost."""


class Case:
    """A router over the first device, in this process. ``told``: what came of it; ``bad``: what should not have."""

    def __init__(self, folder: Path, take_first: bool = False) -> None:
        import pycuda.driver as driver

        self.driver: Any = driver
        self.told: dict[str, Any] = {}
        self.bad: list[str] = []
        self._taken: list[Any] = []
        self._holder: Any = None
        files = read(folder)
        tokenizer = FrozenTokenizer.from_files(files, cache_dir=CACHE)
        self.cpu, self.reference = tokenizer.encoder, tokenizer.reference
        if take_first:
            self.take()
        self.script = Script(CudaDevice)
        self.router = Router(self.script, [0], Limits())
        self.gpu = Engines(self.router, from_chars=1).engine(tokenizer, files, lambda: True, CACHE)
        self.until(lambda: self.gpu.standing is not Gpu.LOADING, 30)

    def until(self, holds: Callable[[], bool], seconds: float) -> float | None:
        """Seconds after which it holds; None where it does not come to that."""
        started = time.monotonic()
        while not holds():
            if time.monotonic() - started > seconds:
                return None
            time.sleep(0.01)
        return round(time.monotonic() - started, 2)

    def ask(self, step: str, text: str, want: Ids, reasons: Sequence[Gpu]) -> Gpu | None:
        """One session start. The reason must be one of ``reasons``."""
        rope = Rope(replace(self.cpu, gpu=self.gpu))
        outcome = rope.set(text).gpu
        self.told[step] = str(outcome)
        if not np.array_equal(rope.ids, want):
            self.bad.append(f"{step}: other IDs than the reference's")
        if outcome not in reasons:
            self.bad.append(f"{step}: {outcome}")
        return outcome

    # the device's primary context, as somebody else's

    def hold(self) -> None:
        self.driver.init()
        self._holder = self.driver.Device(0).retain_primary_context()

    def take(self) -> None:
        """All memory, down to what is too little for any launch."""
        self.hold()
        self._holder.push()
        for size in (1 << 33, 1 << 30, 1 << 27, 1 << 24, 1 << 20):
            with suppress(self.driver.MemoryError):
                while True:
                    self._taken.append(self.driver.mem_alloc(size))
        self.driver.Context.pop()

    def give_back(self) -> None:
        self._holder.push()
        for one in self._taken:
            one.free()
        self._taken.clear()
        self.driver.Context.pop()

    def lose(self, kernel: str) -> None:
        """The next launch finds its context lost."""

        def fault(call: Callable[[], Ids]) -> Ids:
            device = self.script.devices[-1]
            assert isinstance(device, CudaDevice)
            with device.device.current():
                lost = self.driver.module_from_buffer(LOST)
                lost.get_function(kernel)(block=(1, 1, 1), grid=(1, 1))
                with suppress(self.driver.Error):  # the encoder's stream does not wait for this one's
                    self.driver.Context.synchronize()
            return call()

        self.script.calls.append(fault)


def lost(kernel: str, held: bool, folder: Path) -> Case:
    case = Case(folder)
    text = corpus(11, 300_000)
    want = case.reference.encode(text)
    if held:
        case.hold()
    case.ask("before", text, want, [Gpu.USED])
    case.lose(kernel)
    case.ask("during", text, want, [Gpu.DEVICE_LOST])
    case.told["detail"] = case.router.states()[0].detail
    case.ask("after", text, want, [Gpu.PAUSED, Gpu.LOADING])
    case.told["served again after"] = back = case.until(lambda: case.gpu.standing is Gpu.USED, 9)
    case.told["opened"], case.told["detail of the last"] = case.script.opened, case.router.states()[0].detail
    case.ask("last", text, want, [Gpu.PAUSED, Gpu.LOADING] if back is None else [Gpu.USED])
    return case


def no_memory(at_start: bool, folder: Path) -> Case:
    case = Case(folder, take_first=at_start)
    text = corpus(12, 3_000_000)
    want = case.cpu.encode(case.cpu.pieces(text, True)).ids
    if at_start:
        case.told["state"] = reason = case.router.states()[0].reason
        if reason is not Gpu.OUT_OF_MEMORY:
            case.bad.append(f"opened without memory: {reason}")
        case.ask("without memory", text, want, [Gpu.PAUSED, Gpu.LOADING])
    else:
        case.take()
        case.ask("without memory", text, want, [Gpu.USED, Gpu.OUT_OF_MEMORY])  # launches have theirs beforehand
        case.ask("again", text, want, [Gpu.USED, Gpu.OUT_OF_MEMORY, Gpu.PAUSED, Gpu.LOADING])
    case.give_back()
    case.told["served again after"] = case.until(lambda: case.gpu.standing is Gpu.USED, 9)
    before = len(case.script.launches)
    case.ask("with memory", text, want, [Gpu.USED])
    case.told["in launches"] = len(case.script.launches) - before
    worker = case.router.workers[0]
    case.told["in one launch after"] = case.until(lambda: worker.most() == case.router.limits.max_bytes, 20)
    before = len(case.script.launches)
    case.ask("later", text, want, [Gpu.USED])
    if len(case.script.launches) - before != 1:
        case.bad.append("later: more than one launch")
    return case


CONTEXTS: dict[str, Callable[[Path], Case]] = {
    "trap": partial(lost, "trap", False),
    "address": partial(lost, "address", False),
    "trap beside another": partial(lost, "trap", True),
}
MEMORY: dict[str, Callable[[Path], Case]] = {
    "memory": partial(no_memory, False),
    "memory at the start": partial(no_memory, True),
}
CASES = CONTEXTS | MEMORY


def apart(folder: Path, name: str) -> dict[str, Any]:
    """One case in a process of its own."""
    command = [sys.executable, "-m", "tools.kernels.lost", str(folder), "--case", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"case": name, "bad": [f"no end within {LIMIT_S:g} s"]}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return {"case": name, "bad": [f"ended with {done.returncode}: {done.stderr[-300:]}"]}
    told: dict[str, Any] = json.loads(lines[-1])
    return told


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.kernels.lost", description=__doc__)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--case", choices=list(CASES), help="this one, in this process")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    if arguments.case:
        case = CASES[arguments.case](arguments.tokenizer)
        print(json.dumps({"case": arguments.case, **case.told, "bad": case.bad}), flush=True)
        case.router.close()
        return int(bool(case.bad))
    rows = []
    with ThreadPoolExecutor(len(CONTEXTS)) as pool:  # contexts are lost each for itself, memory is everybody's
        at_once = pool.map(partial(apart, arguments.tokenizer), CONTEXTS)
        for row in chain(at_once, map(partial(apart, arguments.tokenizer), MEMORY)):
            rows.append(row)
            print(json.dumps(row), flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row["bad"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
