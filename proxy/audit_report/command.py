"""The command `toktier audit`: from arguments to a printed report and an exit code."""

from __future__ import annotations

import io
import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import typer

from proxy.audit_report import page, report, show
from proxy.audit_report.collect import Collected
from proxy.audit_report.sources import Unusable, open_all

UNUSABLE = 2


def audit(logs: list[str], since: str | None, html: Path | None, *, as_json: bool) -> int:
    """Prints the report of ``logs`` and returns the exit code: 0, 1 with a mismatch that is not resolved, 2 where the
    input cannot be used."""
    try:
        collected, built = _built(logs, since)
        if html is not None:
            _write(html, page.render(built, collected))
    except Unusable as error:
        if as_json:
            typer.echo(json.dumps({"exit_code": UNUSABLE, "problem": str(error)}, indent=2))
        else:
            typer.echo(f"toktier: {error}", err=True)
        return UNUSABLE
    if as_json:
        typer.echo(json.dumps(built, indent=2))
    else:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # a model's name need not be in the terminal's encoding
        show.show(built)
    return int(built["exit_code"])


def _built(logs: list[str], since: str | None) -> tuple[Collected, dict[str, Any]]:
    try:
        since_us = None if since is None else report.since(since, time.time())
    except (ValueError, OverflowError):
        raise Unusable("--since takes an age such as 30m, 2h or 7d, or an ISO time") from None
    collected = Collected(since_us)
    with ExitStack() as stack:
        sources, repeated = open_all(logs, sys.stdin.buffer, stack)
        for source in sources:
            collected.read(source)
    if collected.lines.read and not collected.lines.own:
        raise Unusable(f"none of {collected.lines.read:,} lines is one of TokTier's log")
    damaged = next((file for file in collected.files if file["damaged"]), None)
    if damaged is not None and not collected.lines.own:
        raise Unusable(f"{damaged['name']}: {damaged['damaged']}")
    if not collected.lines.own:
        raise Unusable("there is no line in it; nothing was read")
    return collected, report.build(collected, repeated)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Unusable(f"{path}: {(error.strerror or 'cannot be written').lower()}") from None
