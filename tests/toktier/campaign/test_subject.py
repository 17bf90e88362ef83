"""What a campaign is about: texts in which merges cross every seam that some merge crosses."""

from __future__ import annotations

import random

import pytest

from tests.support.campaigns import qwen
from tests.support.models import qwen3
from tests.support.tokenizers_data import each, spec_of
from toktier.campaign.subject import merged_texts, subject_of
from toktier.campaign.texts import Texts


def test_merged_texts_hold_every_pair_of_an_entry() -> None:
    vocabulary = ["a", "b", "ab", "abc", "xbcy", "\u2581a", "\u2581ab", "<unk>"]
    texts = merged_texts(vocabulary)
    assert texts == sorted([" a", "<unk>", "ab", "abc", "xbcy"])
    held = {entry[i : i + 2] for entry in vocabulary for i in range(len(entry) - 1)}
    assert held == {text.replace(" ", "\u2581")[i : i + 2] for text in texts for i in range(len(text) - 1)}


def test_they_are_a_family_where_cuts_come_from_merges() -> None:
    table = qwen().rule.table
    assert "merged" not in subject_of(qwen3(), []).texts.families
    texts = Texts(table, [], [], ["ab", "cd"])
    drawn = texts.families["merged"](random.Random(1))
    assert sorted(drawn.split()) == ["ab", "cd"] or sorted(drawn.strip()) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("name", each(["llama2", "gemma3"]))
def test_real_vocabularies_have_them(name: str) -> None:
    vocabulary = spec_of(name)["model"]["vocab"]
    texts = merged_texts(vocabulary)
    assert 1_000 < len(texts) < len(vocabulary)
