"""The vLLM profile: how vLLM's Python front end makes the template's arguments of a chat body. Proven on 0.32.0.

The source of 0.27.1, 0.29, 0.31 and 0.32 differs in rule 6 (new in 0.32), in rule 9 (before 0.29 malformed arguments
were refused and lists kept) and in what the template shows for rule 8 (macros, before 0.31). Shapes that rules 6 and 9
treat otherwise in older versions are a bypass unless the engine says that it is 0.32 or newer; rule 8 shows in every
request, so the start-up parity check decides.

Rules, each with its place in vLLM (differential test: ``tests/engine/test_vllm_rules.py``). "Bypass" means
that the request goes upstream as text, because vLLM would fail while rendering or because equality is not proven.

 1. Request fields that rule IDs out: `toktier.profiles.eligibility`.
    (``entrypoints/openai/chat_completion/protocol.py``, ``renderers/online_renderer.py::preprocess_chat``)
 2. Validation keeps unknown keys of messages, parts and tool calls (``extra="allow"`` reaches the TypedDicts), and
    puts known keys first, in the order of openai's types: a tool call is ``id, function{arguments, name}, type``.
    (``protocol.py::ChatCompletionRequest.messages``)
 3. ``reasoning_content`` is read as ``reasoning`` where that is missing or null. An assistant message passes it on
    under both names; other roles drop it. (``protocol.py::_normalize_messages_before``,
    ``renderers/chat_utils.py::_parse_chat_message_content``)
 4. A message is rebuilt in the order ``role, content``; for assistants ``tool_calls, reasoning, reasoning_content``;
    for tools ``tool_call_id``; then ``name`` and ``task`` where they are strings. All other keys are dropped.
 5. Content null (assistant and function only) or missing counts as no parts; a string counts as one text part.
 6. In a system message, a text part that starts with ``x-anthropic-billing-header`` loses its first line, and is
    dropped when nothing is left. (``_strip_claude_code_billing_header``)
 7. Parts: ``text``, ``refusal`` and ``thinking`` are text; ``tool_reference`` stands for its name.
    (``_parse_chat_message_content_part``)
    a. Format ``string``: the non-empty texts are joined by a newline.
    b. Format ``openai``: a list of ``{type: text, text}`` with the part's unknown keys appended (``cache_control``);
       a tool message's list becomes a string, joined by newlines, unless it holds a ``tool_reference``.
    c. Media, or any part with a media key: bypass ``multimodal``. Plain strings in a list, unknown types: bypass.
 8. The content format is the server's flag or, on ``auto``, what the template shows: `toktier.template_shape`.
 9. ``arguments`` are parsed; empty, malformed or not an object gives ``{}``. An empty or null ``tool_calls`` is
    dropped. (``_postprocess_messages``)
10. ``developer`` messages stay when the template names the role. Else they become ``system``, and if then any
    system message is not the first, all are merged into one at the front, joined by a blank line, empty ones left
    out, other keys lost: `toktier.profiles.vllm_developer`.
    (``renderers/hf.py::_convert_developer_to_system``, ``_consolidate_system_messages``)
11. Tools are dumped as ``type, function{name, description, parameters[, strict][, defer_loading]}[, defer_loading]``:
    description and parameters stay as null where absent, unknown keys go, and ``defer_loading`` on the tool is
    copied to the function. ``tool_choice: "none"`` drops the tools when the server says so.
    (``protocol.py::ChatCompletionToolsParam``, ``entrypoints/generate/base/protocol.py::FunctionDefinition``)
12. Template arguments: the server's defaults, then ``chat_template_kwargs``, then ``reasoning_effort`` and, where it is
    given and the client did not set ``enable_thinking``, ``enable_thinking = effort != "none"``. Null and ``"auto"``
    never override. Only free variables of the template pass. (``protocol.py::build_chat_params``,
    ``renderers/params.py::merge_kwargs``, ``renderers/hf.py::resolve_chat_template_kwargs``)
13. The prompt is encoded with the request's ``add_special_tokens``, false if absent.
    (``protocol.py::ChatCompletionRequest.build_tok_params``)
14. ``add_generation_prompt`` is true whatever ``chat_template_kwargs`` say, and ``documents`` is None.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from toktier.errors import Unrenderable
from toktier.known import Known, OtherRules, taken_over
from toktier.profiles.base import ProfileSettings, renderer_of
from toktier.profiles.eligibility import COMMON, check_fields
from toktier.profiles.vllm_content import content_of
from toktier.profiles.vllm_developer import as_system
from toktier.profiles.vllm_tools import tool_calls_of, tools_of
from toktier.reasons import Bypass
from toktier.template import ChatTemplate, RenderRequest
from toktier.template_shape import TemplateShape

RESERVED_KWARGS: Final = frozenset(
    {
        "chat_template",
        "continue_final_message",
        "conversation",
        "conversations",
        "documents",
        "max_length",
        "messages",
        "model_config",
        "padding",
        "raise_exception",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sanitize_control_tokens",
        "self",
        "strftime_now",
        "tokenize",
        "tokenizer",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""Names that are an argument of some function on the way to the template, or a global of it: never plain variables."""

