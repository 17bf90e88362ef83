"""The proxy as a process of its own, with a configuration file and a log file in a folder."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import aiohttp

START_S = 300.0
"""Longest start: the first one derives the tokenizer's certificate."""
END_S = 120.0
"""Longest end: replies and checks that run may finish."""


class ProxyFailed(RuntimeError):
    """The proxy ended, or never became ready; the text has the end of what it wrote."""


def config(upstream: str, models: Sequence[str] = ("m",), **tables: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration: one upstream, these models with the embedded tokenizer. ``tables`` are merged over it.

    A table ``model`` holds for every model.
    """
    each = {"upstream": "e", "tokenizer": "embedded", **tables.pop("model", {})}
    tree: dict[str, Any] = {
        "server": {"port": 0},
        "upstreams": {"e": {"url": upstream}},
        "models": {name: dict(each) for name in models},
    }
    for name, table in tables.items():
        own = tree.setdefault(name, {})
        for key, value in table.items():
            own[key] = {**own[key], **value} if isinstance(own.get(key), dict) else value
    return tree


class Served:
    """A proxy on a free port of the loopback, ready. ``async with``; it is ended, by its id, when the block ends.

    ``tree`` is its configuration (`config`), ``command`` what is run with the configuration's path after it, ``folder``
    where its files go (state, log, what it says on standard error): a new one, removed at the end, unless given.
    """

    def __init__(
        self,
        tree: Mapping[str, Any],
        *,
        command: Sequence[str] = (sys.executable, "-m", "proxy.cli", "serve", "--config"),
        folder: Path | None = None,
    ) -> None:
        self._tree = tree
        self._command = command
        self._given = folder
        self.folder: Path
        self.url = ""
        self.process: asyncio.subprocess.Process

    async def __aenter__(self) -> Self:
        self._own = tempfile.TemporaryDirectory(prefix="toktier-") if self._given is None else None
        self.folder = Path(self._own.name) if self._own is not None else self._given or Path()
        try:
            await self.start()
        except BaseException:
            self._remove()
            raise
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop()
        self._remove()

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def pid(self) -> int:
        return self.process.pid

    async def start(self) -> None:
        """Start the process and wait until it serves with repair. Raises `ProxyFailed`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.rewrite(self._tree)
        # A user's own TOKTIER_* settings are for their proxy.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TOKTIER_")}
        known = self.log.stat().st_size if self.log.exists() else 0
        self.url = ""
        with self._said.open("ab") as stderr:
            self.process = await asyncio.create_subprocess_exec(
                *self._command, str(file), stdin=asyncio.subprocess.DEVNULL, stderr=stderr, env=environment
            )
        try:
            await self._ready(known)
        except BaseException:
            await self.stop()
            raise

    def rewrite(self, tree: Mapping[str, Any]) -> Path:
        """Put another configuration in the file's place, for the next start or SIGHUP."""
        tree = {
            **tree,
            "auth": {"state_dir": str(self.folder / "state"), **tree.get("auth", {})},
            "log": {"path": str(self.log), **tree.get("log", {})},
        }
        file = self.folder / "toktier.toml"
        file.write_text(to_toml(tree), encoding="utf-8")
        return file

    async def stop(self, number: int = signal.SIGTERM) -> int:
        """End it by a signal and wait; by SIGKILL if it does not end. Returns its exit code."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)
            try:
                await asyncio.wait_for(self.process.wait(), END_S)
            except TimeoutError:
                self.process.kill()
                await self.process.wait()
        assert self.process.returncode is not None
        return self.process.returncode

    def events(self, *names: str) -> Iterator[dict[str, Any]]:
        """What the log holds by now; only the events of these names, if any are given."""
        with self.log.open("rb") as lines:
            for raw in lines:
                if not raw.endswith(b"\n"):
                    return  # it is being written
                line = json.loads(raw)
                if not names or line["event"] in names:
                    yield line

    async def ask(self, path: str) -> tuple[int, str]:
        """GET a path: status and text."""
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(10)) as http,
            http.get(self.url + path) as response,
        ):
            return response.status, await response.text()

    def said(self) -> str:
        """What it wrote to standard error by now."""
        return self._said.read_text(encoding="utf-8", errors="replace")

    @property
    def _said(self) -> Path:
        return self.folder / "stderr"

    async def _ready(self, known: int) -> None:
        deadline = time.monotonic() + START_S
        answer = ""
        while time.monotonic() < deadline and self.process.returncode is None:
            await asyncio.sleep(0.05)
            if not self.url and not (self.log.exists() and self._listening(known)):
                continue
            with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError, ValueError):
                status, answer = await self.ask("/ready")
                if status == 200 and not json.loads(answer).get("degraded"):
                    return
        said = self.said()[-2000:]
        raise ProxyFailed(f"the proxy did not become ready; it said: {said or answer}")

    def _listening(self, known: int) -> bool:
        with self.log.open("rb") as lines:
            lines.seek(known)
            for raw in lines:
                if raw.endswith(b"\n") and (line := json.loads(raw))["event"] == "listening":
                    self.url = line["urls"][0]
        return bool(self.url)

    def _remove(self) -> None:
        if self._own is not None:
            self._own.cleanup()


def to_toml(tree: Mapping[str, Any], place: str = "") -> str:
    """A tree of tables with strings, numbers, booleans and lists as TOML. None values are left out."""
    own, inner = [], []
    for key, value in tree.items():
        name = json.dumps(key)
        if isinstance(value, Mapping):
            inner.append(to_toml(value, f"{place}.{name}" if place else name))
        elif value is not None:
            own.append(f"{name} = {json.dumps(value, ensure_ascii=False)}")
    head = [f"[{place}]"] if place else []
    return "\n".join([*head, *own, *inner, ""])
