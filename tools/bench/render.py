"""The render account: one request's text, by the template in full and incrementally, in one run.

Engines: *jinja2*, the sandbox and settings of transformers, in full; *minijinja*, in full, in an environment of its own
(`tools.bench.minijinja_process`), where it gives the same text; *toktier full*, `ChatTemplate.render`; *toktier-proxy*,
`FoldState.render`, to a row of chunks whose unchanged part is not touched. Messages are objects that are handed over
again, as ingest does.

Cases: *append* of a call and its result, to 10 to 4,000 messages, each to what the one before it left; a *new user
turn* 20 and 900 messages after the last one, each to a session of its own, which was rendered once in full before.
Every text that is timed incrementally is compared with the full one at the end of its case. A template that cannot
render the session, or an engine that cannot render the template, has a row that says so.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from jinja2.sandbox import ImmutableSandboxedEnvironment

from toktier.errors import TokTierError
from toktier.folding import Folded, FoldState
from toktier.template import ChatTemplate, RenderRequest
from tools.bench import environments
from tools.bench.progress import progress_bar
from tools.bench.records import OURS, record
from tools.folding.corpus import corpus

FULL = ("jinja2", "minijinja", "toktier full")
CASES = (
    *(("append", messages) for messages in (10, 100, 1_000, 4_000)),
    *((f"user turn, {since} after", 1_000) for since in (20, 900)),
)
"""Case, and messages before the change."""
LIMITS_MS = {
    ("append", 1_000): 0.3,
    ("append", 4_000): 0.4,
    ("user turn, 20 after", 1_000): 1.0,
    ("user turn, 900 after", 1_000): 5.0,
}
"""Of the median, on an idle machine, for the template that TokTier ships."""
SHIPPED = "embedded"
_PROMPT = 9_000
"""Characters of the system prompt, as agents have it; some templates carry it through all messages."""
_WORD = "abcdefghij"
_SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


class NotFound(Exception):
    """A template that is to be measured is not on this machine."""


@dataclass(frozen=True)
class Render:
    """Percentiles of ``n`` renders in microseconds. ``messages`` before the change, ``size`` characters of the text.
    ``iterations`` of the template's loops ran in the last of them (all of them where it is a full render: -1)."""

    account: str
    template: str
    case: str
    engine: str
    messages: int
    size: int
    iterations: int
    n: int
    p50_us: float
    p90_us: float
    p99_us: float
    served: int = 0
    """Bytes of the text before the change."""
    scanned: int = 0
    """Bytes of the last text from its first change on; ``served`` where it is a full render."""
    note: str = ""
    """Why there is no number, where ``n`` is 0."""


