"""What folding makes of a template, as data: for `toktier template`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jinja2

from toktier.folding.allowed import NotFolded
from toktier.folding.compiled import compiled
from toktier.folding.plan import LoopPlan
from toktier.folding.reasons import HELP
from toktier.folding.sites import Read
from toktier.folding.syntax import described

_READ = {
    Read.VALUE: "values",
    Read.THRESHOLD: "thresholds",
    Read.LIST: "lists",
    Read.OUTER: "outer",
}


def explained(env: jinja2.Environment, source: str) -> dict[str, Any]:
    """``folds`` ("yes", "partly" or "no"), ``reason`` and ``detail`` where it is "no", and ``loops``: of every loop at
    the level of the template its ``line``, what it runs ``over``, whether it is ``folded``, and what it depends on
    (or why it is kept); ``looks_up``: the keys by which it searches lists. Raises ``jinja2.TemplateSyntaxError``."""
    try:
        made = compiled(env, source).program
    except NotFolded as reason:
        told = {"folds": "no", "reason": reason.reason.value, "help": HELP[reason.reason], "detail": reason.detail}
        return told | {"loops": []}
    loops = [_folded(loop, made.keys) for loop in made.loops]
    loops += [
        {
            "line": loop.line,
            "over": loop.over,
            "folded": False,
            "reason": loop.reason.value,
            "help": HELP[loop.reason],
            "detail": loop.detail,
        }
        for loop in made.kept
    ]
    loops.sort(key=lambda loop: loop["line"])
    return {"folds": "partly" if made.kept else "yes", "loops": loops}


def _folded(loop: LoopPlan, keys: Sequence[str]) -> dict[str, Any]:
    reads: dict[str, list[str]] = {}
    for site in loop.sites:
        reads.setdefault(_READ[site.read], []).append(described(site.node))
    return {
        "line": loop.line,
        "over": loop.over,
        "folded": True,
        "backwards": loop.backwards,
        "breaks": loop.breaks,
        "carried": [f"{name}.{attribute}" for name, attribute in loop.attributes if (name, attribute) in loop.read],
        "written": [f"{name}.{attribute}" for name, attribute in loop.attributes if (name, attribute) not in loop.read],
        "reads": reads,
        "looks_up": list(dict.fromkeys(keys[one] for one in loop.lookups)),
    }
