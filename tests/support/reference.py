"""The prompt IDs that a chat body should give, from transformers in another process (`proxy/embedded_check.py`)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
QWEN3 = ROOT / "toktier" / "data" / "qwen3"


class Refused(Exception):
    """The reference, like the engine, answers this request with 400."""


class Reference:
    """One process over one tokenizer folder, asked synchronously. Shares no code with the tier."""

    def __init__(self, folder: Path = QWEN3) -> None:
        program = ROOT / "proxy" / "embedded_check.py"
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(program), str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline()
        self._known: dict[str, list[int]] = {}

    def __enter__(self) -> Reference:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    def ids(self, body: Mapping[str, Any]) -> list[int]:
        """Raises `Refused`."""
        question = json.dumps({"id": 1, "op": "chat", "body": body})
        if question not in self._known:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(question.encode() + b"\n")
            self._process.stdin.flush()
            answer = json.loads(self._process.stdout.readline())
            if "refused" in answer:
                raise Refused(answer["refused"])
            self._known[question] = answer["ids"]
        return self._known[question]
