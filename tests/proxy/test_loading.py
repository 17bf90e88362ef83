"""From a model's settings to its tier."""

from __future__ import annotations

import gc
import importlib.util
import re
import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from proxy.config import Model, Server
from proxy.loading import PADDING, Loader, _vocab_size, assemble
from proxy.registry import CannotLoad, Loaded
from tests.conftest import data_path
from tests.support.models import qwen3
from tests.support.rank_data import small_engine, write_ranks
from tests.support.reference import Reference
from tests.support.tokenizer_files import CACHE, small_spec, write
from toktier import parity, tokenizer
from toktier.engines.tiktoken_engine import TiktokenEngine
from toktier.errors import Refusal, Unrenderable
from toktier.parity import Outcome
from toktier.reasons import Bypass, FullEncode
from toktier.reasons import Path as Path_
from toktier.sessions import SessionStore
from toktier.shortcuts import Shortcuts
from toktier.tier import ModelTier

STORE = SessionStore(1 << 20)
needs_transformers = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")

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


@pytest.mark.xdist_group("reference")
def test_embedded_model_is_exact(reference: Reference) -> None:
    loaded = assemble("m", Model(upstream="e", tokenizer="embedded"), qwen3(), SessionStore(1 << 20))
    assert loaded.vocab_size > qwen3().vocab_size
    assert loaded.versions["tokenizers"]
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
        Loader().load("m", model, Server(cache_dir=tmp_path), SessionStore(1 << 20))
    assert (caught.value.reason, caught.value.final) == (reason, final)
    assert caught.value.detail


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the certificate and the window engine, which cost seconds and have no part here."""

    def refuse(*_: Any, **__: Any) -> None:
        raise Refusal("not under test", "here")

    monkeypatch.setattr(tokenizer, "certify", refuse)
    monkeypatch.setattr(tokenizer.fastokens, "usable_version", lambda: False)


def load(model: Model, cache: Path, loader: Loader | None = None) -> tuple[Loaded | CannotLoad, dict[str, Any]]:
    """What loading gave, and the line that it logged about the comparison with transformers."""
    with capture_logs() as lines:
        try:
            got: Loaded | CannotLoad = (loader or Loader()).load("m", model, Server(cache_dir=cache), STORE)
        except CannotLoad as error:
            got = error
    (line,) = (line for line in lines if line["event"] == "tokenizer_parity")
    return got, line


@pytest.mark.usefixtures("bare")
def test_what_is_loaded_is_no_work_for_the_collector(tmp_path: Path) -> None:
    gc.unfreeze()
    try:
        got, _ = load(Model(upstream="e", tokenizer="embedded"), tmp_path)
        assert isinstance(got, Loaded)
        assert isinstance(got.tier, ModelTier)
        spec = got.tier.tokenizer.spec
        assert gc.get_freeze_count() > 1000
        assert not any(one is spec for one in gc.get_objects())
    finally:
        gc.unfreeze()


@needs_transformers
@pytest.mark.usefixtures("bare")
def test_a_tokenizer_that_transformers_reads_otherwise_is_not_served(tmp_path: Path) -> None:
    model = Model(upstream="e", tokenizer=str(data_path("tokenizers", "llama2")))
    for from_cache in (False, True):
        got, line = load(model, tmp_path)
        assert isinstance(got, CannotLoad)
        assert (got.reason, got.final) == (Bypass.TOKENIZER_MISMATCH, True)
        assert re.search(r"transformers \S+ differs on \d+ of \d+ probe texts", got.detail)
        assert (line["log_level"], line["outcome"], line["from_cache"]) == ("error", "different", from_cache)


@needs_transformers
@pytest.mark.usefixtures("bare")
def test_a_tokenizer_that_transformers_reads_alike_is_served(tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages[0].content }}")
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    bos = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "b", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"b": {"id": "b", "ids": [422], "tokens": ["b"]}},
    }
    folder = write(tmp_path / "model", small_spec() | {"post_processor": bos}, tokenizer_config=config)
    model = Model(upstream="e", tokenizer=str(folder), chat_template=template)
    for from_cache in (False, True):
        got, line = load(model, tmp_path / "cache")
        assert isinstance(got, Loaded)
        assert got.parity is not None
        assert got.parity.outcome is Outcome.EQUAL
        plain, special = (got.tier.prepare("t", BODY | {"add_special_tokens": flag}).ids for flag in (False, True))
        assert special.tolist() == [422, *plain]
        assert (line["log_level"], line["outcome"], line["from_cache"]) == ("info", "equal", from_cache)


@pytest.mark.usefixtures("bare")
def test_ways_of_encoding_are_measured_at_each_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity, "transformers_version", lambda: None)
    found = [Shortcuts(100, 5_000, measured=True), Shortcuts(300, 9_000, measured=True)]
    left = iter(found)
    monkeypatch.setattr(tokenizer, "measure", lambda _: next(left))
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages[0].content }}")
    model = Model(upstream="e", tokenizer=str(write(tmp_path / "model", small_spec())), chat_template=template)
    for one in found:
        got, _ = load(model, tmp_path / "cache")
        assert isinstance(got, Loaded)
        assert isinstance(got.tier, ModelTier)
        assert got.tier._encoder.shortcuts is one


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(("outcome", "level"), [("not_installed", "info"), ("failed", "warning")])
def test_what_is_not_known_is_said_and_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: str, level: str
) -> None:
    monkeypatch.setattr(parity, "transformers_version", lambda: None if outcome == "not_installed" else "1")
    monkeypatch.setattr(parity, "WORKER", tmp_path / "absent.py")
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages[0].content }}")
    model = Model(upstream="e", tokenizer=str(write(tmp_path / "model", small_spec())), chat_template=template)
    got, line = load(model, tmp_path / "cache")
    assert isinstance(got, Loaded)
    assert (line["log_level"], line["outcome"], line["from_cache"]) == (level, outcome, False)
    with pytest.raises(Unrenderable) as raised:
        got.tier.prepare("t", BODY | {"add_special_tokens": True})
    assert raised.value.bypass is Bypass.ADD_SPECIAL_TOKENS


def test_a_rank_file_is_served(tmp_path: Path) -> None:
    """From the chat template to IDs, over a session; transformers is not asked, and nothing is claimed of it."""
    folder = write_ranks(tmp_path / "ranks")
    text = "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}<|start|>assistant"
    (folder / "chat_template.jinja").write_text(text)
    server = Server(cache_dir=CACHE)
    model = Model(upstream="e", tokenizer=str(folder))
    loader = Loader()
    with capture_logs() as logs:
        loaded = loader.load("m", model, server, SessionStore(1 << 20))
    loader.close()
    (line,) = [line for line in logs if line["event"] == "tokenizer_parity"]
    assert (line["outcome"], line["log_level"]) == ("not_readable", "info")
    assert loaded.versions == {"tiktoken": TiktokenEngine.version}
    messages = [{"role": "user", "content": "ab abc, 12 \u00e9  <|end|>\n"}]
    for turn in ("and more", "one  \n two", "x" * 3000):
        messages += [{"role": "assistant", "content": turn}, {"role": "user", "content": f"{turn}?"}]
        body = {"model": "m", "messages": messages}
        rendered = "".join(f"<|start|>{m['role']}\n{m['content']}<|end|>\n" for m in messages) + "<|start|>assistant"
        prepared = loaded.tier.prepare("t", body)
        assert prepared.ids.tolist() == small_engine().encode(rendered).tolist()
    with pytest.raises(Unrenderable, match=Bypass.CANNOT_ENCODE.value):  # the proxy then sends the text
        loaded.tier.prepare("t", {"model": "m", "messages": [{"role": "user", "content": " " * 1_100_000 + "x"}]})
    assert loaded.tier.prepare("t", body).ids.tolist() == prepared.ids.tolist()


RANK_TEMPLATE = "{% for m in messages %}<|start|>{{ m.content }}<|end|>{% endfor %}"


def loaded_ranks(folder: Path, template: Path | None = None) -> tuple[Loaded, ModelTier]:
    write_ranks(folder)
    (folder / "chat_template.jinja").write_text(RANK_TEMPLATE)
    model = Model(upstream="e", tokenizer=str(folder), chat_template=template)
    loaded = Loader().load("m", model, Server(cache_dir=CACHE), SessionStore(1 << 20))
    assert isinstance(loaded.tier, ModelTier)
    return loaded, loaded.tier


def again(loaded: Loaded) -> tuple[Loaded | None, str]:
    """What reading again gave, and the outcome that was logged."""
    assert loaded.again is not None
    with capture_logs() as logs:
        new = loaded.again()
    (line,) = [line for line in logs if line["event"] == "tokenizer_read_again"]
    return new, line["outcome"]


def test_files_that_are_the_same_are_checked_on_other_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, _ = loaded_ranks(tmp_path / "ranks")
    seeds: list[str] = []
    check = tokenizer.self_check

    def noted(*args: Any, seed: str, **more: Any) -> int:
        seeds.append(seed)
        return check(*args, seed=seed, **more)

    monkeypatch.setattr(tokenizer, "self_check", noted)
    assert again(loaded) == (None, "unchanged")
    assert loaded.checked is not None
    assert [loaded.checked() for _ in range(2)] == [None] * 2
    assert len(set(seeds)) == 2


@pytest.mark.parametrize("own_template", [False, True])
def test_files_that_changed_are_loaded_anew(tmp_path: Path, own_template: bool) -> None:
    folder, template = tmp_path / "ranks", tmp_path / "t.jinja"
    template.write_text(RANK_TEMPLATE)
    loaded, tier = loaded_ranks(folder, template if own_template else None)
    changed = template if own_template else folder / "chat_template.jinja"
    changed.write_text("{{ messages[0].content }}!")
    new, outcome = again(loaded)
    assert outcome == "changed"
    assert new is not None
    assert new.tier is not tier
    assert new.tier.prepare("t", BODY).ids.tolist() == small_engine().encode("hello \u4f60\u597d!").tolist()
    assert tier.prepare("t", BODY).ids.tolist() == small_engine().encode("<|start|>hello \u4f60\u597d<|end|>").tolist()
    assert again(new) == (None, "unchanged")
    changed.unlink()
    if own_template:
        assert new.again is not None
        with pytest.raises(CannotLoad) as caught:
            new.again()
        assert caught.value.reason is Bypass.TOKENIZER_UNAVAILABLE


def test_a_contradicted_certificate_is_used_no_more(tmp_path: Path) -> None:
    """Ropes that it cut are not taken up either, although files and digests are what they were."""
    _, tier = loaded_ranks(tmp_path / "ranks")
    held = tier.tokenizer.certificate
    assert held is not None
    wrong = replace(held, table=replace(held.table, matrix=np.ones_like(held.table.matrix)))
    loader_model = Model(upstream="e", tokenizer=str(tmp_path / "ranks"))
    faulty = assemble("m", loader_model, replace(tier.tokenizer, certificate=wrong), tier.store)
    body = BODY | {"messages": [{"role": "user", "content": "ab abc " * 2000}]}
    faulty.tier.prepare("t", body)
    loader = Loader()
    broken = loader._with_more("m", loader_model, Server(cache_dir=CACHE), tier.store, faulty)
    assert broken.checked is not None
    with capture_logs() as logs:
        new = broken.checked()
    assert [line["event"] for line in logs] == ["tokenizer.certificate_contradicted"]
    assert new is not None
    prepared = new.tier.prepare("t", body)
    assert (prepared.path, prepared.full) == (Path_.INIT, FullEncode.NO_CERTIFICATE)
    assert prepared.ids.tolist() == tier.prepare("other", body).ids.tolist()
    assert again(new) == (None, "unchanged")
    assert new.checked is not None
    assert new.checked() is None


def test_a_rank_file_without_its_sidecar(tmp_path: Path) -> None:
    folder = write_ranks(tmp_path, sidecar=None)
    with pytest.raises(CannotLoad, match="holds ranks only"):
        Loader().load("m", Model(upstream="e", tokenizer=str(folder)), Server(), STORE)


@pytest.mark.usefixtures("bare")
def test_a_closed_loader_waits_for_no_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr(parity, "transformers_version", lambda: "1")
    monkeypatch.setattr(parity, "WORKER", worker)
    loader = Loader()
    threading.Timer(0.5, loader.close).start()
    model = Model(upstream="e", tokenizer=str(write(tmp_path / "model", small_spec())))
    for _ in range(2):  # closed while it waits, and closed before
        _, line = load(model, tmp_path / "cache", loader)
        assert (line["outcome"], line["detail"]) == ("failed", "it was stopped")


def test_a_template_that_is_not_there(tmp_path: Path) -> None:
    model = Model(upstream="e", tokenizer="embedded", chat_template=tmp_path / "absent.jinja")
    with pytest.raises(CannotLoad) as caught:
        assemble("m", model, qwen3(), SessionStore(1 << 20))
    assert caught.value.reason is Bypass.NO_TEMPLATE


def test_the_window_engine_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def from_files(_read: Any, *, cache_dir: Path, window: bool, **_: Any) -> None:
        asked.append(window)
        raise OSError

    monkeypatch.setattr(tokenizer.FrozenTokenizer, "from_files", from_files)
    monkeypatch.setattr(Loader, "_compared", lambda *_: nullcontext())
    model = Model(upstream="e", tokenizer="embedded")
    off = model.model_copy(update={"window": "off"})
    for one in (model, off):
        with pytest.raises(CannotLoad):
            Loader().load("m", one, Server(cache_dir=CACHE), STORE)
    assert asked == [True, False]
    assert not off.loads_as(model), "a reload loads it anew"
