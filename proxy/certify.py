"""`toktier certify`: what a tokenizer's certificate says, and how far it gets on a text.

The words for classes and pairs are for people: they come from Python's Unicode data. The certificate itself never does.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from proxy.certify_words import classes_in_words, kind
from toktier.certificate.store import certificates_in
from toktier.tokenizer import FrozenTokenizer

EXAMPLES = 12
"""Kinds of pairs that are told."""
_BESIDE = 12
"""Characters quoted on either side of a cut."""


class Exit(IntEnum):
    """Exit codes of `toktier certify` and `toktier campaign`."""

    OK = 0
    DIVERGENCE = 1
    UNUSABLE = 2
    REFUSED = 3
    INTERRUPTED = 130
    TERMINATED = 143


@dataclass(frozen=True)
class Example:
    """Pairs of one kind in the text: ``met`` of them, ``cuts`` of which are cuts. ``quote``: both sides of one cut."""

    left: str
    right: str
    met: int
    cuts: int
    quote: tuple[str, str]


@dataclass(frozen=True)
class Coverage:
    """Cuts in one text. ``longest``: characters of the longest stretch without a cut, ``longest_at``: its start."""

    text: str
    characters: int
    cuts: int
    mean_distance: float
    longest: int
    longest_at: int

    @property
    def share(self) -> float:
        """How many of the inner positions are cuts."""
        return self.cuts / max(1, self.characters - 1)


@dataclass
class Report:
    """Everything that `toktier certify` prints. Where there is a refusal the rest is empty.

    ``refusal``: construct and place; ``excerpt`` of the pattern, empty where it is about none, and the index of the
    place in that, ``excerpt_at``. ``cache``: the folder that certificates are kept in; ``from_cache``: whether this one
    came from there.
    """

    source: str
    revision: str | None
    digest: str
    versions: list[str]
    seconds: float
    cache: Path | None = None
    from_cache: bool = False
    refusal: dict[str, Any] | None = None
    summary: Mapping[str, Any] = field(default_factory=dict)
    classes: list[dict[str, Any]] = field(default_factory=list)
    examples: list[Example] = field(default_factory=list)
    coverage: Coverage | None = None

    @property
    def exit_code(self) -> Exit:
        """OK or REFUSED. (UNUSABLE is decided before there is a report.)"""
        return Exit.REFUSED if self.refusal else Exit.OK

    def json(self) -> dict[str, Any]:
        """Plain data."""
        value: dict[str, Any] = {
            "result": "refused" if self.refusal else "certified",
            "tokenizer": {"source": self.source, "revision": self.revision, "digest": self.digest},
            "versions": self.versions,
            "seconds": self.seconds,
            "refusal": self.refusal,
        }
        if self.refusal is None:
            value["certificate"] = {**self.summary, "from_cache": self.from_cache}
            value["classes"] = self.classes
            value["examples"] = [asdict(example) for example in self.examples]
        if self.coverage is not None:
            c = self.coverage
            value["text"] = {
                "source": c.text,
                "characters": c.characters,
                "cuts": c.cuts,
                "share": round(c.share, 4),
                "mean_distance": c.mean_distance,
                "longest": c.longest,
                "longest_at": c.longest_at,
            }
        return value


def inspect(
    source: str | Path,
    texts: Mapping[str, str],
    *,
    revision: str | None = None,
    sidecar: Path | None = None,
    cache_dir: Path | None = None,
) -> Report:
    """The report on a tokenizer. ``texts``: by name, taken as one. Raises `UnusableFile`."""
    started = time.perf_counter()
    tokenizer = FrozenTokenizer.load(source, revision=revision, sidecar=sidecar, cache_dir=cache_dir, window=False)
    seconds = round(time.perf_counter() - started, 2)
    report = Report(tokenizer.source, tokenizer.revision, tokenizer.digest, list(tokenizer.versions), seconds)
    certificate = tokenizer.certificate
    if certificate is None:
        refusal = tokenizer.refusal
        assert refusal is not None
        excerpt, at = refusal.excerpt()
        report.refusal = {
            "construct": refusal.construct,
            "place": refusal.place,
            "excerpt": excerpt,
            "excerpt_at": at if excerpt else None,
        }
        return report
    report.cache = None if cache_dir is None else certificates_in(cache_dir)
    report.from_cache = certificate.from_cache
    report.summary = certificate.summary()
    report.classes = classes_in_words(certificate.table)
    text = "".join(texts.values())
    cuts = certificate.cuts(text)
    report.examples = _examples(text, cuts.tolist())
    report.coverage = _coverage(", ".join(texts), text, cuts)
    return report


def _coverage(name: str, text: str, cuts: np.ndarray[Any, np.dtype[np.int64]]) -> Coverage:
    edges = np.concatenate([[0], cuts, [len(text)]])
    lengths = np.diff(edges)
    longest = int(lengths.argmax())
    mean = round(float(lengths.mean()), 2)
    return Coverage(name, len(text), len(cuts), mean, int(lengths[longest]), int(edges[longest]))


def _examples(text: str, cuts: list[int]) -> list[Example]:
    """The kinds of pairs that are cuts most often."""
    kinds = {c: kind(c) for c in set(text)}
    met = Counter((kinds[a], kinds[b]) for a, b in pairwise(text))
    cut: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], int] = {}
    for place in cuts:
        pair = kinds[text[place - 1]], kinds[text[place]]
        cut[pair] += 1
        first.setdefault(pair, place)
    return [
        Example(*pair, met[pair], count, (text[max(0, at - _BESIDE) : at], text[at : at + _BESIDE]))
        for pair, count in cut.most_common(EXAMPLES)
        for at in [first[pair]]
    ]
