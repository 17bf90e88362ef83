"""minijinja's full render, in its own environment (`tools.bench.environments`): ``python minijinja_process.py``.

A line of JSON on standard input, a line in answer: ``{"source": ...}`` takes a template; ``{"arguments": ..., "runs":
n}`` renders it so often and answers with nanoseconds and the text's digest. It imports nothing of TokTier.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from typing import Any

import minijinja  # type: ignore[import-not-found, unused-ignore]


def _raise(message: str) -> None:
    raise ValueError(message)


def _tojson(value: Any, **options: Any) -> str:
    return json.dumps(value, **{"ensure_ascii": False, **options})


def environment(source: str) -> Any:
    """With the settings that transformers gives Jinja2, as far as minijinja has them."""
    env = minijinja.Environment(templates={"t": source})
    env.trim_blocks = env.lstrip_blocks = env.pycompat = True
    env.add_filter("tojson", _tojson)
    env.add_function("raise_exception", _raise)
    return env


def main() -> None:
    env: Any = None
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        for line in sys.stdin.buffer:
            question = json.loads(line)
            answer: dict[str, Any] = {}
            try:
                if "source" in question:
                    env = environment(question["source"])
                else:
                    times = []
                    text = ""
                    for _ in range(question["runs"]):
                        started = time.perf_counter_ns()
                        text = env.render_template("t", **question["arguments"])
                        times.append(time.perf_counter_ns() - started)
                    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
                    answer = {"ns": times, "digest": digest}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"[:200]}
            answers.write(json.dumps(answer).encode() + b"\n")
            answers.flush()


if __name__ == "__main__":
    main()
