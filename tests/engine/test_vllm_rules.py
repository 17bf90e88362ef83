"""The vLLM profile against vLLM's own code, on thousands of odd requests (`tests/differential/vllm_oracle.py`).

No engine is started: the oracle runs vLLM's validation, normalisation, template and tokenizer in the engine's Python.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from tests.support.odd_requests import body
from tests.support.templates import CHATML, EVERY_KEY, MODELS, config_of
from toktier.errors import Unrenderable
from toktier.profiles.base import ProfileSettings
from toktier.profiles.vllm import VllmProfile
from toktier.template import ChatTemplate
from tools.engine.build import VLLM, build, default_cache, venv_python
from tools.engine.model import make_model
from tools.engine.server import TOKENIZER

WANTED = os.environ.get("TOKTIER_TEST_ENGINE") == "1" or os.environ.get("CI") == "true"
ORACLE = Path(__file__).parents[1] / "differential" / "vllm_oracle.py"
REQUESTS, SEED = int(os.environ.get("TOKTIER_TEST_RULES", "3000")), 20261130

DEVELOPER = EVERY_KEY + "{# 'developer' #}"
DUMP = "{{ messages | tojson }}{{ tools | tojson }}"
SETTINGS: list[tuple[int, dict[str, Any]]] = [
    (3, {}),
    (5, {"chat_template": EVERY_KEY, "content_format": "string"}),
    (5, {"chat_template": EVERY_KEY, "content_format": "openai"}),
    (
        4,
        {
            "chat_template": DEVELOPER,
            "content_format": "openai",
            "exclude_tools": True,
            "default_template_kwargs": {"enable_thinking": False, "foo": "d", "add_generation_prompt": False},
        },
    ),
    (1, {"chat_template": DUMP}),
    (1, {"chat_template": CHATML}),
]


def template_for(settings: dict[str, Any]) -> ChatTemplate:
    own = ChatTemplate.load(({}, json.loads((TOKENIZER / "tokenizer_config.json").read_text(encoding="utf-8"))))
    assert own is not None
    if "chat_template" not in settings:
        return own
    return ChatTemplate({"default": settings["chat_template"]}, special_tokens=own.special_tokens)


@pytest.mark.engine
def test_the_profile_does_what_vllm_does(tmp_path: Path) -> None:
    if not WANTED:
        pytest.skip("needs the engine's Python: make test-engine (or TOKTIER_TEST_ENGINE=1)")
    cache = default_cache()
    build(cache)
    settings = SETTINGS + [(1, {"chat_template": config_of(model)["chat_template"]}) for model in MODELS[1:]]
    rng = random.Random(SEED)
    weights = [weight for weight, _ in settings]
    cases = [{"body": body(rng), "settings": rng.choices(settings, weights)[0][1]} for _ in range(REQUESTS)]
    source, target = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    source.write_text("".join(json.dumps(case) + "\n" for case in cases), encoding="utf-8")
    model = make_model(tmp_path / "model", TOKENIZER)
    subprocess.run([venv_python(cache), ORACLE, model, source, target], check=True, capture_output=True, timeout=540)
    answers = [json.loads(line) for line in target.read_text(encoding="utf-8").splitlines()]
    assert len(answers) == len(cases)

    reference = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    templates = {json.dumps(one): template_for(one) for _, one in settings}
    counts: Counter[str] = Counter()
    for case, answer in zip(cases, answers, strict=True):
        used = case["settings"]
        template = templates[json.dumps(used)]
        flags = ProfileSettings(
            default_template_kwargs=used.get("default_template_kwargs", {}),
            content_format=used.get("content_format", "auto"),
            exclude_tools_when_tool_choice_none=used.get("exclude_tools", False),
            engine_version=VLLM,
        )
        try:
            mine: str | None = template.render(VllmProfile().normalise(json.loads(case["body"]), template, flags))
        except Unrenderable:
            mine = None
        stage = answer.get("stage", "rendered")
        counts[f"{'bypassed' if mine is None else 'sent'}, engine: {stage}"] += 1
        if mine is None:
            continue
        # An error while rendering must be a bypass: with IDs the engine would not render, and answer 200.
        assert stage != "render", (answer, case)
        if stage == "rendered":
            assert mine == answer["text"], case
            if counts["sent, engine: rendered"] % 10 == 0:
                assert reference.encode(mine, add_special_tokens=False).ids == answer["ids"], case
    print(dict(counts))
    assert counts["sent, engine: rendered"] >= REQUESTS * 0.4
    assert counts["bypassed, engine: rendered"] <= REQUESTS * 0.15
