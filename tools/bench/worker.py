"""A process that measures one tokenizer with a given number of cores, and the other end of its pipe.

Thread pools take their size when a process begins, so every number of cores needs a process of its own. Questions and
answers are lines of JSON. A measurement that does not end in time is ended with its process.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

ENGINES = ("toktier-proxy", "hf-encode", "hf-full", "fastokens-full")
"""``hf-encode`` is ``Tokenizer.encode``; ``hf-full``, the reference, is ``encode_batch_fast`` of one text."""


class Unmeasured(Exception):
    """There is no number; says why in a few words."""


class Worker:
    """One process for the tokenizer at ``path`` on ``cores`` cores. Ends with its block."""

    def __init__(self, path: Path, cores: int, cache_dir: Path, timeout_s: float) -> None:
        self._command = [sys.executable, "-m", "tools.bench.worker", str(path), str(cores), str(cache_dir)]
        self._environment = {**os.environ, "RAYON_NUM_THREADS": str(cores), "FASTOKENS_BPE_THREADS": str(cores)}
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.restart()

    def restart(self) -> None:
        """Ends the process; the next measurement is made in a new one."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def measure(self, engine: str, text: str, size: int, seed: int) -> tuple[int, str]:
        """Nanoseconds and the digest of the IDs. ``text``: "fresh" or one of `tools.bench.texts.WORST`.

        Raises `Unmeasured`.
        """
        answer = self._ask({"engine": engine, "text": text, "size": size, "seed": seed})
        if "error" in answer:
            raise Unmeasured(answer["error"])
        return answer["ns"], answer["ids"]

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self._environment
            )
            assert self._process.stdout is not None
            if not self._process.stdout.readline():
                raise RuntimeError("the tokenizer could not be loaded; the process has said why")
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        late = threading.Timer(self._timeout_s, self._process.kill)
        late.start()
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        finally:
            late.cancel()
        if not line:
            code = self._process.wait()
            self.restart()
            raise Unmeasured(f"not within {self._timeout_s:.0f} s" if code == -9 else f"the process ended with {code}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def main() -> None:
    path, cores, cache_dir = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)  # the log of a load is no answer
        engines = _engines(path, cache_dir)
        out.write(b"ready\n")
        out.flush()
        for line in sys.stdin:
            out.write(json.dumps(_answer(engines, json.loads(line))).encode() + b"\n")
            out.flush()


def _engines(path: Path, cache_dir: Path) -> tuple[dict[str, Callable[[str], Any]], str]:
    """What can be measured, by name, and the literal that a worst case repeats."""
    from tokenizers import Tokenizer

    from toktier.engines.fastokens import FastokensEngine
    from toktier.rope import Rope
    from toktier.tokenizer import FrozenTokenizer

    tokenizer = FrozenTokenizer.load(path, cache_dir=cache_dir)
    encoder = tokenizer.encoder

    def rope(text: str) -> Any:
        new = Rope(encoder)
        new.set(text)
        return new.ids

    found: dict[str, Callable[[str], Any]] = {"toktier-proxy": rope, "hf-full": tokenizer.reference.encode}
    backend = getattr(tokenizer.reference, "tokenizer", None)
    if isinstance(backend, Tokenizer):
        # As anyone has it: it remembers words, which TokTier's own does not. It may not from one run to the next.
        plain = Tokenizer.from_str(backend.to_str())
        forget = getattr(plain.model, "_clear_cache", lambda: None)
        found["hf-encode"] = lambda text: (forget(), plain.encode(text, add_special_tokens=False).ids)[1]
        found["hf-full"] = lambda text: (forget(), plain.encode_batch_fast([text], add_special_tokens=False)[0].ids)[1]
    if isinstance(tokenizer.window, FastokensEngine):
        found["fastokens-full"] = tokenizer.window.encode
    for encode in found.values():
        encode("once before the clock starts " * 100)
    literals = [token["content"] for token in tokenizer.spec.get("added_tokens") or () if token.get("special")]
    return found, min(literals, key=lambda literal: (-len(literal), literal), default="")


def _answer(engines: tuple[dict[str, Callable[[str], Any]], str], question: dict[str, Any]) -> dict[str, Any]:
    import numpy as np

    from tools.bench.texts import corpus, worst

    found, literal = engines
    if question["engine"] not in found:
        return {"error": "no such engine here"}
    encode = found[question["engine"]]
    if question["text"] == "fresh":
        text = corpus(question["seed"], question["size"])
    elif question["text"] == "one literal" and not literal:
        return {"error": "no literals"}
    else:
        text = worst(question["text"], question["seed"], question["size"], literal)
    start = time.perf_counter_ns()
    try:
        ids = encode(text)
    except BaseException as error:  # a panic of native code is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        return {"error": f"{type(error).__name__}"}
    took = time.perf_counter_ns() - start
    return {"ns": took, "ids": hashlib.blake2b(np.asarray(ids, np.uint32).tobytes(), digest_size=8).hexdigest()}


if __name__ == "__main__":
    main()
