"""The embedded engine's side of its reference process (`proxy/embedded_check.py`): start, ask, end.

The process is started by path and without this repository on its module path, so that it cannot share code.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
from pathlib import Path
from typing import Any

from proxy.embedded_check import NO_TRANSFORMERS

PROGRAM = Path(__file__).with_name("embedded_check.py")
LINE_LIMIT = 1 << 28
"""Bytes that one answer may have: a million IDs and more."""


class CheckerFailed(RuntimeError):
    """The reference process did not start or has ended."""


class Checker:
    """One reference process over one tokenizer folder. Answers come in the order of the questions."""

    def __init__(self, process: asyncio.subprocess.Process, hello: dict[str, Any]) -> None:
        self._process = process
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = itertools.count(1)
        self._reader = asyncio.create_task(self._read())
        self.vocab_size: int = hello["vocab_size"]
        self.transformers: str = hello["transformers"]

    @classmethod
    async def start(cls, folder: Path) -> Checker:
        """Start the process and wait until it is ready (a few seconds)."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            str(PROGRAM),
            str(folder),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LINE_LIMIT,
        )
        assert process.stdout is not None
        try:
            line = await process.stdout.readline()
        except BaseException:
            process.kill()
            raise
        if not line:
            status = await process.wait()
            if status == NO_TRANSFORMERS:
                raise CheckerFailed("it checks with transformers, which is not installed: pip install '.[demo]'")
            raise CheckerFailed(f"the reference process ended with status {status}")
        return cls(process, json.loads(line))

    async def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """One question of `proxy/embedded_check.py`, answered. Raises `CheckerFailed` when the process is gone."""
        if self._reader.done():
            raise CheckerFailed("the reference process has ended")
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": number, **question}).encode() + b"\n")
        with contextlib.suppress(ConnectionError):  # the reader sees the end as well and says so
            await self._process.stdin.drain()
        answer: dict[str, Any] = await future
        return answer

    async def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            while line := await self._process.stdout.readline():
                answer = json.loads(line)
                future = self._waiting.pop(answer.pop("id"))
                if not future.done():
                    future.set_result(answer)
        finally:
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(CheckerFailed("the reference process has ended"))
            self._waiting.clear()

    async def close(self) -> None:
        """End the process: its input ends; it is killed when that does not help."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 5)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await asyncio.gather(self._reader, return_exceptions=True)
