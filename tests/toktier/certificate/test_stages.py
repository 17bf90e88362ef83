"""Pre-tokenizer blocks as operations, and refusals by name and place; the operations against the engine."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from tokenizers import Tokenizer, pre_tokenizers

from tests.support.op_cases import broken_seams, certified_pairs, engine_of
from tests.support.regex_oracle import engine_matches
from tests.support.split_cases import pieces_of, split_spec
from tests.support.tokenizers_data import shared_cache
from toktier.certificate import predicates
from toktier.certificate.classes import CODE_POINTS, Probe, all_code_points
from toktier.certificate.images import NO_SEAM
from toktier.certificate.ops import Prefix, Rewrite, Split
from toktier.certificate.stages import BYTE_LEVEL_PATTERN, byte_level_sides, stages
from toktier.errors import Refusal

ALPHABET = "ab1²２ .,'_-é中\u0301\n\u00a0▁Ġ😀"
"""Letters, digits of several kinds, white space, punctuation, a mark, and what rewrites yield."""
BEHAVIOURS = ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous")
CLIP = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
DEEPSEEK_WORDS = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
SMALL_PATTERNS = (r"\d", r"[^a]", r"\s+(?!\S)|\s+", r" ?\p{L}+", r"\p{N}{1,3}", "[0-9][0-9][0-9]", "a|b", r"Ġ?[a-zÃ©]+")


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Probe:
    return Probe(shared_cache(tmp_path_factory))


def byte_level(**flags: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False, **flags}


def metaspace(replacement: str = "▁", **fields: object) -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": replacement, **fields}


def punctuation(behaviour: str = "Isolated") -> dict[str, Any]:
    return {"type": "Punctuation", "behavior": behaviour}


def digits(individual: bool) -> dict[str, Any]:
    return {"type": "Digits", "individual_digits": individual}


def sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(parts)}


def string_split(string: str, behaviour: str = "Isolated", invert: bool = False) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"String": string}, "behavior": behaviour, "invert": invert}


def told(spec: dict[str, Any] | None, probe: Probe) -> list[tuple[object, ...]]:
    """Each operation in a few words."""
    rows: list[tuple[object, ...]] = []
    for op in stages(spec, probe):
        if isinstance(op, Split):
            rows.append((op.place, op.pattern, op.behaviour, op.invert))
        else:
            rows.append((op.place, op.scheme if isinstance(op, Prefix) else op.name))
    return rows


def test_nested_sequences_keep_their_order(probe: Probe) -> None:
    inner = sequence(split_spec("b", "Removed", True), byte_level(use_regex=True))
    assert told(sequence(split_spec("a"), inner), probe) == [
        ("pre_tokenizer[0]", "a", "Isolated", False),
        ("pre_tokenizer[1][0]", "b", "Removed", True),
        ("pre_tokenizer[1][1]", BYTE_LEVEL_PATTERN, "Isolated", False),
        ("pre_tokenizer[1][1]", "bytes"),
    ]


@pytest.mark.parametrize(
    ("spec", "rows"),
    [
        (None, []),
        (sequence(), []),
        ({"type": "WhitespaceSplit"}, [(predicates.WHITE_SPACE, "Removed", False)]),
        ({"type": "Whitespace"}, [(r"\w+|[^\w\s]+", "Removed", True)]),
        (
            {"type": "BertPreTokenizer"},
            [(predicates.BERT_WHITE_SPACE, "Removed", False), (predicates.BERT_PUNCTUATION, "Isolated", False)],
        ),
        (digits(True), [(predicates.NUMERIC, "Isolated", False)]),
        (digits(False), [(predicates.NUMERIC, "Contiguous", False)]),
        ({"type": "Punctuation"}, [(predicates.PUNCTUATION, "Isolated", False)]),
        (punctuation("MergedWithNext"), [(predicates.PUNCTUATION, "MergedWithNext", False)]),
        ({"type": "CharDelimiterSplit", "delimiter": "-"}, [("'-'", "Removed", False)]),
        (string_split("ab", "Contiguous", True), [("'ab'", "Contiguous", True)]),
        (byte_level(add_prefix_space=True), [("always",), ("bytes",)]),
        (metaspace(), [("' ' to '▁'",), ("always",), ("'▁'", "MergedWithNext", False)]),
        (metaspace(prepend_scheme="first", split=False), [("' ' to '▁'",), ("first",)]),
        (metaspace(prepend_scheme="never", split=True), [("' ' to '▁'",), ("'▁'", "MergedWithNext", False)]),
        (metaspace(" "), [("always",), ("' '", "MergedWithNext", False)]),
        # as older files say it; the engine does not look at str_rep
        (metaspace(add_prefix_space=True, str_rep="_", split=False), [("' ' to '▁'",), ("always",)]),
        (metaspace(add_prefix_space=False, prepend_scheme="never", split=False), [("' ' to '▁'",)]),
        (metaspace(add_prefix_space=True, prepend_scheme="never", split=None, str_rep="_")
         , [("' ' to '▁'",), ("'▁'", "MergedWithNext", False)]),
    ],
)  # fmt: skip
def test_operations(spec: dict[str, Any] | None, rows: list[tuple[object, ...]], probe: Probe) -> None:
    assert told(spec, probe) == [("pre_tokenizer", *row) for row in rows]
    if spec is not None:
        engine_of(spec)  # the engine reads the block, too


def test_byte_level_pattern_is_the_engines() -> None:
    text = "I'll say 'twas 12 times,  ok?\n\n It's é中 \t x"
    pieces = pieces_of(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))
    lengths = [len(text[a:b].encode()) for a, b in engine_matches(BYTE_LEVEL_PATTERN, text)]
    assert [len(p) for p in pieces(text)] == lengths


def test_byte_level_sides_are_the_engines() -> None:
    sides = byte_level_sides()
    pieces = pieces_of(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    every = all_code_points()
    for chars in (every[:0x3000], every[0xD000:0x11000], every[0x11000::997]):
        shown, at = "".join(pieces(chars)), 0
        for c in chars:
            end = at + len(c.encode())
            assert (chr(sides.right[ord(c)]), chr(sides.left[ord(c)])) == (shown[at], shown[end - 1])
            at = end
        assert at == len(shown)
    assert sides.left.shape == sides.right.shape == (CODE_POINTS,)
    assert (sides.left[0xD800:0xE000] == NO_SEAM).all()
    assert (sides.right[0xD800:0xE000] == NO_SEAM).all()


@pytest.mark.parametrize(
    ("spec", "construct", "place"),
    [
        ({"type": "UnicodeScripts"}, "pre-tokenizer UnicodeScripts", "pre_tokenizer"),
        (sequence(byte_level(), {"type": "FixedLength"}), "pre-tokenizer FixedLength", "pre_tokenizer[1]"),
        (sequence(sequence({"type": "Later"})), "pre-tokenizer Later", "pre_tokenizer[0][0]"),
        ({}, "pre-tokenizer None", "pre_tokenizer"),
        (split_spec("a", "Sideways"), "split behaviour Sideways", "pre_tokenizer"),
        (punctuation("removed"), "split behaviour removed", "pre_tokenizer"),
        (split_spec("a*"), "pattern that can match the empty string", "pre_tokenizer"),
        (sequence(digits(True), split_spec("a|^b")), "anchor ^", "pre_tokenizer[1], character 2"),
        ({**split_spec("a"), "pattern": "a"}, "split pattern of an unknown form", "pre_tokenizer"),
        (string_split(""), "pattern that can match the empty string", "pre_tokenizer"),
        (metaspace(prepend_scheme="last"), "prepend_scheme last", "pre_tokenizer"),
        (metaspace(add_prefix_space=False), "add_prefix_space that contradicts prepend_scheme", "pre_tokenizer"),
        (split_spec("(?i)ß(?:s|t)+"), "case fold of several characters across a group or a repeat",
         "pre_tokenizer, character 8"),
    ],
)  # fmt: skip
def test_refusals(spec: dict[str, Any], construct: str, place: str, probe: Probe) -> None:
    with pytest.raises(Refusal) as e:
        stages(spec, probe)
    assert (e.value.construct, e.value.place) == (construct, place)


@pytest.mark.parametrize("spec", [metaspace(add_prefix_space=False), metaspace(prepend_scheme="last")])
def test_the_engine_refuses_these_too(spec: dict[str, Any]) -> None:
    with pytest.raises(Exception, match=r"add_prefix_space does not match|unknown variant"):
        engine_of(spec)


BOTH = (False, True)
SINGLE = [
    *(string_split(s, b, i) for s in ("1", "ab", " ") for b in BEHAVIOURS for i in BOTH),
    *(punctuation(b) for b in BEHAVIOURS),
    *({"type": kind} for kind in ("Whitespace", "WhitespaceSplit", "BertPreTokenizer")),
    *({"type": "CharDelimiterSplit", "delimiter": c} for c in " é"),
    *(digits(individual) for individual in BOTH),
    *(byte_level(add_prefix_space=p, use_regex=r) for p in BOTH for r in BOTH),
    *(metaspace(r, prepend_scheme=p, split=s) for r in "▁_ " for p in ("always", "first", "never") for s in BOTH),
]  # fmt: skip


def sides_of(rng: random.Random, count: int, longest: int = 4) -> list[tuple[str, str]]:
    def text() -> str:
        return "".join(rng.choices(ALPHABET, k=rng.randint(0, longest)))

    return [(text(), text()) for _ in range(count)]


@pytest.mark.parametrize("spec", SINGLE, ids=lambda spec: json.dumps(spec, ensure_ascii=False)[9:])
def test_each_against_the_engine(spec: dict[str, Any], probe: Probe) -> None:
    pairs = certified_pairs(stages(spec, probe), ALPHABET)
    assert not broken_seams(engine_of(spec), pairs, sides_of(random.Random(3), 6))


@pytest.mark.parametrize(
    ("spec", "cuts", "others"),
    [
        (digits(True), "a1 11 1a 1² ,1", "ab a, ,a"),
        (digits(False), "a1 1a", "11 ab"),
        (punctuation(), "a, ,a ,,", "a1 11"),
        (punctuation("MergedWithPrevious"), ",a ,,", "a,"),
        (punctuation("MergedWithNext"), "a, ,,", ",a"),
        (punctuation("Contiguous"), "a, ,a", ",,"),
        ({"type": "WhitespaceSplit"}, "a_ _a a\u00a0", "ab"),
        ({"type": "Whitespace"}, "a_ _a a. .a", "ab .,"),
        ({"type": "BertPreTokenizer"}, "a_ _a a. .a ..", "ab a1"),
        ({"type": "CharDelimiterSplit", "delimiter": "-"}, "a- -a --", "ab"),
        (metaspace(), "a_ __ a▁", "_a ▁a ab"),
        (metaspace(split=False), "", "a_ _a"),
        (metaspace("-", prepend_scheme="first"), "a_ a-", "_a a▁"),
        (byte_level(use_regex=True), "a_ a1 1a a. é. 中.", "_a ab é中"),
        (byte_level(use_regex=True, add_prefix_space=True), "a_ a1", "_a"),
        (byte_level(), "", "a_ _a"),
        # DeepSeek V3
        (sequence(split_spec(r"\p{N}{1,3}"), split_spec("[一-龥]+"), split_spec(DEEPSEEK_WORDS), byte_level()),
         "a1 1a 1_ 中a a中", "ab 中中 11"),
        (sequence(split_spec(CLIP, "Removed", True), byte_level(add_prefix_space=True)), "a_ _a a1 11 a.", "ab"),
        (sequence(split_spec(BLOOM), byte_level()), "a. a_ .a", "ab _a"),
        # Falcon: stages that see the characters of bytes
        (sequence(punctuation("Contiguous"), byte_level(use_regex=True), digits(False), split_spec("[0-9][0-9][0-9]")),
         "a_ a. .a a1 1a é1", "ab 11 é中 _a"),
        (sequence(byte_level(), split_spec("Ġ?[a-z]+|[0-9]")), "a_ 11 1a 1é é1", "_a ab éé"),
        (sequence({"type": "WhitespaceSplit"}, metaspace()), "a_ _a", "ab"),
        (sequence(digits(True), metaspace()), "a1 1a", "ab a_"),  # whether a prefix follows is open
        (sequence(digits(True), metaspace(prepend_scheme="first")), "a1 1a a_", "ab _a"),
    ],
)  # fmt: skip
def test_useful_pairs(spec: dict[str, Any], cuts: str, others: str, probe: Probe) -> None:
    """``cuts``, ``others``: pairs, with ``_`` for a space."""
    pairs = certified_pairs(stages(spec, probe), ALPHABET)
    spaced = (
        [tuple(p.replace("_", " ")) for p in cuts.split(" ") if p],
        [tuple(p.replace("_", " ")) for p in others.split()],
    )
    assert [p for p in spaced[0] if p not in pairs] == []
    assert [p for p in spaced[1] if p in pairs] == []
    assert not broken_seams(engine_of(spec), pairs, sides_of(random.Random(4), 4))


def random_part(rng: random.Random) -> dict[str, Any]:
    roll = rng.randrange(10)
    if roll < 3:
        return split_spec(rng.choice(SMALL_PATTERNS), rng.choice(BEHAVIOURS), rng.random() < 0.4)
    if roll == 3:
        return sequence(*(random_part(rng) for _ in range(rng.randint(0, 2))))
    return rng.choice(SINGLE)


@pytest.mark.parametrize("seed", range(6))
def test_random_sequences_against_the_engine(seed: int, probe: Probe) -> None:
    rng = random.Random(seed)
    certified = 0
    for _ in range(15):
        spec = sequence(*(random_part(rng) for _ in range(rng.randint(2, 4))))
        pairs = certified_pairs(stages(spec, probe), ALPHABET)
        certified += len(pairs)
        some = rng.sample(sorted(pairs), min(len(pairs), 60))
        assert not broken_seams(engine_of(spec), some, sides_of(rng, 4)), spec
    assert certified > 500


def test_a_prefix_depends_on_the_piece_and_on_where_it_stands() -> None:
    """What `Prefix` says of the two schemes, on whole texts with a literal inside."""
    vocab = {t: i for i, t in enumerate(("<unk>", "▁a", "▁b", "b", "<m>"))}
    for scheme, second in (("always", "▁b"), ("first", "b")):
        spec = {
            "added_tokens": [{"id": 4, "content": "<m>", "special": True, "normalized": False,
                              "single_word": False, "lstrip": False, "rstrip": False}],
            "pre_tokenizer": metaspace(prepend_scheme=scheme),
            "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"},
        }  # fmt: skip
        assert Tokenizer.from_str(json.dumps(spec)).encode("a<m>b").tokens == ["▁a", "<m>", second]


def test_rewrites_keep_spaces_apart_from_the_rest(probe: Probe) -> None:
    (op,) = (op for op in stages(metaspace(prepend_scheme="never", split=False), probe) if isinstance(op, Rewrite))
    assert op.sides.left[ord(" ")] == op.sides.right[ord(" ")] == op.sides.left[ord("▁")] == ord("▁")
    assert op.sides.left[ord("a")] == ord("a")
