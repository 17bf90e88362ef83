"""Generated agent conversations, in the shapes that real clients put on the wire. Same seed, same bytes.

    python -m tools.traces --seed 7 --n 300 --out traces.jsonl

A conversation is the list of requests that one client sends: each step is a whole chat-completions body and what it is
against the one before it (`init`, `append`, `retry`, `edit`, `truncate`, `compaction`, `tools`, `side`). Steps share
their unchanged message objects: treat bodies as read-only.

A JSONL line holds `id`, `client`, `features` and `steps`; a step is `kind`, `head` (the body without its messages) and
a splice of the list before it: `at`, `drop`, `insert`. A `side` request (a title generator under the same session) is
not part of the list: its `insert` is its whole list.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tools.trace_text import LITERALS, ODD_ARGUMENTS, TOOLS, Text, arguments

Message = dict[str, Any]
Body = dict[str, Any]

FEATURES = (
    *("tools", "parallel", "reasoning", "parts", "odd_arguments", "mid_system"),
    *("non_ascii", "long", "literals", "no_thinking"),
)
NON_ASCII_CHARS = 50  # so many make a conversation `non_ascii`
ODD = frozenset(ODD_ARGUMENTS) - {"{}"}  # an empty object is what a call without arguments has anyway
LONG = 100  # more messages than this make it `long`


@dataclass(frozen=True)
class Client:
    """How one agent client writes a conversation down. `None` for `reasoning`: it drops what the model thought."""

    name: str
    first_role: str = "system"
    no_text: str | None = "null"  # content of an assistant message that only calls tools: "null", "" or None (no key)
    spacing: tuple[str, str] | None = (",", ":")  # how it writes arguments again; None: as received
    reasoning: str | None = "reasoning_content"
    results: str = "string"  # a tool's result: "string", "parts" or "json"
    stream: bool = True
    tail: tuple[str, ...] = ("tools", "tool_choice", "stream", "stream_options")
    extra: Mapping[str, Any] | None = None


CLIENTS = (
    Client("pi", tail=("stream", "stream_options", "tools"), extra={"store": False, "max_completion_tokens": 64}),
    Client("pi-old", first_role="developer", tail=("stream", "tools"), extra={"reasoning_effort": "medium"}),
    Client("qwen-code", no_text="", results="parts", tail=("stream", "stream_options", "tools")),
    Client("opencode", no_text="", extra={"max_tokens": 64}),
    Client("cline", results="json"),
    Client("continue", no_text="", reasoning=None, tail=("stream", "tools", "stream_options")),
    Client("mini", no_text=None, spacing=None, results="json", stream=False, tail=("tools",)),
    Client("openai-sdk", spacing=None, reasoning="reasoning", stream=False, tail=("tools",)),
    Client("langchain", spacing=(", ", ": "), reasoning=None, stream=False, tail=("tools", "tool_choice")),
    Client("gateway", no_text="", spacing=(", ", ": "), results="parts", extra={"metadata": {"user_id": "u"}}),
)


@dataclass(frozen=True)
class Step:
    kind: str
    body: Body


@dataclass(frozen=True)
class Conversation:
    id: str
    client: str
    features: frozenset[str]
    steps: tuple[Step, ...]


def generate(seed: int, n: int, long: int | None = None) -> Iterator[Conversation]:
    """`n` conversations. Each feature is in about a third of them; `long` (default one in twelve) pass 100 messages."""
    long = n // 12 if long is None else long
    for index in range(n):
        rng = Random(f"{seed}/{index}")
        wanted = {name for name in FEATURES if rng.random() < 0.4} - {"long"}
        if index * long // n != (index + 1) * long // n:
            wanted.add("long")
        if wanted & {"parallel", "odd_arguments", "long"}:
            wanted.add("tools")
        yield Writer(rng, CLIENTS[index % len(CLIENTS)], frozenset(wanted)).conversation(f"{seed}-{index:04}")


def features(steps: Sequence[Step]) -> frozenset[str]:
    """What the requests really hold, whatever the generator meant to put there."""
    bodies = [step.body for step in steps]
    messages = list({id(message): message for body in bodies for message in body["messages"]}.values())
    calls = [message.get("tool_calls") or [] for message in messages]
    texts = [text for message in messages for text in texts_of(message)]
    found = {
        "tools": any(body.get("tools") for body in bodies),
        "parallel": any(len(some) > 1 for some in calls),
        "reasoning": any(m.get("reasoning_content") or m.get("reasoning") for m in messages)
        or any("<think>" in text for text in texts),
        "parts": any(isinstance(message.get("content"), list) for message in messages),
        "odd_arguments": any(call["function"]["arguments"] in ODD for some in calls for call in some),
        "mid_system": any(message["role"] == "system" for body in bodies for message in body["messages"][1:]),
        "non_ascii": sum(char > "\x7f" for text in texts for char in text) >= NON_ASCII_CHARS,
        "long": any(len(body["messages"]) > LONG for body in bodies),
        "literals": any(literal in text for text in texts for literal in LITERALS),
        "no_thinking": any("chat_template_kwargs" in body for body in bodies),
    }
    return frozenset(name for name, holds in found.items() if holds)


def texts_of(message: Message) -> list[str]:
    content = message.get("content") or ""
    parts = [content] if isinstance(content, str) else [part["text"] for part in content]
    return [*parts, message.get("reasoning_content") or "", message.get("reasoning") or ""]


class Writer:
    """Writes one conversation, request by request."""

    def __init__(self, rng: Random, client: Client, wanted: frozenset[str]) -> None:
        self.rng, self.client, self.wanted = rng, client, wanted
        self.text = Text(rng, "non_ascii" in wanted, "literals" in wanted)
        self.scale = 60 if "long" in wanted else rng.choice((100, 300, 900))
        self.tools = [dict(spec) for spec in rng.sample(TOOLS, rng.randint(2, 9))] if "tools" in wanted else []
        self.messages: list[Message] = []
        self.steps: list[Step] = []

    def conversation(self, name: str) -> Conversation:
        self.messages.append(
            {"role": self.client.first_role, "content": self.content(self.scale * 4, "date: 2026-11-29\n")}
        )
        self.user()
        self.send("init")
        target = self.rng.randint(101, 130) if "long" in self.wanted else self.rng.randint(4, 24)
        while len(self.messages) < target:
            self.turn()
            self.send("append")
            if self.rng.random() < (0.06 if "long" in self.wanted else 0.25):
                self.disturb()
        return Conversation(name, self.client.name, features(self.steps), tuple(self.steps))

    def send(self, kind: str) -> None:
        self.steps.append(Step(kind, self.body(list(self.messages), self.tools)))

    def body(self, messages: list[Message], tools: list[dict[str, Any]]) -> Body:
        values: dict[str, Any] = {"stream": self.client.stream, "tools": list(tools), "tool_choice": "auto"}
        values["stream_options"] = {"include_usage": True}
        skip = set() if tools else {"tools", "tool_choice"}
        body: Body = {"model": "tiny", "messages": messages, **(self.client.extra or {})}
        body |= {key: values[key] for key in self.client.tail if key not in skip}
        if "no_thinking" in self.wanted:
            body["chat_template_kwargs"] = {"enable_thinking": False}
        return body

    # -- messages ----------------------------------------------------------------------------------------------------

    def content(self, chars: int, head: str = "") -> Any:
        """Text, or a list of text parts."""
        text = head + self.text.document(chars)
        if "parts" not in self.wanted or self.rng.random() < 0.4:
            return text
        return [{"type": "text", "text": piece} for piece in self.pieces(text)]

    def pieces(self, text: str) -> list[str]:
        cut = self.rng.randrange(len(text) + 1)
        return self.rng.choice(([text], [text[:cut], text[cut:]], [text, "", text[:cut]]))

    def user(self) -> None:
        self.messages.append({"role": "user", "content": self.content(self.scale)})

    def turn(self) -> None:
        """What comes between two requests: the model's message and the answers to it."""
        calls = self.calls() if self.tools and self.rng.random() < 0.8 else []
        message: Message = {"role": "assistant"}
        if not calls or self.rng.random() < 0.5:
            message["content"] = self.text.document(self.scale // 2)
            if self.rng.random() < 0.2:
                message["content"] = self.rng.choice(("\n\n", " ")) + message["content"] + self.rng.choice(("  ", "\n"))
        elif self.client.no_text is not None:
            message["content"] = None if self.client.no_text == "null" else self.client.no_text
        if "reasoning" in self.wanted and self.rng.random() < 0.8:
            self.think(message)
        if calls:
            message["tool_calls"] = calls
        self.messages.append(message)
        for call in calls:
            self.messages.append(self.result(call))
        if not calls:
            self.user()
        if "mid_system" in self.wanted and self.rng.random() < 0.3:
            self.messages.append({"role": "system", "content": self.content(40, f"{len(self.messages)} tokens left. ")})

    def think(self, message: Message) -> None:
        thought = self.text.document(self.scale // 2)
        if self.client.reasoning:
            message[self.client.reasoning] = self.rng.choice((thought, f"\n{thought}\n", thought, ""))
        elif message.get("content"):  # what a server without a reasoning parser leaves in the text
            message["content"] = f"<think>\n{thought}\n</think>\n\n{message['content']}"

    def calls(self) -> list[dict[str, Any]]:
        count = self.rng.randint(2, 4) if "parallel" in self.wanted and self.rng.random() < 0.5 else 1
        calls = []
        for _ in range(count):
            function = self.rng.choice(self.tools)["function"]
            written = json.dumps(
                arguments(self.rng, self.text, function),
                ensure_ascii=self.rng.random() < 0.3,
                separators=self.client.spacing or self.rng.choice(((",", ":"), (", ", ": "), (" , ", " : "))),
            )
            if "odd_arguments" in self.wanted and self.rng.random() < 0.6:
                written = self.rng.choice(ODD_ARGUMENTS)
            call = {"name": function["name"], "arguments": written}
            calls.append({"id": f"call_{self.rng.getrandbits(96):024x}", "type": "function", "function": call})
        return calls

    def result(self, call: dict[str, Any]) -> Message:
        text = self.text.document(self.rng.choice((1, 1, 4)) * self.scale) if self.rng.random() < 0.95 else ""
        content: Any = text
        if self.client.results == "json":
            content = json.dumps(
                [{"query": call["function"]["name"], "result": text}], ensure_ascii=self.rng.random() < 0.5
            )
        elif self.client.results == "parts":
            content = [{"type": "text", "text": text}]
        return {"role": "tool", "tool_call_id": call["id"], "content": content}

    # -- what is not an append ---------------------------------------------------------------------------------------

    def disturb(self) -> None:
        makers = (
            self.retry,
            self.edit,
            self.date,
            self.prune,
            self.truncate,
            self.compact,
            self.change_tools,
            self.side,
        )
        self.rng.choice(makers)()

    def retry(self) -> None:
        self.send("retry")

    def edit(self) -> None:
        at = self.rng.randrange(1, len(self.messages))
        if self.messages[at].get("content"):
            self.messages[at] = self.messages[at] | {"content": self.content(self.scale)}
            self.send("edit")

    def date(self) -> None:
        """The system prompt names a day, and the day changes."""
        text = json.dumps(self.messages[0]["content"], ensure_ascii=False)
        changed = text.replace("2026-11-29", "2026-11-30", 1)
        if changed != text:
            self.messages[0] = self.messages[0] | {"content": json.loads(changed)}
            self.send_edited("edit")

    def send_edited(self, kind: str) -> None:
        """Clients notice what changed when they send the next turn: half of the edits come with one."""
        if self.rng.random() < 0.5:
            self.turn()
        self.send(kind)

    def prune(self) -> None:
        """The client forgets an old tool result."""
        results = [at for at, message in enumerate(self.messages) if message["role"] == "tool"]
        if results:
            at = self.rng.choice(results)
            self.messages[at] = self.messages[at] | {"content": "[Old tool result content cleared]"}
            self.send_edited("edit")

    def truncate(self) -> None:
        """Back to an earlier user message, which is put differently."""
        users = [at for at, message in enumerate(self.messages) if message["role"] == "user"]
        if len(users) > 1 and "long" not in self.wanted:
            del self.messages[users[-1] :]
            self.user()
            self.send("truncate")

    def compact(self) -> None:
        if "long" in self.wanted or len(self.messages) < 8:
            return
        summary = "Summary of the conversation so far:\n" + self.text.document(self.scale)
        self.messages[1:] = [{"role": "user", "content": summary}]
        self.send("compaction")

    def change_tools(self) -> None:
        if self.tools:
            self.tools = list(self.tools)
            self.tools.insert(self.rng.randrange(len(self.tools) + 1), self.rng.choice(TOOLS))
            self.send_edited("tools")

    def side(self) -> None:
        """A title generator: another list, no tools, same session."""
        asked = self.messages[1]["content"]
        messages = [
            {"role": "system", "content": "You write titles of at most 50 characters."},
            {"role": "user", "content": asked},
        ]
        self.steps.append(Step("side", self.body(messages, [])))


def to_record(conversation: Conversation) -> dict[str, Any]:
    """The conversation as one JSONL object (see the top of the file)."""
    before: list[Message] = []
    steps = []
    for step in conversation.steps:
        messages = step.body["messages"]
        head = {key: value for key, value in step.body.items() if key != "messages"}
        base = [] if step.kind == "side" else before
        at = same(base, messages)
        after = same(base[at:][::-1], messages[at:][::-1])
        drop = len(base) - at - after
        steps.append(
            {"kind": step.kind, "head": head, "at": at, "drop": drop, "insert": messages[at : len(messages) - after]}
        )
        before = before if step.kind == "side" else messages
    return {
        "id": conversation.id,
        "client": conversation.client,
        "features": sorted(conversation.features),
        "steps": steps,
    }


def same(left: Sequence[Message], right: Sequence[Message]) -> int:
    """How many leading messages are the same objects."""
    count = 0
    for a, b in zip(left, right, strict=False):
        if a is not b:
            break
        count += 1
    return count


def from_record(record: Mapping[str, Any]) -> Conversation:
    before: list[Message] = []
    steps = []
    for step in record["steps"]:
        base = [] if step["kind"] == "side" else before
        messages = base[: step["at"]] + step["insert"] + base[step["at"] + step["drop"] :]
        head = dict(step["head"])
        body = {"model": head.pop("model"), "messages": messages, **head}
        steps.append(Step(step["kind"], body))
        before = before if step["kind"] == "side" else messages
    return Conversation(record["id"], record["client"], frozenset(record["features"]), tuple(steps))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.traces", description="Writes generated agent conversations.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--n", type=int, default=300)
    parser.add_argument("--long", type=int, default=None, help="how many pass 100 messages (default: n / 12)")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    counts: dict[str, int] = dict.fromkeys(FEATURES, 0)
    steps = 0
    with args.out.open("w", encoding="utf-8") as file:
        for conversation in generate(args.seed, args.n, args.long):
            file.write(json.dumps(to_record(conversation), ensure_ascii=False) + "\n")
            steps += len(conversation.steps)
            for feature in conversation.features:
                counts[feature] += 1
    print(f"{args.n} conversations, {steps} requests:", ", ".join(f"{name} {count}" for name, count in counts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
