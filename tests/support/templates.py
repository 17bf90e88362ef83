"""The chat templates of real models, as published in the test data (and Qwen3's, which the product ships), and short
ways to make and render others."""

from __future__ import annotations

import json
from typing import Any

from tests.conftest import data_path
from toktier.template import ChatTemplate, RenderRequest

MODELS = ("qwen3", "llama3_1", "deepseek_v3", "gemma3")

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

EVERY_KEY = (
    "{% for m in messages %}{{ m.role }}|{{ m.content | tojson }}|{% for k in ['tool_calls', 'reasoning', "
    "'reasoning_content', 'name', 'task', 'tool_call_id', 'refusal', 'tools', 'extra'] %}{{ k }}="
    "{{ m[k] | tojson if k in m else '-' }}|{% endfor %}{{ '\\n' }}{% endfor %}{{ tools | tojson }}|"
    "{{ documents | tojson }}|{{ add_generation_prompt }}|{{ bos_token if bos_token is defined else '-' }}|"
    "{{ eos_token if eos_token is defined else '-' }}|{{ foo | tojson if foo is defined else '-' }}|"
    "{{ enable_thinking | tojson if enable_thinking is defined else '-' }}|"
    "{{ reasoning_effort if reasoning_effort is defined else '-' }}|{{ content is defined }}"
)
"""Shows every key that normalisation can leave, one by one, so that it does not count as a dump of whole messages."""


SILENT_ON_TOKENS = {"tokenizer_class": "PreTrainedTokenizerFast"}


def config_of(model: str) -> dict[str, Any]:
    """The model's ``tokenizer_config.json``; skips where the test data is absent."""
    loaded: dict[str, Any] = json.loads(data_path("tokenizers", model, "tokenizer_config.json").read_text("utf-8"))
    return loaded


def template_of(model: str) -> ChatTemplate:
    template = ChatTemplate.load(({}, config_of(model)))
    assert template is not None
    return template


def load(files: dict[str, str], config: dict[str, Any] | None = None, **kwargs: Any) -> ChatTemplate | None:
    """The template of a model with these files and this ``tokenizer_config.json``."""
    encoded = {name: text.encode() for name, text in files.items()}
    return ChatTemplate.load((encoded, {**SILENT_ON_TOKENS, **(config or {})}), **kwargs)


def render(template: ChatTemplate | None, **kwargs: Any) -> str:
    """``messages`` and ``tools`` are taken out of the arguments."""
    assert template is not None
    tools = kwargs.pop("tools", None)
    messages = kwargs.pop("messages", [{"role": "user", "content": "hi"}])
    return template.render(RenderRequest(messages, tools, kwargs))


def one(source: str, **kwargs: Any) -> str:
    """What the template ``source`` gives."""
    return render(ChatTemplate({"default": source}), **kwargs)
