"""The embedded engine's reference: a process of its own that renders and tokenizes as vLLM would, and compares.

    python -P proxy/embedded_check.py FOLDER

Invariants
* It imports nothing of TokTier: template and tokenizer are transformers' own (`AutoTokenizer`, `apply_chat_template`),
  and the few rules that vLLM applies before the template are written here a second time, from vLLM 0.32
  (`renderers/chat_utils.py`, `renderers/hf.py`, `entrypoints/openai/chat_completion/protocol.py`).
* Nothing is remembered between two requests: each one is rendered and encoded in full.
* It reads JSON lines on standard input and answers each with one JSON line on standard output, in order. The first
  line that it writes says that it is ready. It ends when its input ends.

Requests, with `id` echoed in the answer:

    {"op": "chat", "body": {...}}              -> {"ids": [...]}            the body of a chat or of /tokenize
    {"op": "text", "text": "...", "special"}   -> {"ids": [...]}
    {"op": "check", "body": {...}, "ids": []}  -> {"tokens", "first_difference", "same_text"}
    anything that the engine would refuse      -> {"refused": message, "param": name or null}

It is for templates whose content format is vLLM's "string" (Qwen3's is one): content parts are joined with newlines.
"""

from __future__ import annotations

import json
import lzma
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

BILLING_HEADER = "x-anthropic-billing-header"
"""First words of a system text whose first line vLLM drops (Claude Code's attribution line)."""

TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}
"""Content part types that are text, and the key that holds it."""

IMAGE_PARTS = ("image_url", "input_image")
IMAGE_PLACEHOLDER = "<|vision_start|><|image_pad|><|vision_end|>"
"""What stands in the prompt for an image: Qwen's own marks. The simulator looks at no image."""


class Refused(Exception):
    """The request is one that the engine answers with 400; ``param`` names the field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


def part_text(part: Any) -> str:
    """The text of one content part; empty where vLLM skips the part."""
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in TEXT_PARTS:
        text = part.get(TEXT_PARTS[kind])
        if text is not None and not isinstance(text, str):
            raise Refused("content part text must be a string", "messages")
        return text or ""
    if kind == "tool_reference":
        return part.get("name") or ""
    if kind in IMAGE_PARTS:
        return IMAGE_PLACEHOLDER
    raise Refused(f"Unsupported chat content part type: {kind!r}.", "type")


def flatten(message: dict[str, Any]) -> str:
    """Content to one string: text parts joined with newlines, empty ones left out, no content as nothing."""
    role, content = message["role"], message.get("content")
    if content is None:
        if "content" in message and role != "assistant":
            raise Refused(f"content of a {role} message must not be null", "messages")
        return ""
    if not isinstance(content, str | list):
        raise Refused("content must be a string or a list of parts", "messages")
    texts = []
    for part in [content] if isinstance(content, str) else content:
        text = part_text(part)
        plain = isinstance(part, str) or part.get("type") == "text"
        if role == "system" and plain and text.startswith(BILLING_HEADER):
            text = text.partition("\n")[2]
        if text:
            texts.append(text)
    return "\n".join(texts)


def arguments(raw: Any) -> dict[str, Any]:
    """A tool call's arguments as the object that templates want; what is not an object becomes an empty one."""
    if isinstance(raw, str):
        try:
            raw = json.loads(raw)
        except json.JSONDecodeError:
            return {}
    return raw if isinstance(raw, dict) else {}


def tool_calls(calls: Any) -> list[dict[str, Any]]:
    """An assistant's tool calls with parsed arguments."""
    result = []
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or call.get("type", "function") != "function":
            raise Refused("chat completions only support assistant tool_calls of type 'function'.", "tool_calls")
        result.append({**call, "function": {**function, "arguments": arguments(function.get("arguments"))}})
    return result


def normalise(messages: Any, template: str) -> list[dict[str, Any]]:
    """Wire messages to the conversation that the template sees."""
    if not isinstance(messages, list):
        raise Refused("messages must be a list", "messages")
    conversation = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise Refused("every message is an object with a role", "messages")
        seen: dict[str, Any] = {"role": message["role"], "content": flatten(message)}
        if seen["role"] == "assistant":
            if calls := message.get("tool_calls"):
                seen["tool_calls"] = tool_calls(calls)
            reasoning = message.get("reasoning")
            if reasoning is None:
                reasoning = message.get("reasoning_content")
            if reasoning is not None:
                seen["reasoning"] = seen["reasoning_content"] = reasoning
        if seen["role"] == "tool" and "tool_call_id" in message:
            seen["tool_call_id"] = message["tool_call_id"]
        seen |= {key: message[key] for key in ("name", "task") if isinstance(message.get(key), str)}
        conversation.append(seen)
    if any(m["role"] == "developer" for m in conversation) and not (
        "'developer'" in template or '"developer"' in template
    ):
        return developers_to_system(conversation)
    return conversation


