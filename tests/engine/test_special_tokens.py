"""``add_special_tokens: true`` against an engine whose tokenizer puts tokens around a text.

The engine of the other tests has a tokenizer that adds none, so this one is started for this module alone.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import config
from tests.support.engine import Engine, Proxy, serving
from tools.engine.build import default_cache
from tools.engine.model import make_model
from tools.engine.server import TOKENIZER, start, stop

pytestmark = pytest.mark.engine

BEGIN, END = 151643, 151644
"""<|endoftext|> and <|im_start|>: any special token will do."""


def around(begin: str, end: str) -> dict[str, Any]:
    """A post-processor that puts one token before and one behind."""
    sides = [{"SpecialToken": {"id": begin, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    tokens = {name: {"id": name, "ids": [number], "tokens": [name]} for name, number in ((begin, BEGIN), (end, END))}
    return {
        "type": "TemplateProcessing",
        "single": [*sides, {"SpecialToken": {"id": end, "type_id": 0}}],
        "pair": [*sides, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": tokens,
    }


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    spec = json.loads(lzma.decompress((TOKENIZER / "tokenizer.json.xz").read_bytes()))
    spec["post_processor"] = around("<|endoftext|>", "<|im_start|>")
    (folder / "tokenizer.json").write_text(json.dumps(spec), "utf-8")
    settings = json.loads((TOKENIZER / "tokenizer_config.json").read_bytes())
    # Qwen2Tokenizer would make a post-processor of its own.
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    return folder


@pytest.fixture(scope="module")
def around_engine(engine: Engine, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    assert engine  # it has built the environment
    cache = tmp_path_factory.mktemp("engine")
    (cache / "venv").symlink_to(default_cache() / "venv")
    try:
        yield Engine(start(cache, make_model(cache / "model", tokenizer), timeout_s=600, say=print).url)
    finally:
        stop(cache)


@pytest.fixture(scope="module")
def around_proxy(around_engine: Engine, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    folder = tmp_path_factory.mktemp("proxy")
    text = config(around_engine, f'salt = "off"\nstate_dir = "{folder}"').replace(str(TOKENIZER), str(tokenizer))
    with serving(folder, text) as running:
        yield running


def bodies(special: bool) -> Iterator[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "First question, 12345"}]
    for number in range(3):
        yield {
            "model": "tiny",
            "messages": list(messages),
            "add_special_tokens": special,
            "max_tokens": 4,
            "temperature": 0,
            "return_token_ids": True,
        }
        messages += [{"role": "assistant", "content": f"Answer {number}"}, {"role": "user", "content": "And then?"}]


@pytest.mark.parametrize("special", [True, False])
def test_a_growing_conversation_has_the_engines_own_ids(around_engine: Engine, around_proxy: Proxy, special: bool):
    for number, body in enumerate(bodies(special)):
        direct = around_engine.post("/v1/chat/completions", body).json()
        through, record = around_proxy.ask(body, f"special-{special}-{number}")
        assert record["bypass"] is None
        assert record["path"] == ("append" if number else "init")
        assert record["prompt_tokens_equal"] is True
        ids = direct["prompt_token_ids"]
        assert (ids[0] == BEGIN and ids[-1] == END) == special
        assert through.json()["prompt_token_ids"] == ids
        assert record["tokens"] == len(ids)
        assert through.json()["choices"][0]["message"] == direct["choices"][0]["message"]