class Talk:
    """A seeded agent's session: a system prompt, users' questions, and calls with their results."""

    def __init__(self, seed: int = 3) -> None:
        self._random = random.Random(seed)
        self._words = ["".join(self._random.choices(_WORD, k=self._random.randint(2, 9))) for _ in range(500)]
        self.tools = [self._tool(number) for number in range(20)]

    def text(self, size: int) -> str:
        return " ".join(self._random.choices(self._words, k=size // 6))

    def _tool(self, number: int) -> dict[str, Any]:
        properties = {"a": {"type": "string", "description": self.text(80)}}
        parameters = {"type": "object", "properties": properties}
        function = {"name": f"f{number}", "description": self.text(200), "parameters": parameters}
        return {"type": "function", "function": function}

    def user(self) -> dict[str, Any]:
        return {"role": "user", "content": self.text(500)}

    def pair(self, number: int) -> list[dict[str, Any]]:
        function = {"name": "bash", "arguments": {"command": self.text(250)}}
        call = {"id": f"abcdef{number % 1000:03d}", "type": "function", "function": function}
        made = {
            "role": "assistant",
            "content": self.text(250),
            "reasoning_content": self.text(250),
            "tool_calls": [call],
        }
        return [made, {"role": "tool", "tool_call_id": call["id"], "name": "bash", "content": self.text(1000)}]

    def session(self, messages: int, since_user: int) -> list[dict[str, Any]]:
        """``messages`` of them, the last user message ``since_user`` before the end."""
        made = [{"role": "system", "content": self.text(_PROMPT)}, self.user()]
        while len(made) < messages - since_user - 1:
            made += self.pair(len(made))
        del made[messages - since_user - 1 :]
        made.append(self.user())
        while len(made) < messages:
            made += self.pair(len(made))
        return made[:messages]


def default_templates() -> list[str]:
    """The one that TokTier ships, and those of the test data that are not the same."""
    data = Path(os.environ.get("TOKTIER_TEST_DATA", "../shared")) / "tokenizers"
    names = sorted(path.parent.name for path in data.glob("*/tokenizer_config.json"))
    known = corpus()
    return [SHIPPED, *(name for name in names if name in known)]


def run(
    names: Sequence[str],
    rounds: int = 25,
    cases: Sequence[tuple[str, int]] = CASES,
    environments_at: Path | None = None,
    build: bool = True,
    folders: Sequence[Path] = (),
) -> list[Render]:
    """A row for each template, case and engine. ``names``: as `tools.folding.corpus` has them, which searches
    ``folders`` as well. Raises `NotFound` for a template that is not there, before anything is measured, and
    `AssertionError` where a text differs from the full render's. Shows a progress bar."""
    sources = corpus(folders)
    absent = [name for name in names if name not in sources]
    if absent:
        raise NotFound(f"no template {', '.join(absent)}; there are: {', '.join(sorted(sources))}")
    rows: list[Render] = []
    with progress_bar() as progress, Minijinja(environments_at, build) as minijinja:
        task = progress.add_task("render", total=len(names) * len(cases))
        for name in names:
            minijinja.take(sources[name])
            for case, messages in cases:
                progress.update(task, description=f"render: {name}, {case} at {messages:,}")
                rows += _measured(name, sources[name], case, messages, rounds, minijinja)
                progress.advance(task)
    return rows


def _measured(name: str, source: str, case: str, messages: int, rounds: int, minijinja: Minijinja) -> Iterable[Render]:
    template = ChatTemplate({"default": source}, special_tokens=_SPECIAL)
    talk = Talk()
    since = int(case.split()[2]) if case != "append" else messages - 2
    base = talk.session(messages, since)
    request = _request(talk, base)

    def row(engine: str, times: Sequence[int], iterations: int = -1, note: str = "", changed: int = 0) -> Render:
        one = record("render", case, engine, size, times)
        percentiles = (one.p50_us, one.p90_us, one.p99_us)
        read = (served, changed if engine == OURS else served) if one.n else (0, 0)
        return Render("render", name, case, engine, messages, size, iterations, one.n, *percentiles, *read, note)

    size = served = 0
    try:
        wanted = template.render(request)
    except TokTierError as error:
        yield row(OURS, (), note=f"the template refuses this session: {type(error).__name__}")
        return
    size, served = len(wanted), len(wanted.encode())
    arguments = template.arguments(request)
    runs = max(3, rounds // 5)
    stock = _stock(template, source)
    if stock(arguments) == wanted:
        yield row("jinja2", [_timed(lambda: stock(arguments)) for _ in range(runs)])
    else:
        yield row("jinja2", (), note="another text")
    yield row("minijinja", *minijinja.render(arguments, runs, wanted))
    yield row("toktier full", [_timed(lambda: template.render(request)) for _ in range(runs)])
    folded = Folded.of(template)
    if isinstance(folded, Folded):
        yield row(OURS, *_incremental(folded, template, talk, base, case, rounds))
    else:
        yield row(OURS, (), note="this template is rendered in full")


class Minijinja:
    """minijinja in its environment, or why it is not there. Ends with its block."""

    def __init__(self, environments_at: Path | None = None, build: bool = True) -> None:
        self._absent = ""
        self._refused = ""
        self._process: subprocess.Popen[bytes] | None = None
        try:
            python = environments.python_of("minijinja", environments_at, build)
        except environments.CannotBuild as error:
            self._absent = str(error)
            return
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [str(python), "-P", str(Path(__file__).with_name("minijinja_process.py"))],
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def take(self, source: str) -> None:
        """The template from now on."""
        self._refused = self._ask({"source": source}).get("error", "")

    def render(self, arguments: dict[str, Any], runs: int, wanted: str) -> tuple[list[int], int, str]:
        """Nanoseconds, -1, and why there are none; none where the text is not ``wanted``."""
        if self._absent or self._refused:
            return [], -1, self._absent or self._refused
        told = self._ask({"arguments": arguments, "runs": runs})
        if "error" in told:
            return [], -1, told["error"]
        digest = hashlib.blake2b(wanted.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        return ([], -1, "another text") if told["digest"] != digest else (told["ns"], -1, "")

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        if self._process is None:
            return {}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def _request(talk: Talk, messages: list[dict[str, Any]]) -> RenderRequest:
    return RenderRequest(messages, talk.tools, {"add_generation_prompt": True})


def _timed(work: Callable[[], object]) -> int:
    started = time.perf_counter_ns()
    work()
    return time.perf_counter_ns() - started


def _incremental(
    folded: Folded, template: ChatTemplate, talk: Talk, base: list[dict[str, Any]], case: str, rounds: int
) -> tuple[list[int], int, str, int]:
    """Nanoseconds; of the last render the iterations; how many were none of what changed alone, and why; and the bytes
    of the last text from its first change on."""
    times: list[int] = []
    iterations = changed = 0
    fell_back: list[str] = []
    messages = base
    state = _begun(folded, talk, messages)
    for number in range(rounds if case == "append" else max(3, rounds // 3)):
        if case == "append":
            grown = [*messages, *talk.pair(number)]
        else:
            # A session of its own, rendered once as a whole, then a question.
            if number:
                state, messages = _begun(folded, talk, base), base
            grown = [*messages, talk.user()]
        request = _request(talk, grown)
        started = time.perf_counter_ns()
        rendered = state.render(request, len(messages))
        times.append(time.perf_counter_ns() - started)
        iterations = rendered.iterations
        changed = sum(len(chunk.encode()) for chunk in rendered.chunks.since(rendered.first_changed_chunk))
        if rendered.fell_back is not None:
            fell_back.append(rendered.fell_back.value)
        messages = grown
    assert state.render(_request(talk, messages)).chunks.text() == template.render(_request(talk, messages))
    reasons = ", ".join(sorted(set(fell_back)))
    told = f"{len(fell_back)} of {len(times)} in full: {reasons}" if fell_back else ""
    return times, iterations, told, changed


def _begun(folded: Folded, talk: Talk, base: list[dict[str, Any]]) -> FoldState:
    state = FoldState(folded)
    state.render(_request(talk, base))
    return state


def _stock(template: ChatTemplate, source: str) -> Callable[[dict[str, Any]], str]:
    """Jinja2's own sandbox with the same settings."""
    ours = template.environment
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[type(one) for one in ours.extensions.values()]
    )
    env.filters = ours.filters
    env.globals = ours.globals
    return env.from_string(source).render


def over_limit(rows: Sequence[Render]) -> list[str]:
    """What is beyond `LIMITS_MS`, in words."""
    return [
        f"{row.case} at {row.messages:,} messages: {row.p50_us / 1000:.2f} ms"
        for row in rows
        if row.engine == OURS
        and row.template == SHIPPED
        and row.p50_us > 1000 * LIMITS_MS.get((row.case, row.messages), math.inf)
    ]


def table(rows: Sequence[Render]) -> str:
    """Markdown: one row for each template and case; medians in milliseconds, and ratios to ours. Notes below."""
    engines = [*FULL, OURS]
    out = ["| template | case | messages | " + " | ".join(engines) + " | iterations |", "|---|---|---:|" + "---:|" * 5]
    found = {(row.template, row.case, row.messages, row.engine): row for row in rows}
    for template, case, messages in dict.fromkeys((row.template, row.case, row.messages) for row in rows):
        cells = [found.get((template, case, messages, engine)) for engine in engines]
        ours = cells[-1]
        shown = [_cell(one, ours) for one in cells]
        ran = "-" if ours is None or not ours.n else f"{ours.iterations:,}"
        out.append(f"| {template} | {case} | {messages:,} | " + " | ".join(shown) + f" | {ran} |")
    notes: dict[tuple[str, str], None] = dict.fromkeys((row.engine, row.note) for row in rows if row.note)
    for engine, note in notes:
        names = dict.fromkeys(row.template for row in rows if (row.engine, row.note) == (engine, note))
        out += [*([""] if out[-1].startswith("|") else []), f"- {engine}, {', '.join(names)}: {note}"]
    return "\n".join(out)


def _cell(row: Render | None, ours: Render | None) -> str:
    if row is None or not row.n:
        return "-"
    shown = f"{row.p50_us / 1000:.2f} ms"
    if ours is None or not ours.n or row is ours:
        return shown
    ratio = row.p50_us / ours.p50_us
    return f"{shown} ({ratio:,.0f}x)" if ratio >= 10 else f"{shown} ({ratio:.2g}x)"