PROVEN: Final = (0, 32)

REASONING_EFFORTS: Final = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max"})

_CODE_RENDERED_ARCHITECTURES: Final = {
    "MoonshotKimiaForCausalLM": "kimi_audio",
    "KimiK3ForConditionalGeneration": "kimi_k3",
    "DeepseekV32ForCausalLM": "deepseek_v32",
    "DeepseekV4ForCausalLM": "deepseek_v4",
    "DeepseekV4ForConditionalGeneration": "deepseek_v4",
    "DeepseekV41ForCausalLM": "deepseek_v41",
    "InklingForCausalLM": "inkling",
    "InklingForConditionalGeneration": "inkling",
}
"""``vllm/config/model.py``: the tokenizer modes, and so the renderers, that ``--tokenizer-mode auto`` picks."""


def _renderer_named(architecture: object) -> str | None:
    return _CODE_RENDERED_ARCHITECTURES.get(architecture) if isinstance(architecture, str) else None


class VllmProfile:
    """The rules above. Stateless."""

    name = "vllm"

    def adds_special_tokens(self, body: Mapping[str, Any]) -> bool:
        return body.get("add_special_tokens") is True

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
        check_fields(body, COMMON)
        tools = self._tools(body, settings.exclude_tools_when_tool_choice_none, known)
        shape = template.shape(tools=tools is not None)
        content_format = shape.content_format if settings.content_format == "auto" else settings.content_format
        kwargs = _template_kwargs(body, shape, settings)
        as_list, current = content_format == "openai", _is_current(settings.engine_version)
        rules = (VllmProfile, shape, as_list, current, settings.exclude_tools_when_tool_choice_none)
        if known is not None and not known.by(rules):
            raise OtherRules
        messages = _messages(body.get("messages"), as_list, shape, current, known)
        converted = None if shape.names_developer else as_system(messages, known)
        if converted is None:
            return RenderRequest(messages, tools, kwargs, rules=rules)
        return RenderRequest(converted.messages, tools, kwargs, rules, messages, converted.systems, converted.shared)

    def _tools(
        self, body: Mapping[str, Any], exclude_when_none: bool, known: Known | None
    ) -> list[dict[str, Any]] | None:
        if known is not None:
            made = known.made
            same = made.wire_tools is body.get("tools") and made.tool_choice is body.get("tool_choice")
            if same and made.rules[:1] == (VllmProfile,) and made.rules[-1] is exclude_when_none:
                return made.tools
        return tools_of(body, exclude_when_none)


def _is_current(version: str | None) -> bool:
    """Whether the engine is known to be at least the version that the rules were proven on."""
    number = re.match(r"(\d+)\.(\d+)", version or "")
    return number is not None and (int(number[1]), int(number[2])) >= PROVEN


def _messages(
    wire: object, as_list: bool, shape: TemplateShape, current: bool, known: Known | None
) -> list[dict[str, Any]]:
    if not isinstance(wire, list):
        raise Unrenderable(Bypass.UNSUPPORTED_MESSAGE, "messages")
    if not wire:
        raise Unrenderable(Bypass.UNSUPPORTED_MESSAGE, "messages is empty")
    shared, old = ((), []) if known is None else (known.shared, known.made.messages)
    return taken_over(shared, len(wire), old, lambda index: _message(wire[index], index, as_list, shape, current))


