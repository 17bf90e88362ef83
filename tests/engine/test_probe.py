"""The start-up probe against a real engine: passes with the right tokenizer and template, and only then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import data_path
from tests.engine.conftest import config
from tests.support.engine import Engine, Proxy, log_lines, serving
from toktier.tokenizer import embedded

pytestmark = pytest.mark.engine

CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "What is 2 + 2? 答えは？"}],
    "max_tokens": 8,
    "temperature": 0,
    "return_token_ids": True,
}


def test_the_probe_passes(proxy: Proxy):
    ready = proxy.get("/ready")
    assert ready.status == 200
    assert not ready.json()["degraded"]
    states = [line for line in log_lines(proxy.log) if line.get("event") == "model_state"]
    assert [line["state"] for line in states][-1] == "ok"


def wrong(case: str, folder: Path) -> str:
    """Lines of the model's table that do not fit the engine."""
    tokenizer = embedded()
    template = str(tokenizer.config["chat_template"])
    changed = {
        "template": template.replace("<|im_start|>assistant\\n", "<|im_start|>assistant\\n\\n"),
        "tools template": template.replace("You may call one or more functions", "You may call any function"),
    }
    if case == "tokenizer":
        return f'tokenizer = "{data_path("tokenizers", "llama3_1")}"'
    assert changed[case] != template
    file = folder / "wrong.jinja"
    file.write_text(changed[case], encoding="utf-8")
    return f'chat_template = "{file}"'


@pytest.mark.parametrize("case", ["template", "tools template", "tokenizer"])
def test_what_does_not_fit_the_engine_is_served_as_text(engine: Engine, tmp_path: Path, case: str):
    lines = wrong(case, tmp_path)
    text = config(engine, f'state_dir = "{tmp_path}"', lines)
    if case == "tokenizer":
        text = "\n".join(line for line in text.split("\n") if not line.startswith("tokenizer") or line == lines)
    with serving(tmp_path, text) as proxy:
        assert proxy.get("/ready").json()["degraded"]
        reply, record = proxy.ask(CHAT, "degraded")
        assert record["bypass"] == "upstream_parity"
        assert record["tokens"] is None
        expected = engine.post("/v1/chat/completions", CHAT).json()
        assert reply.json()["prompt_token_ids"] == expected["prompt_token_ids"]
        assert reply.json()["choices"][0]["message"] == expected["choices"][0]["message"]
        loud = [
            line for line in log_lines(proxy.log) if line.get("event") == "model_state" and line["level"] == "error"
        ]
        assert loud[0]["reason"] == "upstream_parity"
