"""Chat bodies as clients do and do not send them: a seeded stream of JSON texts for differential tests.

`body(rng)` mixes ordinary agent traffic with odd shapes: null, missing and empty content, parts of every type with
extra keys, tool calls with malformed or strange arguments, unknown roles and keys, reasoning under both names, tools
with extra fields, template arguments. About half of the bodies are plain; the odd ones hold one to three oddities.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

Message = dict[str, Any]

TEXTS = (
    "",
    " ",
    "hi",
    "two\nlines\n",
    "\n\n",
    "  padded  ",
    "näïve — 你好 🫨",
    "<|im_end|>\n<|im_start|>user\nx",
    "<think>\na\n</think>\n\nb",
    "{{ x }}{% raw %}",
    "a<b & 'c' \"d\"",
    "tab\tnul\x00end",
    "<tool_response>x</tool_response>",
    "</think>",
    "z" * 300,
    "x-anthropic-billing-header: v=1; cch=00001;",
    "x-anthropic-billing-header: v=1\nrest\nmore",
    "\r\nwindows\r\n",
)

ARGUMENTS = (
    "",
    "{}",
    '{"a":1}',
    '{ "b" : [1, 2.0, 1e3, null, true],  "a": "\\u00e9\\ud83d\\ude00" }',
    "null",
    "[]",
    "42",
    '"s"',
    "{bad",
    "not json",
    '{"a":1}x',
    ' {"a": {"b": {}}} ',
    '{"a":1,"a":2}',
    '{"n": 12345678901234567890, "f": 5000.0}',
    "true",
    "[{}]",
    '{"x": NaN}',
    '{"s": "a\\nb<c>"}',
    "\n",
    '{"é": "ü"}',
    "{'a': 1}",
    '{"big": 1' + "0" * 30 + "}",
)

VALUES = (None, True, False, 0, 1, 2.5, "", "s", [], ["a"], {}, {"k": "v"}, "auto", "none")


def call(rng: random.Random) -> dict[str, Any]:
    made = {
        "id": f"call_{rng.randrange(99)}",
        "type": "function",
        "function": {"name": rng.choice(["f", "read_file", "x.y"]), "arguments": rng.choice(ARGUMENTS)},
    }
    keys = list(made)
    rng.shuffle(keys)
    return {key: made[key] for key in keys}


def text_part(rng: random.Random) -> dict[str, Any]:
    part = {"type": "text", "text": rng.choice(TEXTS)}
    if rng.random() < 0.3:
        part["cache_control"] = {"type": "ephemeral"}
    return part if rng.random() < 0.5 else dict(reversed(part.items()))


def odd_part(rng: random.Random) -> Any:
    return rng.choice(
        [
            {"type": "refusal", "refusal": "no"},
            {"type": "thinking", "thinking": "hm", "closed": True},
            {"type": "tool_reference", "name": "f"},
            {"type": "tool_reference"},
            {"type": "input_text", "text": "x"},
            {"type": "output_text", "text": "x"},
            {"type": "text", "text": None},
            {"type": "text"},
            {"text": "x"},
            {"type": "text", "text": "x", "name": "n", "zeta": 1, "alpha": [1]},
            {"type": "text", "text": "x", "uuid": "u"},
            {"type": "text", "text": "x", "thinking": "t"},
            {"type": "text", "text": "x", "prompt_cache_breakpoint": {"mode": "explicit"}},
            {"type": "text", "text": "x", "image_url": None},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
            {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
            {"type": "file", "file": {"file_id": "f"}},
            {"type": "strange"},
            {"type": 5, "text": "x"},
            {"type": "text", "text": 5},
            "plain",
            5,
            None,
            [],
        ]
    )


def content(rng: random.Random) -> Any:
    roll = rng.random()
    if roll < 0.6:
        return rng.choice(TEXTS)
    return [text_part(rng) for _ in range(rng.choice([0, 1, 1, 2, 3]))]


def message(rng: random.Random, role: str) -> Message:
    made: Message = {"role": role, "content": content(rng)}
    if role == "assistant":
        if rng.random() < 0.5:
            made["tool_calls"] = [call(rng) for _ in range(rng.choice([1, 1, 2, 3]))]
            roll = rng.random()
            if roll < 0.3:
                made["content"] = None
            elif roll < 0.5:
                del made["content"]
        if rng.random() < 0.4:
            made[rng.choice(["reasoning", "reasoning_content"])] = rng.choice(TEXTS)
    if role == "tool" and rng.random() < 0.9:
        made["tool_call_id"] = "call_1"
    if rng.random() < 0.1:
        made["name"] = "n"
    keys = list(made)
    if rng.random() < 0.3:
        rng.shuffle(keys)
    return {key: made[key] for key in keys}


def tool(rng: random.Random) -> dict[str, Any]:
    function: dict[str, Any] = {"name": rng.choice(["f", "read_file"])}
    if rng.random() < 0.8:
        function["description"] = rng.choice(["d", "", None, "a<b & c>d's — é\n"])
    if rng.random() < 0.8:
        function["parameters"] = rng.choice(
            [
                None,
                {},
                {
                    "type": "object",
                    "properties": {"z": {"type": "string"}, "a": {"type": ["integer", "null"], "default": None}},
                },
                {
                    "$schema": "x",
                    "type": "object",
                    "required": ["b", "a"],
                    "additionalProperties": False,
                    "n": 1.0,
                    "big": 10**25,
                },
            ]
        )
    if rng.random() < 0.3:
        function["strict"] = rng.choice([None, True, False])
    made: dict[str, Any] = {"type": "function", "function": function}
    if rng.random() < 0.2:
        function["extra"] = {"x": 1}
    if rng.random() < 0.1:
        made["cache_control"] = {"type": "ephemeral"}
    return made if rng.random() < 0.7 else dict(reversed(made.items()))


def conversation(rng: random.Random) -> list[Message]:
    roles = ["system"] if rng.random() < 0.6 else []
    for _ in range(rng.choice([1, 1, 2, 4])):
        roles.append("user")
        for _ in range(rng.choice([0, 1, 2])):
            roles += ["assistant", "tool"] + (["tool"] if rng.random() < 0.3 else [])
        if rng.random() < 0.7:
            roles.append("assistant")
    if roles[-1] == "assistant" and rng.random() < 0.7:
        roles.append("user")
    return [message(rng, role) for role in roles]


def _set(*path: str) -> Callable[[random.Random, dict[str, Any]], None]:
    def mutate(rng: random.Random, made: dict[str, Any]) -> None:
        made[rng.choice(path)] = rng.choice(VALUES)

    return mutate


def _odd_message(rng: random.Random, made: dict[str, Any]) -> None:
    target = rng.choice(made["messages"])
    roll = rng.randrange(13)
    if roll == 0:
        target[rng.choice(["content", "name", "tool_call_id", "reasoning", "reasoning_content", "task", "tools"])] = (
            rng.choice(VALUES)
        )
    elif roll == 1:
        target.pop(rng.choice(list(target)), None)
    elif roll == 2:
        target.update(
            rng.sample(
                list({"refusal": None, "audio": None, "function_call": None, "annotations": [], "foo": 1}.items()), 2
            )
        )
    elif roll == 3:
        target["role"] = rng.choice(["developer", "function", "ipython", "custom", "System", "", None, 5])
    elif roll == 4:
        target["tool_calls"] = rng.choice(
            [
                None,
                [],
                {},
                "x",
                5,
                [None],
                [{}],
                [call(rng), {"id": "c", "type": "custom", "custom": {"name": "f", "input": "x"}}],
            ]
        )
    elif roll == 5 and isinstance(target.get("tool_calls"), list) and target["tool_calls"]:
        bad = target["tool_calls"][0]
        if isinstance(bad, dict):
            bad.update(
                rng.choice(
                    [
                        {"index": 0, "extra": {"a": 1}},
                        {"id": None},
                        {"type": "x"},
                        {"function": None},
                        {"custom": {"name": "f", "input": "i"}},
                    ]
                )
            )
    elif (
        roll == 6
        and isinstance(target.get("tool_calls"), list)
        and target["tool_calls"]
        and isinstance(target["tool_calls"][0], dict)
    ):
        function = target["tool_calls"][0].get("function")
        if isinstance(function, dict):
            function.update(
                rng.choice(
                    [
                        {"arguments": None},
                        {"arguments": {}},
                        {"arguments": {"a": 1}},
                        {"name": None},
                        {"z": 1, "b": [2]},
                        {"arguments": 5},
                    ]
                )
            )
    elif roll in (7, 8):
        target["content"] = [odd_part(rng), *([text_part(rng)] if rng.random() < 0.5 else [])]
        if rng.random() < 0.5:
            target["content"].append(odd_part(rng))
    elif roll == 9:
        target["role"] = "developer"
    elif roll == 10:
        made["messages"].insert(
            rng.randrange(len(made["messages"]) + 1), message(rng, rng.choice(["developer", "system"]))
        )
    elif roll == 11:
        target["author"] = {"role": "user"}
    else:
        made["messages"] = rng.choice([[], None, "x", [None], made["messages"] + ["x"], made["messages"]])


def _odd_tools(rng: random.Random, made: dict[str, Any]) -> None:
    if not made.get("tools"):
        made["tools"] = [tool(rng)]
    target = rng.choice(made["tools"])
    roll = rng.randrange(6)
    if roll == 0:
        target["function"][rng.choice(["name", "description", "parameters", "strict", "defer_loading"])] = rng.choice(
            VALUES
        )
    elif roll == 1:
        target[rng.choice(["type", "defer_loading", "function"])] = rng.choice(VALUES)
    elif roll == 2:
        target["defer_loading"] = rng.choice([True, False, None])
        target["function"]["defer_loading"] = rng.choice([True, False, None])
    elif roll == 3:
        made["tools"] = rng.choice([[], None, {}, [None], "x", [{}]])
    elif roll == 4:
        target.pop("type", None)
    else:
        made["tool_choice"] = rng.choice(
            ["none", "auto", "required", None, "x", {"type": "function", "function": {"name": "f"}}]
        )


def _odd_kwargs(rng: random.Random, made: dict[str, Any]) -> None:
    roll = rng.randrange(4)
    if roll == 0:
        made["reasoning_effort"] = rng.choice(["none", "low", "high", "max", "minimal", None, "x", 5])
    elif roll == 1:
        made["chat_template_kwargs"] = rng.choice([None, {}, [], "x"])
    else:
        names = [
            "enable_thinking",
            "foo",
            "content",
            "reasoning_effort",
            "bos_token",
            "eos_token",
            "tools",
            "messages",
            "documents",
            "padding",
            "tokenize",
            "chat_template",
            "namespace",
            "add_generation_prompt",
            "raise_exception",
            "conversation",
        ]
        weights = [8, 6, 1, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
        made["chat_template_kwargs"] = {
            name: rng.choice(VALUES) for name in rng.choices(names, weights, k=rng.choice([1, 1, 2]))
        }
        if rng.random() < 0.3:
            made["reasoning_effort"] = rng.choice(["none", "low", None])


_FIELDS = _set(
    "echo",
    "documents",
    "continue_final_message",
    "add_generation_prompt",
    "add_special_tokens",
    "truncate_prompt_tokens",
    "use_beam_search",
    "chat_template",
    "mm_processor_kwargs",
    "store",
    "parallel_tool_calls",
    "tool_choice",
    "metadata",
)


def body(rng: random.Random) -> str:
    """One request's JSON text."""
    made: dict[str, Any] = {"model": "m", "messages": conversation(rng)}
    if rng.random() < 0.5:
        made["tools"] = [tool(rng) for _ in range(rng.choice([1, 2, 3]))]
    if rng.random() < 0.2:
        made["chat_template_kwargs"] = {"enable_thinking": rng.choice([True, False])}
    if rng.random() < 0.55:
        for _ in range(rng.choice([1, 1, 2, 3])):
            if (
                isinstance(made.get("messages"), list)
                and made["messages"]
                and all(isinstance(m, dict) for m in made["messages"])
            ):
                mutate = rng.choices([_odd_message, _odd_tools, _odd_kwargs, _FIELDS], [6, 2, 2, 1])[0]
                if mutate is _odd_tools and not (
                    made.get("tools") is None
                    or (
                        isinstance(made["tools"], list)
                        and all(isinstance(t, dict) and isinstance(t.get("function"), dict) for t in made["tools"])
                    )
                ):
                    continue
                mutate(rng, made)
    return json.dumps(made, ensure_ascii=rng.random() < 0.5)
