"""Rules 2, 9 and 11 of the vLLM profile: tool calls in messages, and the tools of the request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from toktier.errors import Unrenderable
from toktier.json_pieces import JsonLimits, loads
from toktier.reasons import Bypass

_decode: Final = json.JSONDecoder().decode  # json.loads of a string, without its checks for other types

MAX_DEPTH: Final = 100
"""Nesting of JSON beyond which the interpreter's recursion limits come near; engines differ there, so: bypass."""


LONG: Final = 32 << 10
"""Longer arguments, in characters, are read in pieces."""


def tool_calls_of(calls: Any, index: int, current: bool) -> list[dict[str, Any]]:
    """An assistant's tool calls, arguments as objects. Raises `Unrenderable`.

    ``current`` says that the engine is known to take arguments that are no JSON object for an empty one.
    """
    place = f"messages[{index}].tool_calls"
    if type(calls) is not list:
        raise Unrenderable(Bypass.UNSUPPORTED_MESSAGE, place)
    out = []
    for position, call in enumerate(calls):
        function = call.get("function") if type(call) is dict else None
        if (
            type(function) is not dict
            or call.get("type") != "function"
            or type(call.get("id")) is not str
            or type(name := function.get("name")) is not str
            or type(arguments := function.get("arguments")) is not str
            or "custom" in call
        ):
            raise Unrenderable(Bypass.UNSUPPORTED_MESSAGE, f"{place}[{position}]")
        parsed = _arguments(arguments, f"{place}[{position}].function.arguments", current)
        made_function: dict[str, Any] = {"arguments": parsed, "name": name}
        if len(function) > 2:
            made_function.update((key, value) for key, value in function.items() if key not in made_function)
        made = {"id": call["id"], "function": made_function, "type": "function"}
        if len(call) > 3:
            made.update((key, value) for key, value in call.items() if key not in made)
        out.append(made)
    return out


def _arguments(text: str, place: str, current: bool) -> dict[str, Any]:
    if not text:
        return {}
    try:
        parsed = _decode(text) if len(text) < LONG else loads(text, JsonLimits(MAX_DEPTH))
    except json.JSONDecodeError:
        parsed = ""
    except (ValueError, RecursionError):  # an integer beyond the interpreter's limit; nesting; too many values
        raise Unrenderable(Bypass.UNSUPPORTED_MESSAGE, place) from None
    if type(parsed) is dict:
        if text.count("{") + text.count("[") > MAX_DEPTH and deeper_than(parsed, MAX_DEPTH):
            raise Unrenderable(Bypass.UNSUPPORTED_MESSAGE, place)
        return parsed
    if parsed is not None and not current:  # null has always been an empty object
        raise Unrenderable(Bypass.UNSUPPORTED_MESSAGE, place)
    return {}


def deeper_than(value: object, limit: int) -> bool:
    """Whether ``value`` nests containers more than ``limit`` deep."""
    level = [value]
    for _ in range(limit + 1):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer if type(outer) is list else ())
            if type(inner) in (dict, list)
        ]
        if not level:
            return False
    return True


def tools_of(body: Mapping[str, Any], exclude_when_none: bool) -> list[dict[str, Any]] | None:
    """The tools as vLLM dumps them, or None. Raises `Unrenderable`."""
    tools = body.get("tools")
    if tools is None:
        return None
    if type(tools) is not list or not tools:
        raise Unrenderable(Bypass.UNSUPPORTED_TOOLS, "tools")
    made = [_tool(tool, f"tools[{position}]") for position, tool in enumerate(tools)]
    return None if exclude_when_none and body.get("tool_choice") == "none" else made


def _tool(tool: Any, place: str) -> dict[str, Any]:
    function = tool.get("function") if type(tool) is dict else None
    if (
        type(function) is not dict
        or tool.get("type", "function") != "function"
        or type(name := function.get("name")) is not str
        or not _is_optional(description := function.get("description"), str)
        or not _is_optional(parameters := function.get("parameters"), dict)
        or not _is_optional(strict := function.get("strict"), bool)
        or not _is_optional(inner := function.get("defer_loading"), bool)
        or not _is_optional(outer := tool.get("defer_loading"), bool)
        or deeper_than(parameters, MAX_DEPTH)
    ):
        raise Unrenderable(Bypass.UNSUPPORTED_TOOLS, place)
    made: dict[str, Any] = {"name": name, "description": description, "parameters": parameters}
    if strict is not None:
        made["strict"] = strict
    if inner is None:
        inner = outer
    if inner is not None:
        made["defer_loading"] = inner
    dumped: dict[str, Any] = {"type": "function", "function": made}
    if outer is not None:
        dumped["defer_loading"] = outer
    return dumped


def _is_optional(value: object, kind: type) -> bool:
    return value is None or type(value) is kind
