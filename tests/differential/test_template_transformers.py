"""`ChatTemplate` against transformers' own ``apply_chat_template``: the same text, or both raise."""

from __future__ import annotations

import json
import lzma
import random
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from tests.conftest import data_path
from tests.support.odd_requests import conversation, tool
from tests.support.templates import CHATML, MODELS, config_of, template_of
from toktier.errors import TemplateFailure, Unrenderable
from toktier.profiles.base import ProfileSettings
from toktier.profiles.vllm import VllmProfile
from toktier.template import ChatTemplate, RenderRequest

transformers = pytest.importorskip("transformers")

CONVERSATIONS = 250

MADE = {
    "chatml": CHATML,
    "everything": (
        "{%- set ns = namespace(n=0, last=none) -%}\n{%- macro show(x, tag='p') -%}<{{ tag }}>{{ x }}</{{ tag }}>"
        "{%- endmacro -%}\n{% for m in messages %}\n"
        "  {%- if loop.index0 == 0 and m.role == 'system' %}{% continue %}{% endif %}\n"
        "  {% set ns.n = ns.n + 1 %}\n  {%- generation -%}{{ show(m.content | trim) }}{%- endgeneration -%}\n"
        "  {% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function | tojson(indent=2) }}"
        "{{ c.function.arguments | dictsort | tojson(separators=(',', ':')) }}{% endfor %}{% endif %}\n"
        "  {% if ns.n > 20 %}{% break %}{% endif %}\n{% endfor %}\n"
        "{{- (tools or []) | map(attribute='function.name') | join(', ') | upper }}{{ messages | length }}"
        "{{ messages[-1].role[::-1] }}{{ documents is none }}{{ foo | default('unset') }}{{ '%05.2f' % 3.14159 }}\n"
    ),
    "refuses": (
        "{% for m in messages %}{% if m.role == 'tool' and not tools %}{{ raise_exception('no tools') }}{% endif %}"
        "{{ m.content | string | length }}{{ m['content'][:3] }}{% endfor %}"
    ),
}


def tokenizer_of(config: dict[str, Any]) -> Any:
    """transformers' generic fast tokenizer with the model's configuration; the vocabulary does not matter here."""
    plain = {key: value for key, value in config.items() if key.endswith("_token") or key == "chat_template"}
    plain = {key: value["content"] if isinstance(value, dict) else value for key, value in plain.items()}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **plain)


def requests(template: ChatTemplate, seed: int) -> list[RenderRequest]:
    rng = random.Random(seed)
    made = []
    while len(made) < CONVERSATIONS:
        body: dict[str, Any] = {"messages": conversation(rng)}
        if rng.random() < 0.5:
            body["tools"] = [tool(rng) for _ in range(rng.choice([1, 2]))]
        if rng.random() < 0.5:
            body["chat_template_kwargs"] = {"enable_thinking": rng.random() < 0.5, "foo": rng.choice(["x", 1, None])}
        try:
            made.append(VllmProfile().normalise(body, template, ProfileSettings()))
        except Unrenderable:
            continue
    return made


def outcome(render: Any) -> str | None:
    try:
        return str(render())
    except Exception:
        return None


@pytest.mark.parametrize("model", [*MODELS, *MADE])
def test_the_same_text_or_both_raise(model: str) -> None:
    config = {"chat_template": MADE[model], "eos_token": "</s>"} if model in MADE else config_of(model)
    template = (
        template_of(model)
        if model in MODELS
        else ChatTemplate({"default": MADE[model]}, special_tokens={"eos_token": "</s>"})
    )
    theirs = tokenizer_of(config)
    rendered = 0
    for request in requests(template, seed=len(model)):

        def reference(request: RenderRequest = request) -> str:
            text: str = theirs.apply_chat_template(
                request.messages, tools=request.tools, tokenize=False, **request.kwargs
            )
            return text

        expected = outcome(reference)
        try:
            mine: str | None = template.render(request)
        except TemplateFailure:
            mine = None
        assert mine == expected, json.dumps(request.messages)
        rendered += mine is not None
    assert rendered >= CONVERSATIONS // 10


@pytest.mark.parametrize("legacy", [False, True])
def test_the_tokenizer_folder_as_transformers_loads_it(tmp_path: Path, legacy: bool) -> None:
    """Template, special tokens and precedence of a real folder, through ``AutoTokenizer``."""
    source = data_path("tokenizers", "qwen3")
    with lzma.open(source / "tokenizer.json.xz") as packed:
        (tmp_path / "tokenizer.json").write_bytes(packed.read())
    config = {
        **config_of("qwen3"),
        "chat_template": "never {{ eos_token }}",
        "image_token": "<|image_pad|>",
        "extra_special_tokens": {"vision": "<|vision_start|>"},
    }
    if legacy:
        del config["added_tokens_decoder"]
    files = {
        "chat_template.jinja": b"default {{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ unk_token }}|"
        b"{{ image_token }}|{{ vision }}\n",
        "special_tokens_map.json": b'{"eos_token": "<|endoftext|>", "unk_token": {"content": "<|im_end|>"}}',
        "additional_chat_templates/tool_use.jinja": b"tools {{ tools | length }}\r\n\r\n",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "additional_chat_templates").mkdir()
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    mine = ChatTemplate.load((files, config))
    assert mine is not None
    messages = [{"role": "user", "content": "q"}]
    for tools in (None, [{"type": "function", "function": {"name": "f"}}]):
        expected = theirs.apply_chat_template(messages, tools=tools, tokenize=False)
        assert mine.render(RenderRequest(messages, tools)) == expected
