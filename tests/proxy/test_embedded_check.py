"""The embedded engine's reference: the rules of vLLM that it applies, and that it shares nothing with TokTier."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from proxy.embedded_check import Reference
from proxy.embedded_checker import PROGRAM

USER = {"role": "user", "content": "Read a.py, please."}


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(Path(str(files("toktier").joinpath("data", "qwen3"))))


def prompt(reference: Reference, body: dict[str, Any]) -> str:
    """The rendered prompt, read back from its IDs."""
    return str(reference.tokenizer.decode(reference.chat(body)))


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        # parts are joined with newlines, empty ones fall away
        (
            [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": ""}, "b"]}],
            "<|im_start|>user\na\nb<|im_end|>\n",
        ),
        # Claude Code's attribution line goes, the rest of its text stays
        (
            [{"role": "system", "content": "x-anthropic-billing-header: h=1\nRules."}, USER],
            "<|im_start|>system\nRules.<|im_end|>\n<|im_start|>user\nRead a.py, please.<|im_end|>\n",
        ),
        # developer becomes system, and all of them one in front
        (
            [
                {"role": "developer", "content": "A"},
                {"role": "user", "content": "u"},
                {"role": "system", "content": "B"},
            ],
            "<|im_start|>system\nA\n\nB<|im_end|>\n<|im_start|>user\nu<|im_end|>\n",
        ),
        # arguments are parsed, so their spacing is the template's; what is no object becomes an empty one
        (
            [
                {"role": "user", "content": "u"},
                {
                    "role": "assistant",
                    "content": None,
                    "reasoning_content": "r",
                    "tool_calls": [
                        {
                            "id": "1",
                            "type": "function",
                            "function": {"name": "f", "arguments": '{"a":1.0,"é":"\\u00e9"}'},
                        },
                        {"id": "2", "type": "function", "function": {"name": "g", "arguments": "[1"}},
                    ],
                },
                {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "ok"}]},
            ],
            "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n<think>\nr\n</think>\n\n<tool_call>\n"
            '{"name": "f", "arguments": {"a": 1.0, "é": "é"}}\n</tool_call>\n<tool_call>\n'
            '{"name": "g", "arguments": {}}\n</tool_call><|im_end|>\n'
            "<|im_start|>user\n<tool_response>\nok\n</tool_response><|im_end|>\n",
        ),
    ],
)
def test_messages_are_read_as_vllm_reads_them(reference: Reference, messages: list[Any], expected: str) -> None:
    assert prompt(reference, {"messages": messages}) == expected + "<|im_start|>assistant\n"


def test_tools_are_dumped_in_the_engines_key_order(reference: Reference) -> None:
    tool = {"x": 1, "function": {"strict": True, "parameters": {"b": 1, "a": 2}, "name": "f", "y": 2}}
    text = prompt(reference, {"messages": [USER], "tools": [tool]})
    dumped = (
        '\n{"type": "function", "function": {"name": "f", "description": null, '
        '"parameters": {"b": 1, "a": 2}, "strict": true}}\n'
    )
    assert dumped in text


def test_thinking_is_switched_by_kwargs_and_by_effort(reference: Reference) -> None:
    off = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    by_kwargs = {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False, "nobody_reads": "this"}}
    assert prompt(reference, by_kwargs).endswith(off)
    assert (prompt(reference, {"messages": [USER], "reasoning_effort": "none"})).endswith(off)
    assert not (prompt(reference, {"messages": [USER], "reasoning_effort": "low"})).endswith(off)


def test_the_reference_process_imports_nothing_of_ours() -> None:
    """Compiled and run on a list of modules: none is TokTier's."""
    code = (
        "import runpy, sys\n"
        f"runpy.run_path({str(PROGRAM)!r}, run_name='checked')\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('toktier', 'proxy')])"
    )
    result = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"
    source = PROGRAM.read_text(encoding="utf-8")
    assert "import toktier" not in source
    assert "from proxy" not in source


@pytest.mark.parametrize("tool", [{"function": {"name": "f", "strict": 2}}, {"function": {}}, {"type": "web"}, 7])
def test_tools_that_the_engine_refuses(reference: Reference, tool: Any) -> None:
    answer = reference.answer({"op": "chat", "body": {"messages": [USER], "tools": [tool]}})
    assert answer["param"] == "tools"


def test_a_check_tells_where_and_what(reference: Reference) -> None:
    body = {"messages": [USER]}
    ids = reference.chat(body)
    assert reference.check(body, ids) == {"tokens": len(ids), "first_difference": None, "same_text": True}
    assert reference.check(body, ids[:-2])["first_difference"] == len(ids) - 2
    assert reference.check(body, [*ids, 1])["first_difference"] == len(ids)
    assert reference.check(body, [0, *ids[1:]]) == {"tokens": len(ids), "first_difference": 0, "same_text": False}
    assert "refused" in reference.answer({"op": "check", "body": {"messages": 5}, "ids": ids})
