"""Lemma 5: its counter-examples, and random literal sets by brute force on a tokenizer whose IDs are its pieces."""

from __future__ import annotations

import itertools
import random

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers

from tests.support.split_cases import broken_seams, engine_split, split_spec, strings
from tests.support.tokenizers_data import shared_cache
from toktier.certificate.classes import Probe, contains, members
from toktier.certificate.derive import derive
from toktier.certificate.literals import Literal, literal_rule, white_space
from toktier.certificate.normalizer import normalizer_rule
from toktier.certificate.stages import stages
from toktier.certificate.table import Table
from toktier.errors import Refusal

# every character is a piece of its own: without literals every pair is a cut
PATTERN = r"[\p{^L}]|[\p{L}]"


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Probe:
    return Probe(shared_cache(tmp_path_factory))


def table_for(literals: list[Literal], probe: Probe, normalizer: str | None = None) -> tuple[Table, Tokenizer]:
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = engine_split(PATTERN)
    if normalizer:
        tokenizer.normalizer = getattr(normalizers, normalizer)()
    for lit in literals:
        tokenizer.add_tokens(
            [
                AddedToken(
                    lit.content,
                    normalized=lit.normalized,
                    lstrip=lit.lstrip,
                    rstrip=lit.rstrip,
                    single_word=lit.single_word,
                    special=False,
                )
            ]
        )
    rule = normalizer_rule({"type": normalizer} if normalizer else None, probe)
    normalize = tokenizer.normalizer.normalize_str if tokenizer.normalizer else str
    return derive(rule, stages(split_spec(PATTERN), probe), literals, normalize, probe).table, tokenizer


def pieces(tokenizer: Tokenizer, text: str) -> list[tuple[int, str]]:
    encoding = tokenizer.encode(text, add_special_tokens=False)
    return [(i, text[a:b]) for i, (a, b) in zip(encoding.ids, encoding.offsets, strict=True)]


def allows(table: Table, a: str, b: str) -> bool:
    return bool(table.matrix[table.classes[ord(a)], table.classes[ord(b)]])


M = "<m>"


@pytest.mark.parametrize(
    ("literals", "left", "right", "normalizer"),
    [
        ([Literal("ab")], "a", "b", None),
        ([Literal("ab", normalized=True)], "a", "b", None),
        ([Literal("a\u0301b", normalized=True)], "\u00e1", "b", "NFC"),  # its normalised form
        ([Literal(M, rstrip=True)], "<m> ", " x", None),  # neither side touches the literal
        ([Literal(M, rstrip=True)], "<m>", " x", None),
        ([Literal(M, lstrip=True)], "x ", " <m>", None),
        ([Literal(M, lstrip=True)], "x ", "<m>", None),
        ([Literal("ab", single_word=True)], "ab", "x", None),
        ([Literal("ab", single_word=True)], "x", "ab", None),
        ([Literal("<m>\n"), Literal("\n", rstrip=True)], "<m>", "\n", None),
    ],
)
def test_counter_examples(literals: list[Literal], left: str, right: str, normalizer: str | None, probe: Probe) -> None:
    table, _ = table_for(literals, probe, normalizer)
    assert not allows(table, left[-1], right[0])


@pytest.mark.parametrize(
    ("literals", "left", "right"),
    [
        ([Literal("ab")], "a", "b"),
        ([Literal("ab", normalized=True)], "a", "b"),
        ([Literal(M, rstrip=True)], "<m> ", " x"),
        ([Literal(M, lstrip=True)], "x ", " <m>"),
        ([Literal("ab", single_word=True)], "ab", "x"),
    ],
)
def test_the_counter_examples_are_real(literals: list[Literal], left: str, right: str, probe: Probe) -> None:
    _, tokenizer = table_for(literals, probe)
    assert pieces(tokenizer, left + right) != pieces(tokenizer, left) + pieces(tokenizer, right)


def test_worked_example(probe: Probe) -> None:
    """docs/proof.md: <m> strips right, so ("m", ">") and (">", " ") and two spaces are no seams; (" ", "x") is one."""
    table, _ = table_for([Literal(M, rstrip=True)], probe)
    assert not allows(table, "m", ">")
    assert not allows(table, ">", " ")
    assert not allows(table, " ", "\n")
    assert allows(table, " ", "x")
    assert allows(table, "x", " ")
    assert allows(table, ">", "x")


