"""The SGLang profile: how SGLang makes the template's arguments of a chat body. Read in 0.5.23, not run.

SGLang needs a GPU, so these rules were not compared with a running engine; whatever is not plain in its source is a
bypass, and the upstream's parity check decides whether IDs are sent at all. Paths are below ``sglang/srt``.

 1. Request fields that rule IDs out: `FIELDS`, and ``reasoning`` or ``reasoning_effort`` (they reach the template in
    model-specific ways). (``entrypoints/openai/protocol.py::ChatCompletionRequest.normalize_reasoning_inputs``)
    ``add_special_tokens`` is no field of SGLang's; true is a bypass.
 2. A message is dumped from its model: known keys only, null ones left out. A user message keeps role and content; the
    others keep ``role, content, tool_call_id, name, reasoning_content, tool_calls``. ``reasoning`` is not known and is
    dropped. Content null or missing is ``""``. (``protocol.py::ChatCompletionMessageGenericParam``,
    ``entrypoints/openai/serving_chat.py::_apply_jinja_template``)
 3. A list of text parts is joined by a blank in format ``string`` and in tool messages; in format ``openai`` it stays
    a list of ``{type, text}``. Other part types: bypass.
    (``parser/jinja_template_utils.py::process_content_for_template_format``,
    ``serving_chat.py::normalize_tool_content``)
 4. The format is ``openai`` when the template's text holds ``image``, ``audio``, ``video`` or ``vision``, or when a
    loop runs over ``message.content``, ``msg.content`` or ``m.content``.
    (``parser/jinja_template_utils.py::detect_jinja_template_content_format``)
 5. Tool calls are dumped as ``id, index, type, function{name, arguments}``, null where absent. ``arguments`` that are
    a string must be a JSON object as orjson reads it; SGLang refuses the request otherwise: bypass.
    (``serving_chat.py::normalize_assistant_tool_call_arguments``)
 6. A last message of the assistant would be turned into one of the user: bypass.
    (``serving_chat.py::_handle_last_assistant_message``)
 7. Tools are dumped as ``type, function, defer_loading`` with null where absent; the function's keys stand in the
    client's order, then missing ``description`` and ``parameters`` as null. ``tool_choice: "none"`` drops the tools, a
    named one keeps that tool alone. Schema types that SGLang would rewrite (``varchar``): bypass.
    (``protocol.py::Function``, ``function_call/utils.py::normalize_json_schema_types``)
 8. Template arguments: ``chat_template_kwargs``, then the server's defaults where a name is missing. All of them pass,
    null included. (``serving_chat.py::_process_messages``)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from toktier.errors import Unrenderable
from toktier.known import Known, OtherRules, taken_over
from toktier.profiles.base import ProfileSettings, renderer_of
from toktier.profiles.eligibility import COMMON, FieldRule, check_fields, plain
from toktier.profiles.vllm import RESERVED_KWARGS
from toktier.profiles.vllm_content import MEDIA_KEYS
from toktier.profiles.vllm_tools import LONG, MAX_DEPTH, deeper_than
from toktier.reasons import Bypass
from toktier.template import ChatTemplate, RenderRequest
from toktier.template_shape import ContentFormat, TemplateShape

MAX_ARGUMENTS: Final = 100_000
"""Commas in the arguments of a tool call: so many values take orjson some milliseconds, without a pause."""

JOINER: Final = " "

FIELDS: Final = (
    plain("add_special_tokens", Bypass.ADD_SPECIAL_TOKENS, False),
    *COMMON,
    FieldRule("reasoning", Bypass.UNSUPPORTED_KWARGS),
    FieldRule("reasoning_effort", Bypass.UNSUPPORTED_KWARGS),
    FieldRule("max_dynamic_patch", Bypass.MULTIMODAL),
    FieldRule("images_config", Bypass.MULTIMODAL),
    FieldRule("video_config", Bypass.MULTIMODAL),
)

_ROLES: Final = frozenset({"system", "user", "assistant", "tool", "developer", "function"})
_MEDIA_WORDS: Final = ("image", "audio", "video", "vision")
_LOOP_NAMES: Final = frozenset({"message", "msg", "m"})
_JSON_TYPES: Final = frozenset({"string", "number", "integer", "boolean", "array", "object", "null"})
_FUNCTION_KEYS: Final = ("description", "name", "parameters", "strict", "defer_loading")
_CODE_RENDERED: Final = {
    "DeepseekV32": "dsv32",
    "DeepseekV4": "dsv4",
    "KimiK3": "kimi_k3",
    "InklingForConditionalGeneration": "inkling",
    "GlmMoeDsaForCausalLM": "glm53",
    "Glm5NextForConditionalGeneration": "glm53",
    "MiniMaxM3": "minimax_m3",
    "HunYuan": "hunyuan",
    "HYV3": "hunyuan",
}
"""Architectures (by a part of the name) with an encoder, a Python template or argument rules of their own."""


def _renderer_named(architecture: object) -> str | None:
    return next((renderer for part, renderer in _CODE_RENDERED.items() if part in str(architecture)), None)


class SglangProfile:
    """The rules above. Stateless."""

    name = "sglang"

    def adds_special_tokens(self, body: Mapping[str, Any]) -> bool:
        return False

    def renderer_of(self, files: Mapping[str, bytes], config: Mapping[str, Any]) -> str:
        return renderer_of(files, _renderer_named)

    def normalise(
        self,
        body: Mapping[str, Any],
        template: ChatTemplate,
        settings: ProfileSettings,
        known: Known | None = None,
    ) -> RenderRequest:
        """Raises `Unrenderable`, `OtherRules`. Linear in what is not known; strings are shared with it."""
        check_fields(body, FIELDS)
        if not template.single:
            raise Unrenderable(Bypass.NO_TEMPLATE, "more than one chat template")
        tools = self._tools(body, known)
        shape = template.shape(tools=tools is not None)
        as_list = _content_format(template, shape, settings) == "openai"
        wire = body.get("messages")
        if type(wire) is not list or not wire:
            raise Unrenderable(Bypass.UNSUPPORTED_MESSAGE, "messages")
        rules = (SglangProfile, shape, as_list)
        if known is not None and not known.by(rules):
            raise OtherRules
        shared, old = ((), []) if known is None else (known.shared, known.made.messages)
        messages = taken_over(shared, len(wire), old, lambda index: _message(wire[index], index, as_list, shape))
        if messages[-1]["role"] == "assistant":
            raise Unrenderable(Bypass.UNSUPPORTED_MESSAGE, "the last message is the assistant's")
        return RenderRequest(messages, tools, _template_kwargs(body, settings), rules=rules)

    def _tools(self, body: Mapping[str, Any], known: Known | None) -> list[dict[str, Any]] | None:
        if known is not None and known.made.rules[:1] == (SglangProfile,):
            made = known.made
            if made.wire_tools is body.get("tools") and made.tool_choice is body.get("tool_choice"):
                return made.tools
        return _tools(body)


def _content_format(template: ChatTemplate, shape: TemplateShape, settings: ProfileSettings) -> ContentFormat:
    if settings.content_format != "auto":
        return settings.content_format
    source = template.source(tools=False)
    if any(word in source for word in _MEDIA_WORDS) or not _LOOP_NAMES.isdisjoint(shape.content_loop_names):
        return "openai"
    return "string"


def _refuse(index: int, key: str) -> Unrenderable:
    return Unrenderable(Bypass.UNSUPPORTED_MESSAGE, f"messages[{index}].{key}")


def _message(message: Any, index: int, as_list: bool, shape: TemplateShape) -> dict[str, Any]:
    if type(message) is not dict or type(role := message.get("role")) is not str or role not in _ROLES:
        raise _refuse(index, "role")
    content = message.get("content")
    if content is None:
        if role == "user":
            raise _refuse(index, "content")
        content = ""
    elif type(content) is list:
        content = _parts(content, index, as_list and role != "tool")
    elif type(content) is not str:
        raise _refuse(index, "content")
    made: dict[str, Any] = {"role": role, "content": content}
    if role == "user":
        return made
    for key in ("phase", "prefix", "tools"):
        if message.get(key) is not None:
            raise _refuse(index, key)
    for key in ("tool_call_id", "name", "reasoning_content"):
        value = message.get(key)
        if value is not None:
            if type(value) is not str:
                raise _refuse(index, key)
            made[key] = value
    if "reasoning_content" in made and ("thinking" in shape.constants or shape.dumps_messages):
        raise _refuse(index, "reasoning_content")  # newer transformers add `thinking`, which this template could show
    calls = message.get("tool_calls")
    if calls is not None:
        if role != "assistant" or type(calls) is not list:
            raise _refuse(index, "tool_calls")
        made["tool_calls"] = [_tool_call(call, index) for call in calls]
    return made


def _parts(parts: list[Any], index: int, as_list: bool) -> str | list[dict[str, Any]]:
    texts = []
    for part in parts:
        if type(part) is not dict:
            raise _refuse(index, "content")
        kind = part.get("type")
        if not MEDIA_KEYS.isdisjoint(part) or (type(kind) is str and kind in MEDIA_KEYS):
            raise Unrenderable(Bypass.MULTIMODAL, f"messages[{index}].content")
        text = part.get("text")
        if kind != "text" or type(text) is not str:
            raise _refuse(index, "content")
        texts.append(text)
    return [{"type": "text", "text": text} for text in texts] if as_list else JOINER.join(texts)


def _tool_call(call: Any, index: int) -> dict[str, Any]:
    function = call.get("function") if type(call) is dict else None
    if (
        type(function) is not dict
        or call.get("type", "function") != "function"
        or type(name := function.get("name")) is not str
        or type(identity := call.get("id")) not in (str, type(None))
        or type(position := call.get("index")) not in (int, type(None))
    ):
        raise _refuse(index, "tool_calls")
    arguments = function.get("arguments")
    if type(arguments) is str:
        if len(arguments) > LONG and arguments.count(",") > MAX_ARGUMENTS:
            raise _refuse(index, "tool_calls.arguments")
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            raise _refuse(index, "tool_calls.arguments") from None
    if type(arguments) is not dict or deeper_than(arguments, MAX_DEPTH):
        raise _refuse(index, "tool_calls.arguments")
    return {
        "id": identity,
        "index": position,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _tools(body: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    tools = body.get("tools")
    if not tools:
        return None
    if type(tools) is not list:
        raise Unrenderable(Bypass.UNSUPPORTED_TOOLS, "tools")
    made = [_tool(tool, f"tools[{position}]") for position, tool in enumerate(tools)]
    choice = body.get("tool_choice")
    if choice is None or choice in ("auto", "required"):
        return made
    if choice == "none":
        return None
    named = choice.get("function") if type(choice) is dict else None
    name = named.get("name") if type(named) is dict else None
    kept = [tool for tool in made if tool["function"]["name"] == name]
    if not kept:
        raise Unrenderable(Bypass.UNSUPPORTED_TOOLS, "tool_choice")
    return kept


def _tool(tool: Any, place: str) -> dict[str, Any]:
    function = tool.get("function") if type(tool) is dict else None
    outer = tool.get("defer_loading") if type(tool) is dict else None
    if (
        type(function) is not dict
        or type(kind := tool.get("type", "function")) is not str
        or type(function.get("name")) is not str
        or type(function.get("description")) not in (str, type(None))
        or type(function.get("parameters")) not in (dict, type(None))
        or type(strict := function.get("strict")) not in (bool, type(None))
        or type(inner := function.get("defer_loading")) not in (bool, type(None))
        or type(outer) not in (bool, type(None))
        or "key_order" in function
        or deeper_than(function, MAX_DEPTH)
        or not _has_plain_types(function.get("parameters"))
    ):
        raise Unrenderable(Bypass.UNSUPPORTED_TOOLS, place)
    dumped: dict[str, Any] = {key: function.get(key) for key in _FUNCTION_KEYS}
    dumped["defer_loading"] = outer if inner is None else inner
    if dumped["defer_loading"] is None:
        del dumped["defer_loading"]
    if strict is None:
        del dumped["strict"]
    order = [key for key in function if key in dumped]
    order += [key for key in dumped if key not in function]
    return {"type": kind, "function": {key: dumped[key] for key in order}, "defer_loading": outer}


def _has_plain_types(schema: object) -> bool:
    """Whether no ``type`` anywhere is one that SGLang would rewrite or merge."""
    stack = [schema]
    while stack:
        node = stack.pop()
        if type(node) is list:
            stack.extend(node)
        elif type(node) is dict:
            kind = node.get("type")
            if type(kind) is str and kind not in _JSON_TYPES:
                return False
            if type(kind) is list and any(type(one) is str and one not in _JSON_TYPES for one in kind):
                return False
            if type(kind) is list and any(kind.count(one) > 1 for one in kind):
                return False
            stack.extend(node.values())
    return True


def _template_kwargs(body: Mapping[str, Any], settings: ProfileSettings) -> dict[str, Any]:
    given = body.get("chat_template_kwargs")
    if given is None:
        given = {}
    if type(given) is not dict:
        raise Unrenderable(Bypass.UNSUPPORTED_KWARGS, "chat_template_kwargs")
    if given.get("chat_template") is not None:
        raise Unrenderable(Bypass.REQUEST_TEMPLATE, "chat_template_kwargs.chat_template")
    merged = {**settings.default_template_kwargs, **given}
    for name in merged:
        if name in RESERVED_KWARGS or name in ("reasoning_effort", "add_generation_prompt"):
            raise Unrenderable(Bypass.UNSUPPORTED_KWARGS, f"chat_template_kwargs.{name}")
    merged["add_generation_prompt"] = True
    return merged
