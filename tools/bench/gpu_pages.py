"""The tables of docs/gpu.md, from docs/bench/gpu.json and gpu-stages.json (`tools.bench.gpu`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.bench import records
from tools.bench.gpu import BESIDE
from tools.bench.records import Record

PAGE = "docs/gpu.md"
SIZES = (1_000, 4_000, 16_000, 64_000, 1_000_000, 4_000_000, 8_000_000)
REQUESTS = (
    ("host to host, pinned", "steady"),
    ("host to host, pinned", "fresh"),
    ("host to host, bytes", "steady"),
    ("host to host, bytes", "list"),
    ("device", "steady"),
)
KINDS = ("code", "prose", "mixed", "chat", "CJK")
IN_TURN, ALONE, DEVICE, CORES, BATCH = (
    "host to host, pinned, in turn",
    "host to host, bytes",
    "device",
    "cores",
    "batch",
)
MERGES = ("heads", "windows", "longs", "stretches", "probe")
"""Kernels that make tokens of pieces of more than 63 bytes: LLBPE's account."""
SEQUENCES = "sequences of "


@dataclass(frozen=True)
class Stages:
    """What gpu-stages.json says: medians of kernels in microseconds, and shares of equal IDs."""

    kernels: dict[tuple[str, str, int], dict[str, float]]
    """By tokenizer, text and its bytes."""
    shares: dict[tuple[str, str], float]


def stages(file: Path) -> Stages:
    found = Stages({}, {})
    for row in json.loads(file.read_text(encoding="utf-8")) if file.exists() else ():
        if "share" in row:
            found.shares[row["tokenizer"], row["text"]] = row["share"]
        else:
            kernels = found.kernels.setdefault((row["tokenizer"], row["text"], row["bytes"]), {})
            kernels[row["kernel"]] = row["p50_us"]
    return found


def parts(folder: Path) -> Iterator[tuple[str, str, str]]:
    """(document, marker, content) of each part."""
    file = folder / "gpu.json"
    rows = records.read(file) if file.exists() else []
    known = stages(folder / "gpu-stages.json")
    for marker, content in (
        ("requests", _requests(rows)),
        ("bulk", _bulk(rows, known)),
        ("beside", _beside(rows)),
        ("batches", _batches(rows)),
        ("merges", _merges(known)),
    ):
        yield PAGE, f"bench gpu {marker}", content or "Not measured yet: `python -m tools.bench gpu`."


def _names(engines: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(engines))


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]], words: int) -> str:
    """Markdown; nothing where there are no lines. ``words``: columns that are aligned to the left."""
    found = [f"| {' | '.join(line)} |" for line in lines]
    ruler = "|".join(["---"] * words + ["---:"] * (len(heads) - words))
    return "\n".join([f"| {' | '.join(heads)} |", f"|{ruler}|", *found]) if found else ""


def _cells(rows: Iterable[Record], keys: Sequence[int], told: Callable[[Record], str]) -> list[str]:
    by_size = {row.size: row for row in rows}
    return [told(by_size[key]) if key in by_size and by_size[key].n else "" for key in keys]


def _us(value: float) -> str:
    return f"{value:.0f}" if value < 10_000 else f"{value / 1000:,.0f} ms"


def _percentiles(row: Record) -> str:
    return f"{_us(row.p50_us)} / {_us(row.p99_us)}"


def _requests(rows: Sequence[Record]) -> str:
    lines = []
    for name in _names(row.engine for row in rows if row.account == REQUESTS[0][0]):
        for account, case in REQUESTS:
            own = [row for row in rows if (row.account, row.case, row.engine) == (account, case, name)]
            lines.append([name, f"{account}, {case}", *_cells(own, SIZES, _percentiles)])
    return _table(["tokenizer", "account", *map(_characters, SIZES)], lines, 2)


def _characters(size: int) -> str:
    return f"{size // 1_000_000} M" if size >= 1_000_000 else f"{size // 1000} K"


def _bulk(rows: Sequence[Record], known: Stages) -> str:
    """GB/s: the whole path, where pieces begin, and host to host in turn."""

    def rates(name: str, account: str) -> list[str]:
        found = {row.case: row for row in rows if (row.account, row.engine) == (account, name)}
        cases = [found.get(f"bulk {kind}") for kind in KINDS]
        return [f"{row.size / row.p50_us / 1000:.1f}" if row else "" for row in cases]

    def pieces(name: str) -> list[str]:
        sized = sorted(
            (size, text) for of, text, size in known.kernels if of == name
        )  # of each text the longest counts
        found = {text: size / _of(known.kernels[name, text, size], ("tiles",)) / 1000 for size, text in sized}
        return [f"{found[kind]:.0f}" if kind in found else "" for kind in KINDS]

    names = _names(row.engine for row in rows if row.account == IN_TURN)
    lines = [
        line
        for name in names
        for line in (
            [name, "device, the whole path", *rates(name, DEVICE)],
            [name, "device, where pieces begin", *pieces(name)],
            [name, "host to host, pinned, in turn", *rates(name, IN_TURN)],
        )
    ]
    return _table(["tokenizer", "account", *KINDS], lines, 2)


def _of(kernels: dict[str, float], names: Sequence[str]) -> float:
    return sum(us for kernel, us in kernels.items() if kernel.split("_")[0] in names)


def _beside(rows: Sequence[Record]) -> str:
    """One request of ours, beside busy processes, and by other libraries."""
    lines = []
    for name in _names(row.engine for row in rows if row.account == REQUESTS[0][0]):
        own = [row for row in rows if row.engine == name and row.account.startswith(ALONE) and row.case == "steady"]
        for account in _names(row.account for row in own):
            these = [row for row in own if row.account == account]
            lines.append([name, f"TokTier, {account}", *_cells(these, BESIDE, _percentiles)])
        cores = [row for row in rows if row.account == CORES and row.engine.startswith(f"{name}, ")]
        for engine in _names(row.engine for row in cores):
            these = [row for row in cores if row.engine == engine]
            library = engine.removeprefix(f"{name}, ")
            cells = _cells(these, BESIDE, _percentiles)
            lines.append([name, f"{library}, cores" + ("" if any(cells) else f" ({these[0].note})"), *cells])
    return _table(["tokenizer", "by", *map(_characters, BESIDE)], lines, 2)


def _batches(rows: Sequence[Record]) -> str:
    own = [row for row in rows if row.account.endswith(BATCH)]
    cases = _names(row.case for row in own)
    lines = []
    for name in _names(row.engine for row in own):
        by_case = {row.case: row for row in own if row.engine == name}
        lines.append([name, *(_percentiles(by_case[case]) if case in by_case else "" for case in cases)])
    return _table(["tokenizer", *cases], lines, 1)


def _merges(known: Stages) -> str:
    """GB/s of merges alone, and the share of IDs that are the reference's."""
    found: dict[str, dict[str, str]] = {}
    for (name, text, size), kernels in known.kernels.items():
        if text.startswith(SEQUENCES):
            share = known.shares.get((name, text))
            told = f"{size / _of(kernels, MERGES) / 1000:.2f}" + ("" if share is None else f", {share:.2%}")
            found.setdefault(name, {})[text.removeprefix(SEQUENCES)] = told
    lengths = _names(length for row in found.values() for length in row)
    lines = [[name, *(row.get(length, "") for length in lengths)] for name, row in found.items()]
    return _table(["tokenizer", *(f"{length} bytes" for length in lengths)], lines, 1)