@pytest.mark.parametrize("flag", ["lstrip", "rstrip"])
def test_stripped_white_space_may_be_part_of_a_literal(flag: str, probe: Probe) -> None:
    """ModernBERT: runs of spaces are literals, and one literal strips. Words are cut apart all the same."""
    table, tokenizer = table_for([Literal("  "), Literal(M, **{flag: True})], probe)
    assert allows(table, "x", " ")
    assert allows(table, " ", "x")
    alphabet = ("x", " ", M)
    texts = ["".join(t) for n in range(1, 8) for t in itertools.product(alphabet, repeat=n)]
    pairs = {(a, b) for a in "x <m>" for b in "x <m>" if allows(table, a, b)}
    assert list(broken_seams(pairs, texts, lambda text: [piece for _, piece in pieces(tokenizer, text)])) == []


@pytest.mark.parametrize("seed", range(3))
def test_random_literal_sets(seed: int, probe: Probe) -> None:
    rng = random.Random(f"literals {seed}")
    alphabet = "ab "
    texts = strings(alphabet, 6)
    certified = 0
    for _ in range(12):
        literals = [
            Literal(
                "".join(rng.choice("aab ") for _ in range(rng.choice((1, 2, 2, 3)))),
                normalized=rng.random() < 0.4,
                lstrip=rng.random() < 0.2,
                rstrip=rng.random() < 0.2,
                single_word=rng.random() < 0.15,
            )
            for _ in range(rng.choice((1, 1, 2, 3)))
        ]
        literals = list({lit.content: lit for lit in literals}.values())
        table, tokenizer = table_for(literals, probe)
        pairs = {(a, b) for a in alphabet for b in alphabet if allows(table, a, b)}
        certified += len(pairs)
        broken = list(broken_seams(pairs, texts, lambda text, t=tokenizer: pieces(t, text)))  # type: ignore[misc]
        assert not broken, (literals, broken[:3])
    assert certified > 20


def test_white_space_covers_what_literals_strip(probe: Probe) -> None:
    """Every code point that HF strips beside a literal is white space here."""
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    tokenizer.add_tokens([AddedToken(M, rstrip=True, normalized=False)])
    space = white_space(probe)
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000 and (c < 0x3100 or c % 61 == 0 or c >= 0xFE00)][
        :20000
    ]
    text = "".join(M + chr(c) + "x" for c in points)
    stripped = {text[b - 1] for _, (a, b) in _spans(tokenizer, text) if text[a : a + 3] == M and b > a + 3}
    assert {" ", "\n", "\u3000", "\u2028"} <= stripped
    assert all(contains(space, members(space)))
    assert not [c for c in stripped if not contains(space, [ord(c)])[0]]  # type: ignore[arg-type]


def _spans(tokenizer: Tokenizer, text: str) -> list[tuple[int, tuple[int, int]]]:
    encoding = tokenizer.encode(text, add_special_tokens=False)
    return list(zip(encoding.ids, encoding.offsets, strict=True))


def test_a_literal_of_which_nothing_is_left(probe: Probe) -> None:
    """It is found between any two characters, but not where another literal ends: so its flags act or do not."""
    tokenizer = Tokenizer(models.WordLevel({"?": 0, " ": 1, "m": 2}, unk_token="?"))
    tokenizer.normalizer = normalizers.Replace("a", "")
    tokenizer.add_tokens([AddedToken("a", normalized=True, rstrip=True), AddedToken("m", normalized=True)])
    whole, left, right = (tokenizer.encode(text, add_special_tokens=False).ids for text in ("m b", "m", " b"))
    assert whole != left + right
    with pytest.raises(Refusal, match="of which the normalizer leaves nothing"):
        literal_rule([Literal("a", normalized=True)], lambda _: "")


def test_empty_literals_say_nothing() -> None:
    rule = literal_rule([Literal("", rstrip=True)], lambda t: t)
    assert not rule.strips
    assert not rule.pairs
