"""The table of families: the cuts of each tokenizer, what they cost and what they bring, from three measurements."""

from __future__ import annotations

from collections.abc import Sequence

from tools.bench import cuts, derive, full
from tools.bench.records import OURS
from tools.bench.texts import STYLES


def table(distances: Sequence[cuts.Cuts], times: Sequence[derive.Derive], encodes: Sequence[full.Full]) -> str:
    """Markdown, one row a tokenizer of ``distances``; a dash where one of the others has no row for it."""
    found = {(row.tokenizer, row.text): row for row in distances}
    derived = {row.tokenizer: row for row in times}
    fresh = {(row.tokenizer, row.cores, row.engine): row.p50_us for row in encodes if row.text == "fresh"}
    cores = sorted({row.cores for row in encodes if row.text == "fresh"})
    head = ["tokenizer", *STYLES, "certificate"]
    head += [f"full encode, {k} core{'s'[: k > 1]}" for k in cores]
    out = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for name in dict.fromkeys(row.tokenizer for row in distances):
        cells = [name, *(cuts.cell(found.get((name, style))) for style in STYLES), _times(derived.get(name))]
        for k in cores:
            ours = fresh.get((name, k, OURS), 0.0)
            ratios = [_ratio(fresh.get((name, k, engine), 0.0), ours) for engine in ("hf-encode", full.ONE_THREAD)]
            cells.append(" / ".join(ratios))
        out.append("| " + " | ".join(cells) + " |")
    return "\n".join(out)


def _times(row: derive.Derive | None) -> str:
    if row is None:
        return "-"
    return row.refusal or f"{row.cold_s:.1f} s / {row.cached_s:.2f} s"


def _ratio(other: float, ours: float) -> str:
    return f"{other / ours:.3g}x" if other and ours else "-"
