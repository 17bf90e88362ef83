"""A real bug: fastokens 0.3.1 keeps regex matches of the text before, and reuses some that the new text would change.

``python -m tools.faults real-bug --json FILE`` forces it as the whole-text engine of a proxy (`tools.faults.forced`),
in an environment of its own (`tools.faults.environment`), and replays sessions in which a terminal's text grows from
request to request. Where the text so far ends in a line end and blanks and the new text goes on with blank lines, the
white space is one piece in the new text; fastokens keeps the line end as a piece of its own. Sometimes that makes as
many IDs as the right ones are, so that no count shows it. The same requests with every text in a process of its own
have no text before them.

It was seen only in texts without an added token, so the model here has a chat template that writes none.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from tools.faults import plan, reading
from tools.faults.campaign import COMMAND, idle, shadow
from tools.traffic import Client, Engine, Served, config, reference_ids

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }} {% elif m.role == 'user' %}"
    "USER: {{ m.content }} {% else %}ASSISTANT: {{ m.content }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
"""As for models that know roles only as words."""
START_CHARS = 5_000
"""Of a terminal's text in the first request; fastokens keeps matches from 4,096 bytes on."""
_WORDS = ("build", "test", "link", "compile", "error", "warning", "module", "object", "file", "line", "passed", "in")
_ENDS = ("\n ", "\n  ", "\n\t\t", " \n ", "\n\n    ")
_BLANKS = ("\n  \n", "\n\t\n", "\n", "\n\n", "\r\n")


@dataclass(frozen=True)
class Replay:
    """One replay. ``engine``: ``kept`` (one instance for all texts) or ``fresh`` (a process for each text)."""

    engine: str
    requests: int
    wrong: int
    """Requests whose IDs were not the right ones, as the harness itself found."""
    same_length: int
    """Of these, those with as many IDs as the right ones."""
    checks: int
    caught: int
    caught_same_length: int
    missed: int
    false_positives: int
    drops: int
    counted_otherwise: int
    examples: list[dict[str, Any]]
    """What the log says of the first mismatch of either form."""

    @property
    def problems(self) -> list[str]:
        """What must not be."""
        found = []
        if self.missed or self.false_positives or self.drops or self.checks != self.requests:
            found.append("not every request was checked, or a verdict was wrong")
        if self.engine == "fresh" and self.wrong:
            found.append("wrong IDs from a fresh process")
        if self.engine == "kept" and not 0 < self.caught_same_length < self.caught:
            found.append("both forms of the bug should have been found")
        return [f"{self.engine}: {one}" for one in found]


def session(seed: int, requests: int) -> Iterator[dict[str, Any]]:
    """Chat bodies: a task, and a terminal's text that grows from one to the next."""
    rng = Random(f"terminal/{seed}")
    seen = f"$ make -j{seed}\n"
    while len(seen) < START_CHARS:
        seen += _lines(rng)
    for _ in range(requests):
        seen += _lines(rng).rstrip("\n") + rng.choice(_ENDS)
        messages = [
            {"role": "system", "content": "You watch a terminal."},
            {"role": "user", "content": f"What happened?\n{seen}"},
        ]
        yield {"model": "m", "messages": messages, "max_tokens": 1}
        seen += rng.choice(_BLANKS)


def _lines(rng: Random) -> str:
    return "".join(" ".join(rng.choices(_WORDS, k=rng.randint(2, 9))) + "\n" for _ in range(rng.randint(1, 3)))


async def replay(engine: str, python: str, bodies: Sequence[dict[str, Any]]) -> Replay:
    """Send the bodies one after the other through a proxy run by ``python`` with a forced engine; all are checked."""
    with tempfile.TemporaryDirectory(prefix="toktier-real-bug-") as name:
        folder = Path(name)
        noted, todo, template = folder / "noted.jsonl", folder / "plan.json", folder / "template.jinja"
        template.write_text(TEMPLATE, encoding="utf-8")
        plan.Plan(noted, engine=engine).write(todo)
        upstream = Engine(reference_ids(chat_template=template))
        async with upstream:
            tree = config(
                upstream.url,
                shadow=shadow(1.0, "report"),
                model={"chat_template": str(template)},
                server={"inline_below_bytes": 0},  # an engine that takes seconds may not do so on the event loop
            )
            command = (python, "-m", COMMAND, str(todo))
            async with Served(tree, command=command, folder=folder / "proxy") as proxy, Client(proxy.url) as client:
                for number, body in enumerate(bodies):
                    reply = await client.send({**body, "user": f"r-{number}"}, f"r-{number}")
                    if reply.status != 200:
                        raise RuntimeError(f"r-{number}: {reply.status} {reply.error}")
                await idle(proxy)
                await proxy.stop()
                log = reading.read_log(proxy.log)
        return _counted(engine, log, _noted(noted))


def _noted(file: Path) -> dict[str, tuple[int, int]]:
    """Request id -> (IDs that were right, IDs that were sent) of every request with wrong IDs."""
    notes = [json.loads(line) for line in file.read_bytes().splitlines()]
    return {note["request_id"]: (note["tokens"], note["sent"]) for note in notes}


def _counted(engine: str, log: reading.Log, wrong: dict[str, tuple[int, int]]) -> Replay:
    different = {name for name, check in log.checks.items() if check.different}
    same = {name for name, (right, sent) in wrong.items() if right == sent}
    examples = [line for line in log.mismatches.values() if line["request_id"] in wrong]
    shown = ("tokens", "reference_tokens", "first_id", "first_char", "piece", "piece_start", "piece_chars")
    first = [next((line for line in examples if (line["request_id"] in same) is form), None) for form in (False, True)]
    return Replay(
        engine=engine,
        requests=len(log.requests),
        wrong=len(wrong),
        same_length=len(same),
        checks=len(log.checks),
        caught=len(different & wrong.keys()),
        caught_same_length=len(different & same),
        missed=len(wrong.keys() - different),
        false_positives=len(different - wrong.keys()),
        drops=len(log.dropped),
        counted_otherwise=sum(line["prompt_tokens_equal"] is False for line in log.requests.values()),
        examples=[{name: line[name] for name in shown} for line in first if line is not None],
    )


def write(path: Path, replays: Sequence[Replay]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(one) for one in replays], indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> list[Replay]:
    return [Replay(**row) for row in json.loads(path.read_text(encoding="utf-8"))]


def table(replays: Sequence[Replay]) -> str:
    """One row a replay."""
    rows = [
        "| fastokens 0.3.1 | requests | with wrong IDs | as many as the right ones | checked | caught | missed "
        "| false positives | counted otherwise by the engine |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    names = {"kept": "one process for all texts", "fresh": "a process for each text"}
    for one in replays:
        numbers = (one.requests, one.wrong, one.same_length, one.checks, one.caught, one.missed, one.false_positives)
        rows.append(f"| {names[one.engine]} | {' | '.join(map(str, numbers))} | {one.counted_otherwise} |")
    return "\n".join(rows)
