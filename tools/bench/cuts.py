"""How far apart certified cuts are, by kind of text. A function of the tokenizer and the seed, not of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from toktier.tokenizer import FrozenTokenizer
from tools.bench.texts import STYLES, styled


@dataclass(frozen=True)
class Cuts:
    """Distances between neighbouring cuts of one text, in characters: the mean, the 99.99th percentile, the largest.

    A position is as often in a long stretch as the stretch is long; these are of stretches, each counted once. The ends
    of the text bound stretches as cuts do. 0 where the tokenizer has no certificate.
    """

    tokenizer: str
    text: str
    size: int
    cuts: int
    mean: float
    p9999: int
    longest: int


def run(tokenizers: Sequence[Path], cache_dir: Path, size: int = 1_000_000, seed: int = 1) -> list[Cuts]:
    """A row for each tokenizer and each of `tools.bench.texts.STYLES`, on seeded texts of ``size`` characters."""
    texts = {style: styled(style, seed, size) for style in STYLES}
    rows: list[Cuts] = []
    for path in tokenizers:
        certificate = FrozenTokenizer.load(path, cache_dir=cache_dir, window=False).certificate
        for style, text in texts.items():
            if certificate is None:
                rows.append(Cuts(path.name, style, size, 0, 0.0, 0, 0))
                continue
            cuts = certificate.cuts(text)
            distances = np.diff(np.concatenate(([0], cuts, [len(text)])))
            mean = round(float(distances.mean()), 2)
            rare = int(np.percentile(distances, 99.99, method="higher"))
            rows.append(Cuts(path.name, style, size, len(cuts), mean, rare, int(distances.max())))
    return rows


def table(rows: Sequence[Cuts]) -> str:
    """Markdown: one row a tokenizer; cells are mean / 99.99th percentile / longest."""
    texts = list(dict.fromkeys(row.text for row in rows))
    out = ["| tokenizer | " + " | ".join(texts) + " |", "|---|" + "---:|" * len(texts)]
    found = {(row.tokenizer, row.text): row for row in rows}
    names = dict.fromkeys(row.tokenizer for row in rows)
    out += [f"| {name} | " + " | ".join(cell(found.get((name, text))) for text in texts) + " |" for name in names]
    return "\n".join(out)


def cell(row: Cuts | None) -> str:
    """``mean / 99.99 % / longest``; a dash where there is no certificate."""
    return f"{row.mean:.3g} / {row.p9999:,} / {row.longest:,}" if row is not None and row.cuts else "-"
