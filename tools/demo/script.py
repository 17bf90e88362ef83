"""What the demo's engine answers: a script of an agent at work, seeded, the same on every run."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from proxy.embedded_script import Call, Failure, Script, Turn
from tools.trace_text import NAMES, Text

TITLE_MARK = "Write a title of at most six words"
MEMORY_MARK = "List what is worth remembering"
IMAGE_MARK = "Here is a screenshot"

FINAL_AT = frozenset({10})
"""Turns, by the number of assistant messages before them, that end the model's work and call no tool."""
FAILS_AT = 15
"""The turn whose first attempt the engine answers with 503."""
LENGTH = 40


def make_script(seed: int) -> Script:
    """The replies, by the number of assistant messages in the request; marked ones for forks and the image."""
    rng = Random(f"script/{seed}")
    turns = [
        Turn(when=TITLE_MARK, text="Repair the session store"),
        Turn(when=MEMORY_MARK, text="- the store drops what is least recently used\n- 测试用 `make test` 运行"),
        Turn(when=IMAGE_MARK, text="The graph shows the store's size; it levels off after the fix."),
    ]
    for number in range(LENGTH):
        turn = _final(rng) if number in FINAL_AT else _working(rng, number)
        if number == FAILS_AT:
            turn.failures.append(Failure(status=503, message="the engine is busy (scripted)"))
        turns.append(turn)
    return Script(turns=turns)


def _final(rng: Random) -> Turn:
    return Turn(text=Text(rng).prose() + "\n\nDone: all tests pass.", reasoning="Everything is green; I can report.")


def _working(rng: Random, number: int) -> Turn:
    text = Text(rng, non_ascii=number % 3 == 0)
    calls = [_call(rng, text) for _ in range(2 if number % 7 == 3 else 1)]
    return Turn(
        text=text.sentence() if number % 2 else None,
        reasoning=text.prose() if number % 3 != 1 else None,
        tool_calls=calls,
    )


def _call(rng: Random, text: Text) -> Call:
    """A tool call with the odd spacing and escapes that models write."""
    path = f"src/{rng.choice(NAMES)}/{rng.choice(NAMES)}.py"
    name, arguments = rng.choice(
        (
            ("read_file", {"path": path, "offset": rng.randrange(400), "limit": 200}),
            ("search", {"pattern": f"def {rng.choice(NAMES)}_", "path": "src"}),
            ("run", {"command": f"pytest -q tests/{rng.choice(NAMES)} 2>&1 | tail -n 40", "timeout": 90.0}),
            ("edit_file", {"path": path, "old": text.code(), "new": text.code()}),
        )
    )
    spacing = rng.choice(((",", ":"), (", ", ": "), (" ,", " : ")))
    return Call(name=name, arguments=json.dumps(arguments, separators=spacing, ensure_ascii=rng.random() < 0.5))


def tool(name: str, description: str, **properties: str) -> dict[str, Any]:
    """An OpenAI function tool; ``properties`` are names and JSON types."""
    parameters = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    tool("read_file", "Read a file of the project.", path="string", offset="integer", limit="integer"),
    tool("search", "Search the project with a regular expression.", pattern="string", path="string"),
    tool("run", "Run a shell command; its output is returned.", command="string", timeout="number"),
    tool("edit_file", 'Replace the text "old" by "new" in a file.', path="string", old="string", new="string"),
]
LATE_TOOL = tool("web_fetch", "Fetch a page as text (an MCP server has just come up).", url="string")