def developers_to_system(conversation: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For templates without a developer role: developers become system, and all system messages one, in front."""
    renamed = [{**m, "role": "system"} if m["role"] == "developer" else m for m in conversation]
    if all(m["role"] != "system" for m in renamed[1:]):
        return renamed
    texts = [m["content"] for m in renamed if m["role"] == "system" and m["content"]]
    return [{"role": "system", "content": "\n\n".join(texts)}, *(m for m in renamed if m["role"] != "system")]


def flag(value: Any) -> bool | None:
    """A boolean member of a tool as pydantic reads it: 0 and 1 count, other things are refused."""
    if value is not None and value not in (True, False):
        raise Refused("tool flags must be boolean", "tools")
    return None if value is None else bool(value)


def tool_list(tools: Any) -> list[dict[str, Any]] | None:
    """Tools in the key order of vLLM's models: unknown keys fall away, absent description and parameters are null."""
    if tools is None:
        return None
    result = []
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or tool.get("type", "function") != "function" or "name" not in function:
            raise Refused("tools must be functions with a name", "tools")
        dumped = {key: function.get(key) for key in ("name", "description", "parameters")}
        if (strict := flag(function.get("strict"))) is not None:
            dumped["strict"] = strict
        outer, inner = flag(tool.get("defer_loading")), flag(function.get("defer_loading"))
        if (defer := outer if inner is None else inner) is not None:
            dumped["defer_loading"] = defer
        result.append({"type": "function", "function": dumped} | ({} if outer is None else {"defer_loading": outer}))
    return result


class Reference:
    """transformers' tokenizer and template from ``folder``, whose files may be xz-compressed."""

    def __init__(self, folder: Path) -> None:
        # Imported here: the process sets transformers' environment first.
        import jinja2.meta
        import jinja2.sandbox
        import transformers

        with tempfile.TemporaryDirectory(prefix="toktier-simulator-") as scratch:
            for file in sorted(p for p in folder.iterdir() if p.is_file()):
                raw = file.read_bytes()
                if file.suffix == ".xz":
                    raw, file = lzma.decompress(raw), file.with_suffix("")
                (Path(scratch) / file.name).write_bytes(raw)
            self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(scratch)
        self.version = transformers.__version__
        self.template: str = self.tokenizer.get_chat_template()
        parsed = jinja2.sandbox.ImmutableSandboxedEnvironment(
            extensions=["jinja2.ext.loopcontrols"],
        ).parse(self.template.replace("{% generation %}", "").replace("{% endgeneration %}", ""))
        self.variables = jinja2.meta.find_undeclared_variables(parsed) | {"documents", "continue_final_message"}

    def chat(self, body: dict[str, Any]) -> list[int]:
        """The IDs of a chat request's prompt, rendered and encoded in full."""
        ids = self._apply(body, tokenize=True)
        return list(ids)

    def _apply(self, body: dict[str, Any], *, tokenize: bool) -> Any:
        asked = dict(body.get("chat_template_kwargs") or {})
        if body.get("chat_template") is not None or asked.get("chat_template") is not None:
            raise Refused("Chat template is passed with request, but --trust-request-chat-template is not set.")
        own = {
            "add_generation_prompt": body.get("add_generation_prompt", True),
            "continue_final_message": body.get("continue_final_message", False),
            "documents": body.get("documents"),
            "reasoning_effort": body.get("reasoning_effort"),
        }
        if own["reasoning_effort"] is not None and "enable_thinking" not in asked:
            own["enable_thinking"] = own["reasoning_effort"] != "none"
        kwargs = {"tools": tool_list(body.get("tools")), **asked}
        kwargs |= {key: value for key, value in own.items() if value not in (None, "auto")}
        tools = kwargs.pop("tools")
        kwargs = {key: value for key, value in kwargs.items() if key in self.variables}
        conversation = normalise(body.get("messages"), self.template)
        try:
            return self.tokenizer.apply_chat_template(
                conversation, tools=tools, tokenize=tokenize, return_dict=False, **kwargs
            )
        except Exception as error:  # whatever the template raises is the engine's 400
            raise Refused(str(error)) from error

    def text(self, text: str, special: bool) -> list[int]:
        """The IDs of plain text."""
        return list(self.tokenizer.encode(text, add_special_tokens=special))

    def check(self, body: dict[str, Any], ids: list[int]) -> dict[str, Any]:
        """How ``ids`` compare with the reference: its count, the first index that differs, the same text or not."""
        right = self.chat(body)
        if ids == right:
            return {"tokens": len(right), "first_difference": None, "same_text": True}
        first = next((i for i, (a, b) in enumerate(zip(ids, right, strict=False)) if a != b), min(len(ids), len(right)))
        same_text = self.tokenizer.decode(ids) == self.tokenizer.decode(right)
        return {"tokens": len(right), "first_difference": first, "same_text": same_text}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """One request's answer, without its id."""
        try:
            if request["op"] == "chat":
                return {"ids": self.chat(request["body"])}
            if request["op"] == "text":
                return {"ids": self.text(request["text"], request["special"])}
            return self.check(request["body"], request["ids"])
        except Refused as refused:
            return {"refused": str(refused), "param": refused.param}
        except Exception as error:  # a shape that the engine's own models would have refused
            return {"refused": f"malformed request ({type(error).__name__})", "param": None}


NO_TRANSFORMERS = 3
"""Exit status where the one library that this process needs is not installed."""


def main(folder: Path) -> None:
    """Serve standard input until it ends. Whatever a library prints goes to standard error."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # the terminal's Ctrl-C is for the engine, which then ends this process
    # transformers reads these when it is imported.
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        reference = Reference(folder)
    except ModuleNotFoundError:
        sys.exit(NO_TRANSFORMERS)
    vocabulary = max(reference.tokenizer.get_vocab().values()) + 1
    hello = {"ready": True, "transformers": reference.version, "vocab_size": vocabulary}
    print(json.dumps(hello), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps({"id": request["id"], **reference.answer(request)}), file=answers, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
