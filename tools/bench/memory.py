"""The memory account: bytes a token of what a process holds for sessions of a given size, and by how much it grows.

Sessions are an agent's: a system prompt, tools, and turns of a call with its result, 1.4K characters each (ASCII: code,
prose and logs; or CJK). Nine tenths of a session come with its first request, the rest turn by turn, as bytes through
`proxy.ingest` into a tier with the tokenizer and the template that TokTier ships. Each row is of a process of its own,
which holds as many such sessions already: they have filled small gaps that loading left; large ones are given back to
the system then, and one session more is served, which leaves the working memory of a request there. What a session is
made of is told by the sizes of its parts; a text that two of them hold is told once. The growth is that of the resident
set, and nothing is given back before it is read. What the working memory is, is an account of its own: in bytes a token
of one session, as there is one for all of them.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Self

from proxy.ingest import Ingest
from toktier.heap import give_back
from toktier.json_pieces import JsonLimits
from toktier.profiles.base import ProfileSettings
from toktier.profiles.vllm import VllmProfile
from toktier.session import Session
from toktier.sessions import SessionStore
from toktier.template import ChatTemplate
from toktier.tier import ModelTier
from toktier.tokenizer import embedded
from tools.bench.progress import progress_bar
from tools.bench.texts import styled

TEXTS = {"ASCII": ("code", "prose", "logs"), "CJK": ("CJK",)}
TOKENS = (100_000, 500_000)
CORE, PROCESS, WORKING = "IDs, text and JSON", "growth of the process", "working memory, once"
LIMITS = {CORE: 14.0, PROCESS: 28.0}
"""Bytes a token."""
TOGETHER = "growth, working memory with it"
"""Of as many sessions as the row has, with the working memory of one request, in bytes a token of all of them."""
_HELD = 1_000_000
"""Tokens that the sessions of one row have together, or a little more; those that were there before as many."""
_LIMITS = JsonLimits()
_TURN = {"thought": 200, "arguments": 150, "result": 1_000}


@dataclass(frozen=True)
class Memory:
    """``tokens``: of one of ``sessions``; ``messages``: of all of them. ``bytes_a_token``: what all of them hold in
    this ``account``, divided by all their tokens."""

    text: str
    tokens: int
    sessions: int
    messages: int
    account: str
    bytes_a_token: float


def run(tokens: Sequence[int] = TOKENS, texts: Sequence[str] = tuple(TEXTS), held: int = _HELD) -> list[Memory]:
    """A row for each text, size and account. Shows a progress bar."""
    rows: list[Memory] = []
    with progress_bar() as progress:
        task = progress.add_task("memory", total=len(texts) * len(tokens))
        for text in texts:
            for size in tokens:
                progress.update(task, description=f"memory: {text}, {size:,} tokens")
                rows += _measured(text, size, -(-held // size))
                progress.advance(task)
    return rows


def over_limit(rows: Sequence[Memory]) -> list[str]:
    """What is over `LIMITS`, in words."""
    return [
        f"{row.text}, {row.tokens:,} tokens, {row.account}: {row.bytes_a_token} bytes a token ({LIMITS[row.account]})"
        for row in rows
        if row.bytes_a_token > LIMITS.get(row.account, float("inf"))
    ]


def table(rows: Sequence[Memory]) -> str:
    """Markdown: an account a line, a text and size a column; `TOGETHER` is reckoned from the others."""
    rows = [*rows, *_together(rows)]
    columns = list(dict.fromkeys((row.text, row.tokens) for row in rows))
    found = {(row.account, row.text, row.tokens): row.bytes_a_token for row in rows}
    out = ["| bytes a token | " + " | ".join(f"{text} {size:,}" for text, size in columns) + " |"]
    out.append("|---|" + "---:|" * len(columns))
    for account in dict.fromkeys(row.account for row in rows):
        cells = [f"{found[account, *column]:.1f}" if (account, *column) in found else "-" for column in columns]
        out.append(f"| {account} | " + " | ".join(cells) + " |")
    return "\n".join(out)


def _together(rows: Sequence[Memory]) -> Iterator[Memory]:
    working = {(row.text, row.tokens): row.bytes_a_token for row in rows if row.account == WORKING}
    for row in rows:
        if row.account == PROCESS and (row.text, row.tokens) in working:
            more = working[row.text, row.tokens] / row.sessions
            yield replace(row, account=TOGETHER, bytes_a_token=row.bytes_a_token + more)


class Talk:
    """A seeded agent's session that goes on without end."""

    def __init__(self, text: str, seed: int) -> None:
        self._styles = TEXTS[text]
        self._random = Random(f"{text} {seed}")
        self._piece = count(seed << 32)
        self.messages: list[dict[str, Any]] = [
            {"role": "system", "content": self._text(2_000)},
            {"role": "user", "content": self._text(400)},
        ]
        self.tools = [self._tool(number) for number in range(12)]

    def turn(self) -> None:
        """A call and its result."""
        identity = f"call_{self._random.randrange(1 << 40):x}"
        arguments = {"path": f"src/{identity[-4:]}.py", "command": self._text(_TURN["arguments"])}
        function = {"name": "run", "arguments": json.dumps(arguments, ensure_ascii=False)}
        call = {"id": identity, "type": "function", "function": function}
        self.messages.append({"role": "assistant", "content": self._text(_TURN["thought"]), "tool_calls": [call]})
        self.messages.append({"role": "tool", "tool_call_id": identity, "content": self._text(_TURN["result"])})

    def body(self) -> bytes:
        """The next request."""
        body = {"model": "m", "messages": self.messages, "tools": self.tools, "stream": True}
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()

    def _text(self, size: int) -> str:
        return styled(self._random.choice(self._styles), next(self._piece), size)

    def _tool(self, number: int) -> dict[str, Any]:
        properties = {name: {"type": "string", "description": self._text(60)} for name in ("path", "command")}
        parameters = {"type": "object", "properties": properties, "required": ["path"]}
        function = {"name": f"tool_{number}", "description": self._text(200), "parameters": parameters}
        return {"type": "function", "function": function}


