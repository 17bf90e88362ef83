"""Lemma 3: every pair that is told apart keeps the engine's IDs additive; each condition is needed."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.support.tokenizers_data import ids, spec_of
from toktier.certificate import joins as joins_module
from toktier.certificate.images import NO_SEAM, Sides, unchanged
from toktier.certificate.joins import Joins, _Alphabet, unsplit_rule
from toktier.errors import Refusal

BYTES = [f"<0x{k:02X}>" for k in range(256)]
POOL = "abxQZéĀあ"
"""Letters, and characters of two and three bytes, of which some share a byte: é is C3 A9, Ā C4 80, あ E3 81 82."""


def model_of(entries: Sequence[str], merges: Sequence[tuple[str, str]] = (), **flags: Any) -> dict[str, Any]:
    every = dict.fromkeys([*entries, *(left + right for left, right in merges)])
    vocab = {entry: k for k, entry in enumerate(every)}
    return {"type": "BPE", "vocab": vocab, "merges": [list(m) for m in merges], **flags}


def engine_of(model: Mapping[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(json.dumps({"version": "1.0", "model": model}))


def parts(model: Mapping[str, Any], text: str) -> tuple[list[int], list[int]]:
    """The IDs of a text with a seam at ``|``: of the whole, and of its parts in a row."""
    engine = engine_of(model)
    u, v = text.split("|")
    return ids(engine, u + v), ids(engine, u) + ids(engine, v)


def apart(model: Mapping[str, Any], pair: str) -> bool:
    return unsplit_rule(model, unchanged()).apart(ord(pair[0]), ord(pair[1]))


# --- the attack -------------------------------------------------------------------------------------------------


def random_model(rng: random.Random) -> tuple[dict[str, Any], str]:
    """A model, and the alphabet to write texts in."""
    alphabet = "".join(rng.sample(POOL, 4))
    entries = [c for c in POOL if rng.random() < 0.6]
    unknown = rng.choice([None, "<unk>", "<unk>", "<unk>", "a", "<0xC3>"])
    if unknown is not None and rng.random() < 0.95:
        entries.append(unknown)
    if rng.random() < 0.7:
        entries += BYTES if rng.random() < 0.4 else [b for b in BYTES if rng.random() < 0.85]
    near = [e for e in entries if e not in BYTES] + [f"<0x{b:02X}>" for c in alphabet for b in c.encode()]
    near = [e for e in near if e in entries]
    merges: list[tuple[str, str]] = []
    for _ in range(rng.randrange(9) if near else 0):
        left, right = rng.choice(near), rng.choice(near)
        if len(left + right) < 16 and (left, right) not in merges:
            merges.append((left, right))
            near.append(left + right)
    flags: dict[str, Any] = {"fuse_unk": rng.random() < 0.5, "byte_fallback": rng.random() < 0.7}
    if unknown is not None:
        flags["unk_token"] = unknown
    if rng.random() < 0.3:
        flags["ignore_merges"] = True
        entries += ["".join(rng.choices(alphabet, k=rng.randrange(1, 4))) for _ in range(rng.randrange(3))]
    rng.shuffle(merges)
    return model_of(entries, merges, **flags), alphabet


def ids_or_none(engine: Tokenizer, text: str) -> list[int] | None:
    """`None` where the engine raises: an unknown character, and an unknown token that is in no vocabulary."""
    try:
        return ids(engine, text)
    except Exception:
        return None


def violations(model: Mapping[str, Any], rule: Joins, alphabet: str, length: int) -> tuple[list[str], int]:
    """Seams of all texts up to ``length`` that are told apart and are not additive, and how many were told apart."""
    engine = engine_of(model)
    texts = ["".join(letters) for n in range(1, length + 1) for letters in product(alphabet, repeat=n)]
    known = {text: ids_or_none(engine, text) for text in texts}
    free = {(a, b) for a in alphabet for b in alphabet if rule.apart(ord(a), ord(b))}
    found, checked = [], 0
    for text, whole in known.items():
        for i in range(1, len(text)):
            if (text[i - 1], text[i]) in free:
                checked += 1
                left, right = known[text[:i]], known[text[i:]]
                if whole != (None if left is None or right is None else left + right):
                    found.append(f"{text[:i]}|{text[i:]}")
    return found, checked


def attack(seeds: range, length: int) -> Iterator[tuple[int, list[str], int]]:
    for seed in seeds:
        model, alphabet = random_model(random.Random(seed))
        found, checked = violations(model, unsplit_rule(model, unchanged()), alphabet, length)
        yield seed, found, checked


@pytest.mark.slow
def test_every_pair_told_apart_is_additive_on_random_models() -> None:
    checked = 0
    for seed, found, seams in attack(range(100), 4):
        assert not found, (seed, found[:3])
        checked += seams
    assert checked > 40_000


def test_every_pair_told_apart_is_additive_up_to_length_6() -> None:
    for seed, found, _ in attack(range(1000, 1012), 6):
        assert not found, (seed, found[:3])


def without_held_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Alphabet, "with_held_back", lambda self, pairs: pairs)


def without_whole_words(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(joins_module, "_words_of_their_own", lambda model, merges: [])


def without_bytes_at_the_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(joins_module, "_BYTE_LAST", re.compile("(?!)"))


def without_bytes_at_the_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(joins_module, "_BYTE_FIRST", re.compile("(?!)"))


def without_unknown_at_the_edges(patch: pytest.MonkeyPatch) -> None:
    at_edge = _Alphabet._at_edge
    patch.setattr(_Alphabet, "_at_edge", lambda self, character, byte, unknown: at_edge(self, character, byte, False))


def without_dropped(patch: pytest.MonkeyPatch) -> None:
    made = _Alphabet.__init__

    def make(self: _Alphabet, model: Mapping[str, Any]) -> None:
        made(self, model)
        for side in (self.last, self.first):
            side[side == joins_module._NEVER] = joins_module._UNKNOWN

    patch.setattr(_Alphabet, "__init__", make)


def without_merges(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(joins_module, "_of_merges", lambda merges, alphabet: np.empty((0, 2), np.uint32))


GUARDS = [
    without_held_back,
    without_whole_words,
    without_bytes_at_the_end,
    without_bytes_at_the_start,
    without_unknown_at_the_edges,
    without_dropped,
    without_merges,
]


@pytest.mark.parametrize("without", GUARDS)
def test_the_attack_finds_a_guard_that_is_taken_away(
    without: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch)
    assert any(found for _, found, _ in attack(range(150), 3))


# --- why each condition is needed, by the smallest examples ------------------------------------------------------


ALL_BUT_C3 = [b for b in BYTES if b != "<0xC3>"]
UNKNOWN = {"unk_token": "<unk>"}
FALLBACK = {"byte_fallback": True, **UNKNOWN}

COUNTER_EXAMPLES = {
    "a merge over the seam": ("x|y", model_of("xy", [("x", "y")])),
    "a merge of longer tokens": ("ax|yb", model_of("abxy", [("a", "x"), ("y", "b"), ("ax", "yb")])),
    "whole words: the left part is one": ("xy|b", model_of(["x", "y", "b", "xy"], ignore_merges=True)),
    "whole words: the right part is one": ("b|xy", model_of(["x", "y", "b", "xy"], ignore_merges=True)),
    "whole words: the whole is one": ("a|b", model_of(["a", "b", "ab"], ignore_merges=True)),
    "fused unknowns": ("Q|Z", model_of(["x", "<unk>"], fuse_unk=True, **UNKNOWN)),
    "an unknown held back past bytes": ("é|Ā", model_of([*ALL_BUT_C3, "<unk>"], **FALLBACK)),
    "an unknown held back, touching the seam from afar": (
        "éĀ|x",
        model_of([*ALL_BUT_C3, "<unk>", "x"], [("<unk>", "x")], **FALLBACK),
    ),
    "bytes that come before an unknown": (
        "x|éĀ",
        model_of([*ALL_BUT_C3, "<unk>", "x"], [("x", "<0xC4>")], **FALLBACK),
    ),
    "a merge of bytes": ("é|é", model_of(["<0xC3>", "<0xA9>"], [("<0xA9>", "<0xC3>")], byte_fallback=True)),
    "a merge of the unknown token": ("Q|x", model_of(["x", "<unk>"], [("<unk>", "x")], **UNKNOWN)),
    "a merge into the unknown token": ("x|Q", model_of(["x", "<unk>"], [("x", "<unk>")], **UNKNOWN)),
    "a character without a symbol on the left": ("aQ|b", model_of("ab", [("a", "b")])),
    "a character without a symbol on the right": ("a|Qb", model_of("ab", [("a", "b")])),
}


@pytest.mark.parametrize(("text", "model"), COUNTER_EXAMPLES.values(), ids=COUNTER_EXAMPLES)
def test_a_pair_that_is_not_additive_is_not_told_apart(text: str, model: dict[str, Any]) -> None:
    whole, halves = parts(model, text)
    assert whole != halves
    i = text.index("|")
    assert not apart(model, text[i - 1] + text[i + 1])


REFUSED = {
    "continuing_subword_prefix": ("a|b", model_of(["a", "b", "##b"], continuing_subword_prefix="##")),
    "end_of_word_suffix": ("a|b", model_of(["a", "b", "a</w>", "b</w>"], end_of_word_suffix="</w>")),
    "two vocabulary entries of one ID": (
        "b|c",
        {"type": "BPE", "vocab": {"a": 0, "b": 0, "c": 1, "ac": 2}, "merges": [["a", "c"]]},
    ),
    "an empty unknown token": ("aQ|b", model_of(["a", "b", "", "ab"], [("a", ""), ("a", "b")], unk_token="")),
}


@pytest.mark.parametrize(("construct", "text", "model"), [(k, *v) for k, v in REFUSED.items()], ids=REFUSED)
def test_a_flag_that_breaks_the_proof_is_refused_by_name(construct: str, text: str, model: dict[str, Any]) -> None:
    whole, halves = parts(model, text)
    assert whole != halves
    with pytest.raises(Refusal, match=construct):
        unsplit_rule(model, unchanged())


def test_dropout_and_models_without_merges_are_refused() -> None:
    with pytest.raises(Refusal, match="BPE dropout"):
        unsplit_rule(model_of("ab", dropout=0.1), unchanged())
    with pytest.raises(Refusal, match="a model without merges"):
        unsplit_rule({"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}, unchanged())


HARMLESS = {
    "no merge of these": ("y|x", model_of("xy", [("x", "y")])),
    "no whole words": ("xy|b", model_of(["x", "y", "b", "xy"])),
    "whole words that merges make": ("xy|b", model_of("xyb", [("x", "y")], ignore_merges=True)),
    "unknowns that are not fused": ("Q|Z", model_of(["x", "<unk>"], **UNKNOWN)),
    "a known character flushes": ("éĀ|x", model_of([*ALL_BUT_C3, "<unk>", "x"], **FALLBACK)),
    "all bytes are there": ("é|Ā", model_of([*BYTES, "<unk>"], fuse_unk=True, **FALLBACK)),
    "bytes that UTF-8 has not": ("é|Ā", model_of([*BYTES[:0xC0], *BYTES[0xC2:0xF5], "<unk>"], **FALLBACK)),
    "a byte that is missing, of a known character": (
        "é|Ā",
        model_of([*BYTES[:9], *BYTES[10:], "\t", "<unk>"], fuse_unk=True, **FALLBACK),
    ),
    "empty affixes": ("a|b", model_of("ab", continuing_subword_prefix="", end_of_word_suffix="")),
    "a merge of an empty token": ("a|b", model_of(["a", "b", ""], [("a", "")])),
}


@pytest.mark.parametrize(("text", "model"), HARMLESS.values(), ids=HARMLESS)
def test_a_pair_that_nothing_joins_is_told_apart(text: str, model: dict[str, Any]) -> None:
    whole, halves = parts(model, text)
    assert whole == halves
    i = text.index("|")
    assert apart(model, text[i - 1] + text[i + 1])


def test_an_unknown_token_that_no_vocabulary_has_leaves_its_characters_at_no_seam() -> None:
    model = model_of("ab", [("a", "b")], **UNKNOWN)
    assert ids_or_none(engine_of(model), "aQb") is None
    assert apart(model, "ba")
    assert not apart(model, "aQ")
    assert not apart(model, "Qb")


def test_both_spellings_of_merges_are_read_and_others_refused() -> None:
    model = model_of("xy", [("x", "y")])
    assert not apart({**model, "merges": ["#version: 0.2", "x y"]}, "xy")
    assert apart({**model, "merges": ["#version: 0.2", "x y"]}, "yx")
    with pytest.raises(Refusal, match="a merge that is not of two tokens"):
        unsplit_rule({**model, "merges": ["x y z"]}, unchanged())


def test_the_images_are_judged_and_what_has_none_is_at_no_seam() -> None:
    sides = unchanged()
    sides.left[ord("A")] = ord("x")
    sides.right[ord("B")] = ord("y")
    sides.left[ord("C")] = sides.right[ord("C")] = NO_SEAM
    rule = unsplit_rule(model_of("xyABC", [("x", "y")]), sides)
    told = {a + b for a in "xABC" for b in "yABC" if rule.apart(ord(a), ord(b))}
    assert told == {"xA", "AA", "BA", "By", "BB"}
    assert not rule.apart(ord("C"), ord("C"))
    assert not rule.apart(0xD800, ord("y"))


# --- real tokenizers ---------------------------------------------------------------------------------------------


def with_marked_spaces() -> Sides:
    sides = unchanged()
    sides.left[ord(" ")] = sides.right[ord(" ")] = ord("▁")
    return sides


@pytest.fixture(scope="module")
def llama2() -> Joins:
    return unsplit_rule(spec_of("llama2")["model"], with_marked_spaces())


@pytest.mark.xdist_group("llama2")
def test_a_real_model_is_packed_exactly(llama2: Joins) -> None:
    """Against the plain set over all pairs of characters of its vocabulary."""
    model = spec_of("llama2")["model"]
    joined = {(left[-1], right[0]) for left, right in (m.split(" ") for m in model["merges"])}
    letters = sorted(c for c in model["vocab"] if len(c) == 1)
    a, b = (np.array(x).reshape(-1) for x in np.meshgrid(*[[ord(c) for c in letters]] * 2, indexing="ij"))
    told = llama2.apart_many(a, b)
    assert {(chr(x), chr(y)) for x, y in zip(a[~told], b[~told], strict=True)} == joined
    assert [llama2.apart(int(x), int(y)) for x, y in zip(a[:5000], b[:5000], strict=True)] == told[:5000].tolist()


@pytest.mark.xdist_group("llama2")
def test_word_starts_are_apart_in_a_real_model(llama2: Joins) -> None:
    for letter in "azAZ09.,;)]}éя中":
        assert llama2.apart(ord(letter), ord(" ")), letter
    assert not llama2.apart(ord(" "), ord("t"))
    assert not llama2.apart(ord(" "), ord(" "))
    assert not llama2.apart(ord("t"), ord("h"))


@pytest.mark.xdist_group("llama2")
def test_a_real_model_is_additive_at_all_pairs_told_apart(llama2: Joins) -> None:
    """Random texts of everyday and rare characters; the prefix that the file puts before each text is taken away."""
    spec = {**spec_of("llama2"), "added_tokens": [], "post_processor": None}
    spec["normalizer"] = spec["normalizer"]["normalizers"][1]
    engine = Tokenizer.from_str(json.dumps(spec))
    rng = random.Random(3)
    checked = 0
    for _ in range(300):
        text = "".join(rng.choices("eat ing.  \n(<0xA>)é中あ\U0001f600\u0301ſ", k=20))
        whole = ids(engine, text)
        for i in range(1, len(text)):
            if llama2.apart(ord(text[i - 1]), ord(text[i])):
                checked += 1
                assert whole == ids(engine, text[:i]) + ids(engine, text[i:]), (text[:i], text[i:])
    assert checked > 1500


@pytest.mark.xdist_group("llama2")
def test_a_long_text_is_handled_as_a_short_one(llama2: Joins) -> None:
    """No length at which the engine merges otherwise: 200,000 characters against the parts between all its seams."""
    spec = {**spec_of("llama2"), "added_tokens": [], "post_processor": None, "normalizer": None}
    engine = Tokenizer.from_str(json.dumps(spec))
    words = ["the", "▁quick", "▁brown", "\n", "((x", "▁中文", "aaaa", "▁▁▁", "é"]
    text = "".join(random.Random(5).choices(words, k=50_000))
    points = np.frombuffer(text.encode("utf-32-le"), "<u4")
    seams = [0, *(np.flatnonzero(llama2.apart_many(points[:-1], points[1:])) + 1).tolist(), len(text)]
    memory = {part: ids(engine, part) for part in {text[i:j] for i, j in pairwise(seams)}}
    assert ids(engine, text) == [k for i, j in pairwise(seams) for k in memory[text[i:j]]]
