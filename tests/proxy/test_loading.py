"""From a model's settings to its tier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proxy.config import Model, Server
from proxy.loading import PADDING, _vocab_size, assemble, load_tier
from proxy.registry import CannotLoad
from tests.support.models import qwen3
from tests.support.reference import Reference
from toktier.reasons import Bypass
from toktier.sessions import SessionStore

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello 你好"}]}


@pytest.mark.parametrize(
    ("files", "size"),
    [
        ({}, PADDING),
        ({"config.json": b'{"vocab_size":151936}'}, 151_936),
        ({"config.json": b'{"text_config":{"vocab_size":5000}}'}, 5000),
        ({"config.json": b'{"vocab_size":12}'}, PADDING),
        ({"config.json": b'{"vocab_size":"x"}'}, PADDING),
        ({"config.json": b"[1]"}, PADDING),
        ({"config.json": b"{bad"}, PADDING),
    ],
)
def test_vocab_size(files: dict[str, bytes], size: int) -> None:
    assert _vocab_size(files, 4000) == size


def test_embedded_model_is_exact() -> None:
    loaded = assemble("m", Model(upstream="e", tokenizer="embedded"), qwen3(), SessionStore(1 << 20))
    assert loaded.vocab_size > qwen3().vocab_size
    assert loaded.versions["tokenizers"]
    with Reference() as reference:
        assert loaded.tier.prepare("t", BODY).ids.tolist() == reference.ids(BODY)


def test_a_template_of_the_operators(tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    model = Model(upstream="e", tokenizer="embedded", chat_template=template)
    ids = assemble("m", model, qwen3(), SessionStore(1 << 20)).tier.prepare("t", BODY).ids
    assert qwen3().decode(ids) == "[hello 你好]"


@pytest.mark.parametrize(
    ("changes", "reason", "final"),
    [
        ({"tokenizer": "absent-folder/x/y"}, Bypass.TOKENIZER_UNAVAILABLE, False),
    ],
)
def test_what_cannot_be_loaded_says_why(tmp_path: Path, changes: dict[str, Any], reason: Bypass, final: bool) -> None:
    model = Model(upstream="e", **changes)
    with pytest.raises(CannotLoad) as caught:
        load_tier("m", model, Server(cache_dir=tmp_path), SessionStore(1 << 20))
    assert (caught.value.reason, caught.value.final) == (reason, final)
    assert caught.value.detail


def test_a_template_that_is_not_there(tmp_path: Path) -> None:
    model = Model(upstream="e", tokenizer="embedded", chat_template=tmp_path / "absent.jinja")
    with pytest.raises(CannotLoad) as caught:
        assemble("m", model, qwen3(), SessionStore(1 << 20))
    assert caught.value.reason is Bypass.NO_TEMPLATE
