"""The demo's table and summary, and the verdict on the whole run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table

from tools.demo.session import Turn

STAGES = ("parse", "normalise", "render", "match", "splice", "serialise")
"""The stages that are TokTier's own work on a request, in order (microseconds)."""
REQUIRED = 0.9
"""Share of the eligible turns that must take the append or the edit path."""
HELD = (
    "tool result, streamed",
    "long tool result",
    "old output pruned",
    "compaction",
    "image",
    "fork: title generator",
    "fork: memory agent",
    "tools changed",
    "new user turn",
)
"""Turns that the session holds: what agents do."""
LEAST = {"turns": 30, "eligible turns": 25, "tokens in a prompt": 50_000}


def own_us(turn: Turn) -> int:
    """Microseconds that TokTier spent on the turn itself."""
    stages: dict[str, int] = turn.log.get("stages_us", {})
    return sum(stages.get(stage, 0) for stage in STAGES)


def _count(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "-"


def _exact(turn: Turn) -> str:
    return {True: "[green]yes[/]", False: "[bold red]NO[/]", None: "[dim]text[/]"}[turn.exact]


WIDE = 150
"""Columns of a terminal that shows everything in one table."""
COUNTS = ("context", "served", "scanned", "tokens")


def tables(turns: Sequence[Turn], width: int) -> list[Table]:
    """One row a turn, in one table where the terminal has `WIDE` columns, else in two."""
    if width >= WIDE:
        return [_table(turns, (*COUNTS, *STAGES), exact=True)]
    return [_table(turns, COUNTS, exact=True), _table(turns, STAGES, exact=False)]


def _table(turns: Sequence[Turn], numbers: Sequence[str], *, exact: bool) -> Table:
    result = Table(
        title="An agent session through TokTier",
        caption="context to scanned: characters; parse to serialise: microseconds by stage of TokTier's own work",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        pad_edge=False,
        collapse_padding=True,
    )
    all_in_one = len(numbers) > len(STAGES)
    result.add_column("#", justify="right", no_wrap=True)
    result.add_column("turn", no_wrap=True, overflow="ellipsis", max_width=24 if all_in_one else 18)
    if exact:
        result.add_column("path", no_wrap=True)
    for name in numbers:
        result.add_column(name, justify="right", no_wrap=True)
    if exact:
        result.add_column("exact", no_wrap=True)
    for number, turn in enumerate(turns, 1):
        log = turn.log
        row = [str(number), turn.what if turn.eligible else f"[dim]{turn.what}[/]"]
        if exact:
            reason = f" [dim]{log['bypass']}[/]" if log["bypass"] and all_in_one else ""
            row.append(f"{log['path']}{reason}")
        values = dict(
            zip(COUNTS, (log["chars"], log["served_chars"], log["scanned_chars"], log["tokens"]), strict=True)
        )
        values |= {stage: log["stages_us"].get(stage) for stage in STAGES}
        row += [_count(values[name]) for name in numbers]
        result.add_row(*row, *([_exact(turn)] if exact else []))
    return result


def problems(turns: Sequence[Turn]) -> list[str]:
    """What keeps the run from being a success, in words; nothing when it is one."""
    found = []
    for number, turn in enumerate(turns, 1):
        if turn.exact is False:
            form, first = turn.verdict.get("form"), turn.verdict.get("first_difference")
            found.append(f"turn {number} ({turn.what}) is not exact: the engine got {form}, first difference {first}")
        if turn.bypass and turn.log["path"] != "bypass":
            found.append(f"turn {number} ({turn.what}) should have been bypassed, but took {turn.log['path']}")
    eligible = [turn for turn in turns if turn.eligible]
    if (share := repaired(turns)) < REQUIRED:
        found.append(f"{share:.0%} of {len(eligible)} eligible turns took append or edit; {REQUIRED:.0%} are required")
    return found


def lacking(turns: Sequence[Turn]) -> list[str]:
    """What the session should hold and does not, in words: a shorter one would prove less."""
    kinds = {turn.what for turn in turns}
    found = [f"the session has no turn {name!r}" for name in HELD if name not in kinds]
    verdicts = [turn.verdict for turn in turns]
    longest = max((verdict.get("tokens") or 0 for verdict in verdicts), default=0)
    for (name, least), held in zip(LEAST.items(), (len(turns), sum(t.eligible for t in turns), longest), strict=True):
        if held < least:
            found.append(f"{held:,} {name}; at least {least:,} are wanted")
    for name, held in (
        ("bypass", sum(turn.bypass for turn in turns) == 1),
        ("second attempt", sum(turn.attempt == 1 for turn in turns) == 1),
        ("verdict on every turn", all(verdicts)),
        ("streamed turn", any(verdict.get("stream") for verdict in verdicts)),
    ):
        if not held:
            found.append(f"the session has not what it should: a {name}")
    return found


def repaired(turns: Sequence[Turn]) -> float:
    """The share of eligible turns on the append or edit path."""
    eligible = [turn for turn in turns if turn.eligible]
    return sum(turn.log["path"] in ("append", "edit") for turn in eligible) / len(eligible) if eligible else 0.0


def summary(console: Console, turns: Sequence[Turn], seconds: float) -> None:
    """A few lines below the table."""
    by_path: dict[str, list[Turn]] = defaultdict(list)
    for turn in turns:
        by_path[turn.log["path"]].append(turn)
    served = sum(turn.log["served_chars"] or 0 for turn in turns)
    scanned = sum(turn.log["scanned_chars"] or 0 for turn in turns)
    checked = [turn for turn in turns if turn.exact is not None]
    eligible = sum(turn.eligible for turn in turns)
    console.print(f"\n[bold]{len(turns)} turns in {seconds:.1f} s[/], checked by the engine's own reference:")
    console.print(f"  exact           {sum(turn.exact is True for turn in checked)} of {len(checked)} with IDs")
    console.print(
        f"  append or edit  {repaired(turns):.0%} of {eligible} eligible turns (not eligible, dimmed: the first "
        "request, forks, a retry, the image, the compaction)"
    )
    console.print(f"  characters      {served:,} served as IDs, {scanned:,} encoded for it ({scanned / served:.1%})")
    for path, members in by_path.items():
        times = [own_us(turn) for turn in members]
        console.print(
            f"  {path:<15} {len(members):>2} turns, median {median(times) / 1000:.2f} ms of TokTier's own work"
        )
