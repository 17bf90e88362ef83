"""Starts and stops the engine: one at a time per cache folder, on loopback only, known by its process id.

Invariant: a process is signalled only if it is the one that `state.json` names: same id and same start time, so an id
that the system has given to someone else in the meantime is left alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.engine.build import EngineError, build, venv_python
from tools.engine.model import LONG, TINY, Shape, make_model

TOKENIZER = Path(__file__).resolve().parents[2] / "toktier" / "data" / "qwen3"
SERVED_NAME = "tiny"
PROGRESS_S = 10.0
FLAGS = (
    *("--served-model-name", SERVED_NAME, "--dtype", "float32", "--enforce-eager"),
    *("--max-num-seqs", "8", "--disable-uvicorn-access-log"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"),
    *("--enable-prefix-caching", "--enable-prompt-tokens-details"),
    *("--enable-scale-out", "--enable-tokenizer-info-endpoint"),
)
SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}


@dataclass(frozen=True)
class Running:
    """An engine process. `started` is its start time in clock ticks since boot."""

    pid: int
    started: int
    url: str
    model: str
    log: str


def ensure_started(
    cache: Path,
    tokenizer: Path = TOKENIZER,
    port: int = 0,
    timeout_s: float = 300.0,
    say: Callable[[str], None] = print,
    shape: Shape = TINY,
) -> Running:
    """Builds what is missing, then starts the engine or finds one running, of whatever shape. One caller at a time."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        build(cache, say=say)
        name = "long-qwen3" if shape == LONG else "tiny-qwen3"
        return start(cache, make_model(cache / "models" / name, tokenizer, shape), port, timeout_s, say, shape.context)


def start(
    cache: Path,
    model: Path,
    port: int = 0,
    timeout_s: float = 300.0,
    say: Callable[[str], None] = print,
    context: int = TINY.context,
) -> Running:
    """The running engine, or a new one once it answers `/health`. Raises `EngineError`."""
    running = current(cache)
    if running:
        if not healthy(running.url):
            raise EngineError(f"an engine (process {running.pid}) does not answer; stop it first. Log: {running.log}")
        return running
    port = port or free_port()
    log = cache / "engine.log"
    command = [str(venv_python(cache).with_name("vllm")), "serve", str(model), "--host", "127.0.0.1"]
    env = {**os.environ, **SETTINGS, "OMP_NUM_THREADS": str(min(4, os.cpu_count() or 1))}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--port", str(port), "--max-model-len", str(context), *FLAGS],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=cache,
            start_new_session=True,
        )
    running = Running(process.pid, start_time(process.pid) or 0, f"http://127.0.0.1:{port}", SERVED_NAME, str(log))
    state_file(cache).write_text(json.dumps(asdict(running)) + "\n", encoding="utf-8")
    try:
        wait_until_ready(running, process, timeout_s, say)
    except BaseException:
        stop(cache)
        raise
    return running


def wait_until_ready(
    running: Running, process: subprocess.Popen[bytes], timeout_s: float, say: Callable[[str], None]
) -> None:
    begun = said = time.monotonic()
    while not healthy(running.url):
        now = time.monotonic()
        if process.poll() is not None:
            raise EngineError(f"the engine ended with status {process.returncode}. Log:\n{tail(Path(running.log))}")
        if now - begun > timeout_s:
            raise EngineError(f"the engine was not ready after {timeout_s:.0f} s. Log:\n{tail(Path(running.log))}")
        if now - said >= PROGRESS_S:
            said = now
            say(f"  waiting for the engine, {now - begun:.0f} s: {tail(Path(running.log), 1)[:100]}")
        time.sleep(0.25)


def stop(cache: Path, grace_s: float = 15.0) -> bool:
    """Ends the engine and its children; false if none runs."""
    running = current(cache)
    state_file(cache).unlink(missing_ok=True)
    if not running:
        return False
    family = [(running.pid, running.started), *descendants(running.pid)]
    send(family, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline and any(alive(*member) for member in family):
        time.sleep(0.1)
    send(family, signal.SIGKILL)
    return True


def current(cache: Path) -> Running | None:
    try:
        running = Running(**json.loads(state_file(cache).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return running if alive(running.pid, running.started) else None


def state_file(cache: Path) -> Path:
    return cache / "state.json"


def healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as reply:  # noqa: S310 - our own http URL
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def stat_fields(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the command's name (which may hold spaces): state, parent, ..."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def start_time(pid: int) -> int | None:
    fields = stat_fields(pid)
    return int(fields[19]) if fields else None


def alive(pid: int, started: int) -> bool:
    """Whether this very process runs. Reaps it if it is our own ended child."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    fields = stat_fields(pid)
    return bool(fields and fields[0] != "Z" and int(fields[19]) == started)


def descendants(root: int) -> list[tuple[int, int]]:
    children: dict[int, list[tuple[int, int]]] = {}
    for entry in Path("/proc").iterdir():
        fields = stat_fields(int(entry.name)) if entry.name.isdigit() else None
        if fields:
            children.setdefault(int(fields[1]), []).append((int(entry.name), int(fields[19])))
    found, todo = [], [root]
    while todo:
        mine = children.get(todo.pop(), [])
        found += mine
        todo += [pid for pid, _ in mine]
    return found


def send(family: list[tuple[int, int]], number: signal.Signals) -> None:
    for pid, started in family:
        if alive(pid, started):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def tail(log: Path, lines: int = 25) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
