"""The report of `toktier certify` for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape

from proxy.certify import Example, Report
from proxy.certify_words import many, pointed_at, shown


def show(report: Report, console: Console | None = None) -> None:
    """Prints the report to standard output."""
    out = console or Console(highlight=False)
    revision = f" at {report.revision}" if report.revision else ""
    _line(out, "tokenizer", f"{report.source}{revision}")
    _line(out, "digest", report.digest)
    _line(out, "engines", ", ".join(report.versions))
    if report.refusal is not None:
        _line(out, "refused", f"{report.refusal['construct']}, at {report.refusal['place']}")
        for line in pointed_at(report.refusal["excerpt"], report.refusal["excerpt_at"]):
            _line(out, "", line)
        out.print("\nno certificate: the tokenizer is served by full encodes")
        return
    summary = report.summary
    for label, text in _stages(summary):
        _line(out, label, text)
    kinds = [f"{summary['cut_pairs']} of {summary['classes'] ** 2} pairs of classes"]
    if summary["cut_pairs_if_next"]:
        kinds.append(f"{summary['cut_pairs_if_next']} of them depend on the next character")
    if summary.get("cut_pairs_if_apart"):
        kinds.append(f"{summary['cut_pairs_if_apart']} on the two characters themselves, by the merges")
    _line(out, "classes", f"{summary['classes']}, from {many(summary['atoms'], 'atom')}")
    _line(out, "cuts", "; ".join(kinds))
    _line(out, "interior", _interior(summary))
    cache = f" ({report.cache})" if report.cache else ""
    origin = f"from the cache{cache}" if report.from_cache else f"derived just now; it was not in the cache{cache}"
    _line(out, "certificate", f"{summary['digest'][:16]}, {origin}")
    _line(out, "loaded in", f"{report.seconds} s, with the certificate's check against the engine")
    coverage = report.coverage
    assert coverage is not None
    out.print(f"\non {escape(coverage.text)}, {many(coverage.characters, 'character')}", soft_wrap=True)
    out.print(
        f"  {many(coverage.cuts, 'cut')}: {100 * coverage.share:.1f} % of all positions, {coverage.mean_distance} "
        f"characters apart on average; the longest stretch without one has {many(coverage.longest, 'character')}, "
        f"from character {coverage.longest_at:,}",
        soft_wrap=True,
    )
    if report.examples:
        out.print("  most often between")
    for example in report.examples:
        out.print(f"    {escape(_example(example))}", soft_wrap=True)


def _line(out: Console, label: str, text: str) -> None:
    out.print(f"{label:<14}{escape(text)}", soft_wrap=True)


def _stages(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "normalizer", str(summary["normalizer"])
    for condition in summary.get("normalizer_conditions", ()):
        yield "", f"  {condition}"
    stages = summary.get("stages") or []
    if not stages:
        yield "pre-tokenizer", "none"
    for k, stage in enumerate(stages):
        yield "pre-tokenizer" if k == 0 else "", _stage(stage)
        yield "", f"  {_condition(stage)}"
    yield "model", str(summary["model"])
    if summary.get("merges"):
        yield "", f"  cuts inside unsplit text, by the merges (lemma 3): {summary['merges']}"
    flags = {name: n for name, n in (summary.get("literal_flags") or {}).items() if n}
    told = f" ({', '.join(f'{n} {name}' for name, n in flags.items())})" if flags else ""
    yield "added tokens", f"{summary['literals']}{told}"
    if summary["literals"]:
        yield "", "  no cut inside one, nor beside white space that one may strip (lemma 5)"


def _stage(stage: Mapping[str, Any]) -> str:
    if "pattern" in stage:
        invert = ", inverted" if stage.get("invert") else ""
        return f"split {shown(stage['pattern'])} ({stage['behaviour']}{invert})"
    return f"{stage['type']} {stage.get('name') or stage.get('scheme') or ''}".strip()


_STRICT = {
    ("Isolated", False): "a or b is always matched alone",
    ("Removed", False): "a or b is always matched alone",
    ("Removed", True): "no match spans the two",
    ("Isolated", True): "a or b is always matched alone",
    ("MergedWithPrevious", False): "a is always matched alone",
    ("MergedWithPrevious", True): "b is always matched alone",
    ("MergedWithNext", False): "b is always matched alone",
    ("MergedWithNext", True): "a is always matched alone",
    ("Contiguous", False): "one of a and b is always matched alone and the other never matched",
    ("Contiguous", True): "one of a and b is always matched alone and the other never matched",
}


def _condition(stage: Mapping[str, Any]) -> str:
    if "pattern" not in stage:
        if stage["type"] == "prefix":
            return "parts of a text are encoded with the character before them, or cut at an earlier split"
        return "a and b are judged by what they become"
    strict = _STRICT.get((stage["behaviour"], bool(stage.get("invert"))), "see docs/proof.md")
    return f"no match spans a and b, no lookahead tells b from the end; a piece ends there if {strict} (lemmas 1, 2)"


def _interior(summary: Mapping[str, Any]) -> str:
    if not summary.get("interior"):
        return "no: parts are encoded as texts of their own"
    where = "each segment between added tokens" if summary.get("prefix") == "segment" else "the text"
    return (
        f"yes: the start of {where} is treated in a way of its own (something is put before it, or stripped off it), "
        "so a part of a text is encoded with the character before it"
    )


def _example(example: Example) -> str:
    share = 100 * example.cuts / example.met
    often = f"{share:.0f} %"
    if example.cuts == example.met or not 1 <= share < 99.5:
        often = "always" if example.cuts == example.met else "rarely" if share < 1 else "nearly always"
    return f"{example.left}, then {example.right}: {often} ({shown(example.quote[0])}|{shown(example.quote[1])})"
