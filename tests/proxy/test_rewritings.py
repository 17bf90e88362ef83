"""What agent clients were seen to do, or are reported to do, to a conversation from one request to the next.

The request that follows is read beside the one before it, rendered and encoded from what is kept of that one; all of it
must be what it is for the request alone, refusals included.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from tests.support.feed import Feed
from tests.support.tiers import LONG, Body, maker, say, tool
from toktier.errors import Unrenderable
from toktier.tier import ModelTier

Change = Callable[[Body], object]
MARK = {"cache_control": {"type": "ephemeral"}}


def call(identity: str, name: str, arguments: str) -> Body:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def base() -> Body:
    head = "bill: v=1; h=00001;\nYou work in a shell.\nnow 10:00:01, 2026-11-29\ngit status: clean\n" + LONG[:1500]
    first = call("call_1", "read", '{"path": "a.py", "limit": 5000.0, "10": 1e3, "2": true, "zero": -0.0}')
    second = call("call_2", "bash", '{"command":"l","n":12345678901234567890,"command":"ls caf\\u00e9"}')
    return {
        "model": "m",
        "messages": [
            say("system", head),
            {"role": "user", "content": [{"type": "text", "text": text} for text in ("<plan>only read", "a.py\nb.py")]},
            say("user", "repair the test"),
            {"role": "assistant", "content": None, "reasoning_content": " Look. \n", "tool_calls": [first, second]},
            say("tool", '{"lines": 3, "text": "x = 1\\n"}', tool_call_id="call_1"),
            say("tool", "a.py\ncafé\n", tool_call_id="call_2"),
            say("assistant", "\n a\n\nb  ", reasoning_content="Now edit."),
            {"role": "user", "content": [{"type": "text", "text": "go on", **MARK}]},
            say("assistant", "", tool_calls=[call("call_3", "edit", '{"b":1,"a":2}')]),
            say("tool", "ok", tool_call_id="call_3"),
        ],
        "stream": True,
        "tools": [tool(name, f"{name} it") for name in ("read", "edit", "bash", "task")],
        "tool_choice": "auto",
        "metadata": {"a": 1, "b": {"c": "é"}, "d": 2},
    }


def messages(change: Callable[[list[Body]], object]) -> Change:
    return lambda body: change(body["messages"])


def message(place: int, **new: Any) -> Change:
    return lambda body: body["messages"][place].update(new)


def words(place: int, old: str, new: str) -> Change:
    def change(body: Body) -> None:
        one = body["messages"][place]
        assert old in one["content"]
        one["content"] = one["content"].replace(old, new)

    return change


def each(role: str, change: Callable[[Body], object]) -> Change:
    return lambda body: [change(one) for one in body["messages"] if one["role"] == role]


def arguments(change: Callable[[str], str]) -> Change:
    def rewrite(one: Body) -> None:
        for made in one.get("tool_calls", ()):
            made["function"]["arguments"] = change(made["function"]["arguments"])

    return each("assistant", rewrite)


def both(*changes: Change) -> Change:
    return lambda body: [change(body) for change in changes]


def by_javascript(text: str) -> str:
    """``JSON.stringify(JSON.parse(text))``."""

    def made(value: Any) -> Any:
        if isinstance(value, dict):
            numbered = sorted((key for key in value if key.isdecimal()), key=int)
            return {key: made(value[key]) for key in [*numbered, *(key for key in value if key not in numbered)]}
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return value
        return int(Decimal(repr(float(value)))) if float(value).is_integer() else value

    return json.dumps(made(json.loads(text)), ensure_ascii=False, separators=(",", ":"))


def thought_in_text(one: Body) -> None:
    if "reasoning_content" in one:
        one["content"] = f"<think>\n{one.pop('reasoning_content')}\n</think>\n\n{one['content'] or ''}"


def folded_into_text(one: Body) -> None:
    if "tool_calls" in one:
        one["content"] = f"Calling tools:\n{one.pop('tool_calls')!r}"


def renamed(one: Body) -> None:
    if "reasoning_content" in one:
        one["reasoning"] = one.pop("reasoning_content")


def plan_to_build(body: Body) -> None:
    words(0, "2026-11-29", "2026-11-30")(body)
    body["messages"][1]["content"] = "a.py\nb.py"
    body["tools"][3]["function"]["description"] = "another one"


def turn_before_the_files(them: list[Body]) -> None:
    files = them[1:3]
    del them[1:3]
    files[1]["content"] = "repair the test\n(as it is now)"
    them[-1:-1] = files


def without(name: str) -> Callable[[Body], object]:
    return lambda one: one.pop(name, None)


REWRITINGS: dict[str, Change] = {
    "retry": lambda body: None,
    "a turn": messages(lambda them: them.extend([say("assistant", "said"), say("user", "next")])),
    # what the client prints at the start
    "the date": words(0, "2026-11-29", "2026-11-30"),
    "the clock": words(0, "10:00:01", "10:00:09"),
    "a hash in the first line": words(0, "h=00001", "h=00002"),
    "the state of the repository": words(0, "clean", " M f.py"),
    "a line in the middle of it": words(0, "git status", "new file\ngit status"),
    "and the listing": both(words(0, "clean", " M f.py"), message(1, content="a.py\nb.py\nc.py")),
    "another mode": plan_to_build,
    "the role developer": message(0, role="developer"),
    "two developers": both(
        message(0, role="developer"), messages(lambda them: them.insert(8, say("developer", "be brief")))
    ),
    # messages that come, go or move
    "tokens left": messages(lambda them: them.insert(6, say("system", "N=9000 left"))),
    "tokens left, after each result": messages(
        lambda them: [them.insert(place, say("system", f"N={place} left")) for place in (10, 6, 5)]
    ),
    "tokens left, said twice, and a turn": messages(
        lambda them: them.__setitem__(
            slice(6, None), [say("system", "N=9000 left"), say("system", "N=8000 left"), *them[6:], say("user", "next")]
        )
    ),
    "old calls are taken out, and a turn": messages(
        lambda them: them.__setitem__(slice(2, None), [*them[6:], say("user", "next")])
    ),
    "a system message at the end": messages(lambda them: them.append(say("system", "no tool was used", **MARK))),
    "a mark moves": both(message(7, content="go on"), message(9, content=[{"type": "text", "text": "ok", **MARK}])),
    "a turn before the files": messages(turn_before_the_files),
    "an old result is cleared": message(4, content="[Old tool result content cleared]"),
    "back to an earlier question": messages(lambda them: them.__setitem__(slice(7, None), [say("user", "no, stop")])),
    "compacted": lambda body: body.update(messages=[body["messages"][0], say("user", "Summary: " + LONG[:300])]),
    "compacted without tools": lambda body: body.update(
        messages=[say("user", "Sum up:\n" + json.dumps(body["messages"]))], tools=[]
    ),
    "a title is asked for": lambda body: body.update(
        messages=[say("system", "You write titles. " + LONG[:2000]), body["messages"][2]], tools=None
    ),
    "what to remember is asked for": lambda body: body.update(
        messages=[
            say("system", "You manage memory. " + LONG[:1500]),
            *body["messages"][1:],
            say("user", "What is new?"),
        ],
        tools=body["tools"][:2],
    ),
    # tools
    "tools in the middle": lambda body: body["tools"].__setitem__(slice(2, 2), [tool("search"), tool("fetch")]),
    "a tool at the end": lambda body: body["tools"].append(tool("search")),
    "tools in another order": lambda body: body["tools"].reverse(),
    "no tools": lambda body: body.pop("tools"),
    "a tool of another kind": lambda body: body["tools"].append({"type": "web_search"}),
    # arguments, written again
    "compact": arguments(lambda text: json.dumps(json.loads(text), separators=(",", ":"))),
    "as Python does": arguments(lambda text: json.dumps(json.loads(text))),
    "escapes decoded": arguments(lambda text: json.dumps(json.loads(text), ensure_ascii=False)),
    "as JavaScript does": arguments(by_javascript),
    "sorted": arguments(lambda text: json.dumps(json.loads(text), sort_keys=True)),
    "none": arguments(lambda _: ""),
    "null": arguments(lambda _: "null"),
    "a list": arguments(lambda _: "[]"),
    "no JSON": arguments(lambda text: text[:-1]),
    # the model's messages
    "null for no text": each("assistant", lambda one: one.update(content=one["content"] or None)),
    "no text, not null": each("assistant", lambda one: one.update(content=one["content"] or "")),
    "no text, no key": each("assistant", lambda one: one["content"] or one.pop("content")),
    "trimmed": each("assistant", lambda one: one.update(content=(one["content"] or "").strip())),
    "trimmed at the end": each("assistant", lambda one: one.update(content=(one["content"] or "").rstrip())),
    "no reasoning": each("assistant", without("reasoning_content")),
    "reasoning under its other name": each("assistant", renamed),
    "reasoning trimmed": message(3, reasoning_content="Look."),
    "reasoning in the text": each("assistant", thought_in_text),
    "empty reasoning": each("assistant", lambda one: one.setdefault("reasoning_content", "")),
    "no calls": each("assistant", without("tool_calls")),
    "calls in the text": both(each("assistant", folded_into_text), each("tool", lambda one: one.update(role="user"))),
    "other names for calls": lambda body: body.update(
        messages=json.loads(json.dumps(body["messages"]).replace("call_", "functions.bash:"))
    ),
    # results
    "results in parts": each("tool", lambda one: one.update(content=[{"type": "text", "text": one["content"]}])),
    "results as JSON": each("tool", lambda one: one.update(content=json.dumps([{"result": one["content"]}]))),
    "keys of a result in another order": message(4, content='{"text": "x = 1\\n", "lines": 3}'),
    # what else is in a body
    "metadata in another order": lambda body: body.update(metadata=dict(reversed(body["metadata"].items()))),
    "no thinking": lambda body: body.update(chat_template_kwargs={"enable_thinking": False}),
    "thinking kept": lambda body: body.update(chat_template_kwargs={"preserve_thinking": True}),
    "another effort": lambda body: body.update(reasoning_effort="high"),
}


@pytest.fixture(scope="module")
def make() -> Callable[..., ModelTier]:
    return maker()


@pytest.mark.parametrize("name", REWRITINGS)
def test_a_rewritten_conversation(make: Callable[..., ModelTier], name: str) -> None:
    feed = Feed(make())
    first, second = base(), base()
    REWRITINGS[name](second)
    third = copy.deepcopy(second)
    third["messages"] += [say("assistant", "said so"), say("user", "next one")]
    bodies = (first, second, third, first)
    for body in bodies:
        refusal = refused(feed.tier, body)
        if refusal is None:
            feed.ask(body, "session")
            continue
        assert body is not first
        with pytest.raises(Unrenderable) as raised:
            feed.ask(body, "session")
        assert str(raised.value) == refusal
    assert feed.beside == len(bodies) - 1
    assert feed.shared >= len(third["messages"]) - 2 or name.startswith("compacted")


def refused(tier: ModelTier, body: Body) -> str | None:
    """What is said of the request by itself where it gets no IDs."""
    try:
        tier.template.render(tier.profile.normalise(body, tier.template, tier.settings))
    except Unrenderable as error:
        return str(error)
    return None


def test_they_are_rewritings() -> None:
    written = [json.dumps(body) for body in (base(), *map(_rewritten, REWRITINGS))]
    assert len(set(written)) == len(written) - 1  # the retry


def _rewritten(name: str) -> Body:
    body = base()
    REWRITINGS[name](body)
    return body
