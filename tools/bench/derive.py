"""How long a certificate takes: with nothing kept on disk, and with what an earlier start kept.

Every derivation runs in a process of its own, so that nothing is kept in memory either. The file is read and the engine
made of it before the clock starts. Limits: `COLD_S` and `CACHED_S`.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tools.bench.progress import progress_bar

COLD_S, CACHED_S = 10.0, 0.3


@dataclass(frozen=True)
class Derive:
    """Medians of ``n`` derivations in seconds; ``refusal`` where there is no certificate."""

    tokenizer: str
    n: int
    cold_s: float
    cached_s: float
    refusal: str = ""


def run(tokenizers: Sequence[Path], rounds: int = 3) -> list[Derive]:
    """A row for each tokenizer. Shows a progress bar."""
    rows: list[Derive] = []
    with progress_bar() as progress:
        task = progress.add_task("derive", total=len(tokenizers) * rounds)
        for path in tokenizers:
            progress.update(task, description=f"derive: {path.name}")
            cold: list[float] = []
            cached: list[float] = []
            refusal = ""
            for _ in range(rounds):
                with tempfile.TemporaryDirectory() as folder:
                    for times in (cold, cached):
                        seconds, refusal = _in_a_process(path, Path(folder))
                        times.append(seconds)
                progress.advance(task)
            rows.append(Derive(path.name, rounds, _median(cold), _median(cached), refusal))
    return rows


def _median(seconds: list[float]) -> float:
    return round(statistics.median(seconds), 3)


def over_limit(rows: Sequence[Derive]) -> list[str]:
    """The rows that are beyond a limit, or have no certificate, in words."""
    return [
        f"{row.tokenizer}: {row.refusal or f'{row.cold_s} s cold, {row.cached_s} s cached'}"
        for row in rows
        if row.refusal or row.cold_s > COLD_S or row.cached_s > CACHED_S
    ]


def table(rows: Sequence[Derive]) -> str:
    """Markdown: one row a tokenizer."""
    out = ["| tokenizer | nothing cached | cached |", "|---|---:|---:|"]
    out += [f"| {row.tokenizer} | {row.cold_s:.2f} s | {row.cached_s:.3f} s |" for row in rows]
    return "\n".join(out)


def _in_a_process(path: Path, cache_dir: Path) -> tuple[float, str]:
    command = [sys.executable, "-m", "tools.bench.derive", str(path), str(cache_dir)]
    answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])
    return answer["seconds"], answer["refusal"]


def main() -> None:
    """One derivation; prints a line of JSON."""
    from tokenizers import Tokenizer

    from toktier import files
    from toktier.certificate import certify, certify_ranks
    from toktier.engines.reference import ReferenceEngine
    from toktier.engines.tiktoken_engine import TiktokenEngine
    from toktier.errors import Refusal
    from toktier.rank_files import ranks_of
    from toktier.reference_of import engine_versions

    source, cache_dir = sys.argv[1], Path(sys.argv[2])
    read = files.read(source)
    key = read.digest(engine_versions())
    derive: Callable[[], object]
    if read.sidecar is None:
        spec = json.loads(read.tokenizer) | {"truncation": None, "padding": None}
        reference = ReferenceEngine(Tokenizer.from_str(read.tokenizer.decode())).tokenizer
        derive = partial(certify, spec, reference, cache_dir=cache_dir, key=key)
    else:
        ranks = ranks_of(read.tokenizer, json.loads(read.sidecar), source)
        engine = TiktokenEngine(ranks, source)
        derive = partial(certify_ranks, ranks.pattern, [*ranks.special_tokens], engine, cache_dir=cache_dir, key=key)
    refusal = ""
    start = time.perf_counter()
    try:
        derive()
    except Refusal as error:
        refusal = str(error)
    print(json.dumps({"seconds": time.perf_counter() - start, "refusal": refusal}))


if __name__ == "__main__":
    main()
