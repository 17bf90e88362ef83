"""The other end of `tools.bench.encoders`: starts the process of an engine in its environment, and asks it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from tools.bench import encoders, environments
from tools.bench.records import OURS
from tools.bench.worker import Unmeasured

ENVIRONMENT = {"gigatoken-full, warm": "gigatoken", "toktier-0.3.0": "toktier"}
"""Engines that have an environment of their own; the others run in this one."""
_ROOT = Path(__file__).resolve().parents[2]


class Changed(NamedTuple):
    """What one change took; ``scanned`` characters were looked at for it, where that is known."""

    ns: int
    scanned: int | None


class Encoder:
    """One engine. Ends with its block. All methods raise `Unmeasured`, also after the process had to be ended."""

    def __init__(
        self,
        name: str,
        tokenizer_json: Path,
        folder: Path,
        cache_dir: Path,
        *,
        timeout_s: float = 120.0,
        environments_at: Path | None = None,
        build: bool = True,
    ) -> None:
        """``folder``: of the same tokenizer, for TokTier's own engine. ``build``: make a missing environment."""
        self.name = name
        self.note = ""
        self._timeout_s = timeout_s
        try:
            python = Path(sys.executable)
            if name in ENVIRONMENT:
                python = environments.python_of(ENVIRONMENT[name], environments_at, build)
        except environments.CannotBuild as error:
            raise Unmeasured(str(error)) from error
        own = name == OURS
        # Another package is called toktier as well: in its environment this checkout must not be found.
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        environment |= {"TOKTIER_BENCH_CACHE": str(cache_dir)} | ({"PYTHONPATH": str(_ROOT)} if own else {})
        command = [str(python), "-P", encoders.__file__, name, str(folder if own else tokenizer_json)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment)
        try:
            told = self._answer()
        except Unmeasured:
            self.close()
            raise
        self.version, self.note = told["version"], told["note"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def base(self, text: str) -> None:
        """Begin a session with this text."""
        self._ask({"do": "base"}, text)

    def reset(self) -> None:
        """Begin a session with the same text anew."""
        self._ask({"do": "reset"})

    def change(self, steps: Sequence[tuple[int, int, str]]) -> list[Changed]:
        """Replace characters ``[start, end)`` of the session's text by others; several changes without a pause."""
        sizes = [(start, end, len(new)) for start, end, new in steps]
        told = self._ask({"do": "change", "steps": sizes}, "".join(new for _, _, new in steps))
        return [Changed(*one) for one in told["changed"]]

    def ids(self) -> str:
        """Digest of the session's IDs."""
        digest: str = self._ask({"do": "ids"})["ids"]
        return digest

    def _ask(self, question: dict[str, Any], text: str = "") -> dict[str, Any]:
        assert self._process.stdin is not None
        raw = text.encode()
        try:
            self._process.stdin.write(json.dumps({**question, "bytes": len(raw)}).encode() + b"\n" + raw)
            self._process.stdin.flush()
        except OSError as error:
            raise Unmeasured("its process has ended") from error
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        late = threading.Timer(self._timeout_s, self._process.kill)
        late.start()
        try:
            line = self._process.stdout.readline()
        finally:
            late.cancel()
        if not line:
            code = self._process.wait()
            raise Unmeasured(f"not within {self._timeout_s:.0f} s" if code == -9 else f"its process ended with {code}")
        told: dict[str, Any] = json.loads(line)
        if "error" in told:
            raise Unmeasured(told["error"])
        return told
