"""The render account: one request's text, by the template in full and incrementally, in one run.

Engines: *jinja2*, the sandbox and settings of transformers, in full; *minijinja*, in full, where it is installed and
gives the same text; *toktier full*, `ChatTemplate.render`; *toktier*, `FoldState.render`, to a row of chunks whose
unchanged part is not touched. Messages are objects that are handed over again, as ingest does.

Cases: *append* of a call and its result; a *new user turn* 20 and 900 messages after the last one. Every text that is
timed incrementally is compared with the full one at the end of its case.
"""

from __future__ import annotations

import importlib
import json
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment

from toktier.folding import Folded, FoldState
from toktier.template import ChatTemplate, RenderRequest
from tools.bench.progress import progress_bar
from tools.bench.records import OURS, record
from tools.folding.corpus import corpus

FULL = ("jinja2", "minijinja", "toktier full")
LIMITS_MS = {
    ("append", 1_000): 0.3,
    ("append", 4_000): 0.4,
    ("user turn, 20 after", 1_000): 1.0,
    ("user turn, 900 after", 1_000): 5.0,
}
"""Of the median, on an idle machine, for the template that TokTier ships."""
SHIPPED = "embedded"
_WORD = "abcdefghij"
_SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


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
        made = [{"role": "system", "content": self.text(1000)}, self.user()]
        while len(made) < messages - since_user - 1:
            made += self.pair(len(made))
        del made[messages - since_user - 1 :]
        made.append(self.user())
        while len(made) < messages:
            made += self.pair(len(made))
        return made[:messages]


def run(names: Sequence[str], rounds: int = 25) -> list[Render]:
    """A row for each template, case and engine. Raises `KeyError` for a template that is not found, and
    `AssertionError` where a text differs from the full render's. Shows a progress bar."""
    sources = corpus()
    rows: list[Render] = []
    with progress_bar() as progress:
        task = progress.add_task("render", total=len(names) * len(LIMITS_MS))
        for name in names:
            for case, messages in LIMITS_MS:
                progress.update(task, description=f"render: {name}, {case} at {messages:,}")
                rows += _measured(name, sources[name], case, messages, rounds)
                progress.advance(task)
    return rows


def _measured(name: str, source: str, case: str, messages: int, rounds: int) -> Iterable[Render]:
    template = ChatTemplate({"default": source}, special_tokens=_SPECIAL)
    talk = Talk()
    since = int(case.split()[2]) if case != "append" else messages - 2
    base = talk.session(messages, since)
    request = _request(talk, base)
    wanted = template.render(request)
    arguments = template.arguments(request)
    full = {"jinja2": _stock(template, source), "minijinja": _minijinja(source), "toktier full": None}
    for engine, render in full.items():
        if engine == "toktier full":
            times = [_timed(lambda: template.render(request)) for _ in range(max(3, rounds // 5))]
        elif render is None or _text(render, arguments) != wanted:
            continue
        else:
            times = [_timed(lambda: render(arguments)) for _ in range(max(3, rounds // 5))]  # noqa: B023
        yield _row(name, case, engine, messages, len(wanted), -1, times)
    folded = Folded.of(template)
    if isinstance(folded, Folded):
        times, iterations = _incremental(folded, template, talk, base, case, rounds)
        yield _row(name, case, OURS, messages, len(wanted), iterations, times)


def _request(talk: Talk, messages: list[dict[str, Any]]) -> RenderRequest:
    return RenderRequest(messages, talk.tools, {"add_generation_prompt": True})


def _timed(work: Callable[[], object]) -> int:
    started = time.perf_counter_ns()
    work()
    return time.perf_counter_ns() - started


def _row(name: str, case: str, engine: str, messages: int, size: int, iterations: int, times: list[int]) -> Render:
    one = record("render", case, engine, size, times)
    return Render("render", name, case, engine, messages, size, iterations, one.n, one.p50_us, one.p90_us, one.p99_us)


def _incremental(
    folded: Folded, template: ChatTemplate, talk: Talk, base: list[dict[str, Any]], case: str, rounds: int
) -> tuple[list[int], int]:
    times: list[int] = []
    iterations = 0
    messages = base
    state = folded.new_state()
    state.render(_request(talk, messages))
    for number in range(rounds if case == "append" else max(3, rounds // 3)):
        if case == "append":
            grown = [*messages, *talk.pair(number)]
        else:
            # The session as it grew: turn by turn, then a question.
            state, messages = _grown(folded, talk, base), base
            grown = [*messages, talk.user()]
        request = _request(talk, grown)
        started = time.perf_counter_ns()
        rendered = state.render(request, len(messages))
        times.append(time.perf_counter_ns() - started)
        iterations = rendered.iterations
        assert rendered.fell_back is None, rendered.fell_back
        messages = grown
    assert state.render(_request(talk, messages)).chunks.text() == template.render(_request(talk, messages))
    return times, iterations


def _grown(folded: Folded, talk: Talk, base: list[dict[str, Any]]) -> FoldState:
    state = folded.new_state()
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


def _minijinja(source: str) -> Callable[[dict[str, Any]], str] | None:
    try:
        minijinja = importlib.import_module("minijinja")
    except ImportError:
        return None
    env = minijinja.Environment(templates={"t": source})
    env.trim_blocks = env.lstrip_blocks = True
    env.pycompat = True
    env.add_filter("tojson", lambda value, **kwargs: json.dumps(value, ensure_ascii=False, **kwargs))
    return lambda arguments: env.render_template("t", **arguments)


def _text(render: Callable[[dict[str, Any]], str], arguments: dict[str, Any]) -> str | None:
    try:
        return render(arguments)
    except Exception:  # whatever a template does to an engine that is not its own
        return None


def over_limit(rows: Sequence[Render]) -> list[str]:
    """What is beyond `LIMITS_MS`, in words."""
    return [
        f"{row.case} at {row.messages:,} messages: {row.p50_us / 1000:.2f} ms"
        for row in rows
        if row.engine == OURS and row.template == SHIPPED and row.p50_us > 1000 * LIMITS_MS[row.case, row.messages]
    ]


def table(rows: Sequence[Render]) -> str:
    """Markdown: one row for each template and case; medians in milliseconds, and ratios to ours."""
    engines = [*FULL, OURS]
    out = ["| template | case | messages | " + " | ".join(engines) + " | iterations |", "|---|---|---:|" + "---:|" * 5]
    found = {(row.template, row.case, row.messages, row.engine): row for row in rows}
    for template, case, messages in dict.fromkeys((row.template, row.case, row.messages) for row in rows):
        cells = [found.get((template, case, messages, engine)) for engine in engines]
        ours = cells[-1]
        shown = [_cell(one, ours) for one in cells]
        ran = "-" if ours is None else f"{ours.iterations:,}"
        out.append(f"| {template} | {case} | {messages:,} | " + " | ".join(shown) + f" | {ran} |")
    return "\n".join(out)


def _cell(row: Render | None, ours: Render | None) -> str:
    if row is None:
        return "-"
    ratio = f" ({row.p50_us / ours.p50_us:.0f}x)" if ours is not None and row is not ours else ""
    return f"{row.p50_us / 1000:.2f} ms{ratio}"