class _Proxy:
    """A process that does with bodies what the proxy does. Ends with its block."""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tools.bench.memory"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, question: str, raw: bytes = b"") -> Any:
        """``serve`` a body: the number of its IDs. ``trim``: give back what can be. ``mark``: bytes more than then.
        ``weigh``: bytes by account, of all sessions that have come since."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{question} {len(raw)}\n".encode() + raw)
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process that was measured ended; it has said why")
        return json.loads(line)


def _measured(text: str, tokens: int, sessions: int) -> Iterator[Memory]:
    with _Proxy() as proxy:
        talk = Talk(text, 0)
        turns = 20
        while True:  # how many tokens has a turn?
            for _ in range(turns):
                talk.turn()
            have = proxy.ask("serve", talk.body())
            a_turn = have / (len(talk.messages) / 2)
            turns = int((tokens - have) / a_turn)
            if turns < 1:
                break
        held = messages = 0
        for seed in range(2 * sessions + 1):
            if seed == sessions:
                proxy.ask("trim")
                held = 0
            if seed == sessions + 1:
                more, one = proxy.ask("mark"), held
                held = messages = 0
            talk = Talk(text, seed + 1)
            for _ in range(int(0.9 * tokens / a_turn)):
                talk.turn()
            while (have := proxy.ask("serve", talk.body())) < tokens:
                talk.turn()
            held += have
            messages += len(talk.messages)
        found = proxy.ask("weigh")
        for account, size in found.items():
            yield Memory(text, tokens, sessions, messages, account, round(size / held, 2))
        working = more / one - found[PROCESS] / held
        yield Memory(text, tokens, 1, messages // sessions, WORKING, round(working, 2))


class _Served:
    """The other end of `_Proxy`."""

    def __init__(self) -> None:
        tokenizer = embedded()
        template = ChatTemplate.load(tokenizer)
        assert template is not None
        self.store = SessionStore(1 << 40, ttl_s=1e9)
        self.tier = ModelTier("m", tokenizer, template, VllmProfile(), ProfileSettings(), self.store)
        self._before = 0
        self._known: frozenset[Session] = frozenset()

    def serve(self, raw: bytes) -> int:
        ingest = Ingest(raw, _LIMITS, self.store, "t")
        parsed = ingest.beside() or ingest.whole()
        return len(self.tier.prepare("t", parsed.outline, source=ingest.source(parsed)).ids)

    def trim(self, _: bytes) -> None:
        gc.collect()
        give_back()
        self._before = _resident()

    def mark(self, _: bytes) -> int:
        gc.collect()
        self._known = frozenset(self.store._all)
        before, self._before = self._before, _resident()
        return self._before - before

    def weigh(self, _: bytes) -> dict[str, int]:
        gc.collect()
        grown = _resident() - self._before
        return {**_accounts([one for one in self.store._all if one not in self._known]), PROCESS: grown}


def _main() -> None:
    with os.fdopen(os.dup(1), "wb") as out, ThreadPoolExecutor(1) as thread:
        os.dup2(2, 1)  # the log of a load is no answer
        served = _Served()
        for line in sys.stdin.buffer:
            question, size = line.split()
            raw = sys.stdin.buffer.read(int(size))
            # in a thread, as the proxy does with long requests
            answer = thread.submit(getattr(served, question.decode()), raw).result()
            out.write(json.dumps(answer).encode() + b"\n")
            out.flush()


def _accounts(sessions: Sequence[Session]) -> dict[str, int]:
    """Bytes by account."""
    ids = text = written = body = messages = render = whole = 0
    for session in sessions:
        rope, memory = session.rope, session.memory
        assert memory.source is not None
        assert memory.source.made is not None
        assert memory.fold is not None
        assert memory.written is not None
        strings = sum(map(sys.getsizeof, rope.pieces()))
        ids += rope.nbytes - strings
        text += strings
        written += memory.written.nbytes
        body += memory.source.nbytes
        messages += memory.source.made.nbytes
        render += memory.fold.nbytes
        whole += session.nbytes
    return {
        "IDs and their index": ids,
        "text": text,
        "JSON of the IDs": written,
        CORE: ids + text + written,
        "last body": body,
        "message objects": messages,
        "render's records": render,
        "digests and keys": whole - (ids + text + written + body + messages + render),
        "all, as the store counts": whole,
    }


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    _main()
