"""The given cases of kinds ``text``, ``tokenizer_flag`` and ``render``, through a proxy with the tokenizer or template.

The right IDs are those of `tokenizers` on the same file, of the text that the template makes. Except in J01 that is
what the messages say and nothing else, so that a case's texts meet where the case says.
"""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tokenizers import Tokenizer

from proxy.loading import Loader
from tests.support.cases import Player, plays
from tests.support.fake_upstream import FakeUpstream
from tests.support.proxy import running, settings_for
from tests.support.tokenizer_files import CACHE, bpe, small_spec, write

pytestmark = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")

PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"
LONG = "the cat sat on a mat, and then ran away. " * 200
"""Enough text for chunks that are kept; in what a case gives there is none."""


class Served:
    """A proxy with one tokenizer, and the reference on the same file."""

    def __init__(self, player: Player, tokenizer: Tokenizer) -> None:
        self.player, self.tokenizer = player, tokenizer

    def right(self, text: str, special: bool = False) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=special).ids)

    async def say(self, *texts: str, **more: Any) -> list[int]:
        """A request with a message of each text: the IDs that reached the engine."""
        messages = [{"role": "user", "content": text} for text in texts]
        await self.player.bodies([{"model": "m", "messages": messages, **more}])
        assert self.line["bypass"] is None
        assert self.line["prompt_tokens_equal"]
        return list(self.player.up.chats[-1].json["kv_transfer_params"]["prompt_token_ids"])

    @property
    def line(self) -> dict[str, Any]:
        """The log's last request."""
        return self.player.proxy.log[-1]


@asynccontextmanager
async def served(folder: Path, spec: dict[str, Any], template: str = PLAIN) -> AsyncIterator[Served]:
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
    file = write(folder, spec, tokenizer_config=config) / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))

    def engine(body: Mapping[str, Any]) -> list[int]:
        contents = [message["content"] for message in body["messages"]]
        texts = [c if isinstance(c, str) else "\n".join(part["text"] for part in c) for c in contents]
        return list(tokenizer.encode("".join(texts), add_special_tokens=False).ids)

    async with FakeUpstream(tokenize=engine) as up:
        settings = settings_for(up.url, folder, model={"tokenizer": str(folder)}, server={"cache_dir": CACHE})
        async with running(settings, Loader().load) as proxy, aiohttp.ClientSession() as client:
            yield Served(Player(up, proxy, client), tokenizer)


def spec_of(case: dict[str, Any]) -> dict[str, Any]:
    return small_spec(case["input"]["tokenizer"].removesuffix(".json"))


@plays("T03")
async def test_one_bos_unless_the_engine_adds_another(case: dict[str, Any], tmp_path: Path) -> None:
    source, wants = case["input"], case["expected"]["assert"]
    assert (source["post_processor"], wants.keys()) == ("bos", {"bos_count_when_false", "bos_count_when_true"})
    spec = spec_of(case)
    (bos,) = [token["id"] for token in spec["added_tokens"] if token["content"] == "<|bos|>"]
    put, a, b = (
        {"SpecialToken": {"id": "<|bos|>", "type_id": 0}},
        *({"Sequence": {"id": n, "type_id": 0}} for n in "AB"),
    )
    spec["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [put, a],
        "pair": [put, a, b],
        "special_tokens": {"<|bos|>": {"id": "<|bos|>", "ids": [bos], "tokens": ["<|bos|>"]}},
    }
    async with served(tmp_path / "model", spec) as it:
        for text in source["pieces"]:
            assert (await it.say(text)).count(bos) == wants["bos_count_when_false"], "the default of chat requests"
            for special in source["add_special_tokens"]:
                ids = await it.say(text, add_special_tokens=special)
                assert ids.count(bos) == wants[f"bos_count_when_{str(special).lower()}"]
                assert ids == it.right(text, special)


@plays("T05")
async def test_repair_is_the_full_encode_for_every_pair(case: dict[str, Any], tmp_path: Path) -> None:
    pairs, wants = case["input"]["pairs"], case["expected"]["assert"]
    assert wants.keys() == {"ids_equal_reference", "concat_differs_at_least"}
    assert wants["ids_equal_reference"]
    async with served(tmp_path / "model", spec_of(case)) as it:
        differing = [1 for left, right in pairs if it.right(left) + it.right(right) != it.right(left + right)]
        assert len(differing) >= wants["concat_differs_at_least"]
        for left, right in pairs:
            assert await it.say(left) == it.right(left)
            assert await it.say(left, right) == it.right(left + right)
            assert it.line["path"] == "append"
            assert it.line["full"] in (None, "short_text"), "repaired, or a fallback that is counted"
        for number, (left, right) in enumerate(pairs):
            before = f"{number}. {LONG}"
            assert await it.say(before + left) == it.right(before + left)
            assert await it.say(before + left, right) == it.right(before + left + right)
            assert (it.line["path"], it.line["full"]) == ("append", None)
            assert it.line["scanned_chars"] < it.line["chars"] / 2, "most is kept"


@plays("T09")
async def test_a_flag_of_the_model_counts(case: dict[str, Any], tmp_path: Path) -> None:
    source, wants = case["input"], case["expected"]["assert"]
    assert wants.keys() == {"unknown_field_means", "ids_with_flag", "ids_without_flag"}
    name = source["flag"].removeprefix("model.")
    for flag, count in ((True, wants["ids_with_flag"]), (False, wants["ids_without_flag"])):
        spec = bpe(source["vocab"], source["merges"], **{name: flag})
        async with served(tmp_path / str(flag), spec) as it:
            ids = await it.say(source["text"])
            assert ids == it.right(source["text"])
            assert len(ids) == count


@plays("T09")
@pytest.mark.parametrize("known", [True, False])
async def test_an_unknown_field_means_the_reference(case: dict[str, Any], tmp_path: Path, known: bool) -> None:
    assert case["expected"]["assert"]["unknown_field_means"] == "fallback_to_reference"
    spec = small_spec()
    if not known:
        spec["model"]["skip_merges_of_length"] = 3
    async with served(tmp_path / "model", spec) as it:
        assert await it.say(LONG) == it.right(LONG)
        assert it.line["versions"].keys() == ({"tokenizers", "fastokens"} if known else {"tokenizers"})


@plays("J01")
async def test_json_as_the_reference_writes_it(case: dict[str, Any], tmp_path: Path) -> None:
    source, wants = case["input"], case["expected"]["assert"]
    assert wants.keys() == {"rendered"}
    (name,) = source["context"]
    # The probe's conversations have no such argument.
    template = f"{{% if {name} is defined %}}{source['template']}{{% else %}}{PLAIN}{{% endif %}}"
    async with served(tmp_path / "model", small_spec(), template) as it:
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": source["context"]}
        await it.player.bodies([body])
        ids = it.player.up.chats[-1].json["kv_transfer_params"]["prompt_token_ids"]
        assert ids == it.right(wants["rendered"])
        assert it.tokenizer.decode(ids) == wants["rendered"]
        assert (it.line["bypass"], it.line["chars"]) == (None, len(wants["rendered"]))