def _message(message: Any, index: int, as_list: bool, shape: TemplateShape, current: bool) -> dict[str, Any]:
    if type(message) is not dict or type(role := message.get("role")) is not str or "author" in message:
        raise Unrenderable(Bypass.UNSUPPORTED_MESSAGE, f"messages[{index}]")
    content = message.get("content")
    made: dict[str, Any] = {"role": role, "content": content}
    plain = type(content) is str and not as_list
    if plain and len(message) == 2 and role not in ("system", "developer"):
        return made
    if not plain or role == "system":
        made["content"] = content_of(message, role, index, as_list, current)
    if role == "assistant":
        _assistant_keys(made, message, index, shape, current)
    elif role == "tool":
        if "tool_call_id" in message:
            made["tool_call_id"] = _string(message["tool_call_id"], index, "tool_call_id")
    elif role == "developer":
        _developer_tools(message, index, shape)
    if "name" in message:
        made["name"] = _string(message["name"], index, "name")
    if "task" in message:
        made["task"] = _string(message["task"], index, "task")
    return made


def _assistant_keys(
    made: dict[str, Any], message: dict[str, Any], index: int, shape: TemplateShape, current: bool
) -> None:
    calls = message.get("tool_calls")
    if calls:
        made["tool_calls"] = tool_calls_of(calls, index, current)
    elif calls is not None and calls != []:
        raise Unrenderable(Bypass.UNSUPPORTED_MESSAGE, f"messages[{index}].tool_calls")
    reasoning = message.get("reasoning")
    if reasoning is None:
        reasoning = message.get("reasoning_content")
    if reasoning is not None:
        made["reasoning"] = made["reasoning_content"] = _string(reasoning, index, "reasoning")
        # Newer transformers copy it to `thinking` as well, 5.19 does not: a template that could tell is bypassed.
        if "thinking" in shape.constants or shape.dumps_messages:
            raise Unrenderable(Bypass.UNSUPPORTED_MESSAGE, f"messages[{index}].reasoning")


def _developer_tools(message: dict[str, Any], index: int, shape: TemplateShape) -> None:
    """vLLM passes ``tools: None`` on, and newer transformers drop null keys: a template that could tell is bypassed."""
    tells = shape.names_developer and ("tools" in shape.constants or shape.dumps_messages)
    if tells or message.get("tools") is not None:
        raise Unrenderable(Bypass.UNSUPPORTED_MESSAGE, f"messages[{index}].tools")


def _string(value: object, index: int, key: str) -> str:
    if type(value) is not str:
        raise Unrenderable(Bypass.UNSUPPORTED_MESSAGE, f"messages[{index}].{key}")
    return value


def _template_kwargs(body: Mapping[str, Any], shape: TemplateShape, settings: ProfileSettings) -> dict[str, Any]:
    """Rules 12 and 14."""
    given = body.get("chat_template_kwargs")
    if given is None:
        given = {}
    if type(given) is not dict:
        raise Unrenderable(Bypass.UNSUPPORTED_KWARGS, "chat_template_kwargs")
    if given.get("chat_template") is not None:
        raise Unrenderable(Bypass.REQUEST_TEMPLATE, "chat_template_kwargs.chat_template")
    merged = dict(settings.default_template_kwargs)
    merged.update((name, value) for name, value in given.items() if _overrides(value))
    effort = body.get("reasoning_effort")
    if effort is not None:
        if type(effort) is not str or effort not in REASONING_EFFORTS:
            raise Unrenderable(Bypass.UNSUPPORTED_KWARGS, "reasoning_effort")
        merged["reasoning_effort"] = effort
        if "enable_thinking" not in given:
            merged["enable_thinking"] = effort != "none"
    if reserved := RESERVED_KWARGS & (merged.keys() | given.keys()):
        raise Unrenderable(Bypass.UNSUPPORTED_KWARGS, f"chat_template_kwargs.{min(reserved)}")
    kwargs = {name: value for name, value in merged.items() if name in shape.variables}
    kwargs["add_generation_prompt"] = True
    return kwargs


def _overrides(value: object) -> bool:
    return value is not None and value != "auto"
