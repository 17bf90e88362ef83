"""Brute force on the lemmas: small random patterns and literal sets, every text up to six characters over three.

An attack takes what the product certifies and looks at every seam of every text on the engine. IDs show pieces: each
piece that can occur is a token of its own, and no literal shares its ID with one.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import tiktoken
from tokenizers import Tokenizer, pre_tokenizers

from tests.support.regex_oracle import random_pattern
from tests.support.split_cases import (
    ALL_SPLITS,
    certified_pairs,
    engine_split,
    pieces_of,
    split_spec,
    strings,
)
from tests.support.tokenizer_files import CACHE
from toktier.certificate.classes import FANCY, ONIGURUMA, Flips, Probe, flips_of
from toktier.certificate.derive import derive
from toktier.certificate.follow import positions
from toktier.certificate.literals import Literal
from toktier.certificate.normalizer import NO_NORMALIZER, normalizer_rule
from toktier.certificate.ops import Split
from toktier.certificate.regex import Atom, Dialect, parse
from toktier.certificate.stages import stages
from toktier.certificate.table import TableCuts
from toktier.errors import Refusal
from toktier.rank_files import BYTE_RANKS

LONGEST = 6
TIMES = 1
"""How many times as many cases as `make test` needs; raised by hand for a longer run."""
LETTERS = "abC"
TEXTS = strings(LETTERS, LONGEST)

# --- patterns ---------------------------------------------------------------------------------------------------------

_ATOMS = ("a", "b", "C", "c", "a", "b", "C", "[ab]", "[^a]", "[a-c]", "[a[bC]]", "[^a[b]]", "[a-c&&[^b]]", "[abC&&bC]",
          ".", r"\x{61}", r"\p{Lu}", r"\P{Lu}", r"\w", "[[^b]]")  # fmt: skip
_QUANTIFIERS = ("",) * 9 + ("*", "+", "?", "*?", "+?", "??", "*+", "++", "?+", "{2}", "{1,2}", "{2,}", "{,2}", "{1,2}?",
                            "{2}?", "{1}+", "{2,3}+", "{0,1}", "{3}")  # fmt: skip
_GROUPS = ("({})", "(?:{})", "(?:{})", "(?>{})", "(?>{})", "(?-i:{})", "(?<n>{})", "(?:{})")
_FOLDED = ("(?i:{})", "(?:(?i){})", "(?:(?i){}(?-i)b)")
"""Asked for rarely: what a fold of several characters may do costs the product many questions."""


def wild_pattern(rng: random.Random, depth: int) -> str:
    """A pattern with any construct; the parser or the engine may refuse it."""
    return "|".join(
        "".join(_item(rng, depth) for _ in range(rng.choice((1, 1, 2, 2, 3)))) for _ in range(rng.choice((1, 1, 2, 3)))
    )


def _item(rng: random.Random, depth: int) -> str:
    roll = rng.random()
    if roll < 0.12:
        body = rng.choice(_ATOMS) if rng.random() < 0.7 else f"{rng.choice(_ATOMS)}|{rng.choice(_ATOMS)}"
        return rng.choice(("(?!{})", "(?={})")).format(body)
    if roll < 0.13:
        return "(?i)" if rng.random() < 0.3 else rng.choice(_FOLDED).format(rng.choice(_ATOMS[:7]))
    if roll < 0.14:
        return rng.choice(("$", r"\z"))
    grouped = depth and roll < 0.4
    body = rng.choice(_GROUPS).format(wild_pattern(rng, depth - 1)) if grouped else rng.choice(_ATOMS)
    return body + rng.choice(_QUANTIFIERS) + (rng.choice(_QUANTIFIERS) if rng.random() < 0.04 else "")


def wild_stage(rng: random.Random, depth: int, dialect: Dialect = Dialect.ONIGURUMA) -> str:
    """A `wild_pattern` that the parser and the engine take and that cannot match the empty string."""
    engine = FANCY if dialect is Dialect.FANCY else ONIGURUMA
    while True:
        pattern = rng.choice((wild_pattern, random_pattern))(rng, depth)
        try:
            positions(parse(pattern, "pattern", dialect), "pattern")
            if not engine.accepts(pattern):
                continue
            if dialect is Dialect.ONIGURUMA:
                _split(pattern)
        except Refusal:
            continue
        return pattern


class LettersProbe(Probe):
    """Asks for what atoms hold of `LETTERS` only."""

    def atoms(self, atoms: Sequence[Atom]) -> list[Flips]:
        return [flips_of(self.engine.matched(a.text, LETTERS)) for a in atoms]


PROBE = Probe(CACHE)
"""Shared: sets are asked for once."""


@cache
def _split(pattern: str) -> Split:
    [op] = stages(split_spec(pattern), PROBE)
    assert isinstance(op, Split)
    return op


# --- lemmas 1 and 2 ---------------------------------------------------------------------------------------------------

Stage = tuple[str, str, bool]
"""Pattern, behaviour, invert."""


def random_stages(rng: random.Random, count: int, depths: Sequence[int]) -> list[Stage]:
    return [(wild_stage(rng, rng.choice(depths)), *rng.choice(ALL_SPLITS)) for _ in range(count)]


def attack_stages(chosen: Sequence[Stage]) -> tuple[int, list[str]]:
    """(certified pairs, seams at which the pieces of the whole are not those of the sides) of a row of stages."""
    ops = [replace(_split(pattern), behaviour=behaviour, invert=invert) for pattern, behaviour, invert in chosen]
    pairs = certified_pairs(ops, LETTERS)
    if not pairs:
        return 0, []
    pieces = pieces_of(pre_tokenizers.Sequence([engine_split(*c) for c in chosen]))
    known = {text: pieces(text) for text in TEXTS}
    return len(pairs), [
        f"{text[:i]}|{text[i:]}"
        for text, whole in known.items()
        for i in range(1, len(text))
        if (text[i - 1], text[i]) in pairs and whole != known[text[:i]] + known[text[i:]]
    ]


# --- the tiktoken dialect ---------------------------------------------------------------------------------------------

_RANKS = BYTE_RANKS | {text.encode(): 256 + k for k, text in enumerate(t for t in TEXTS if len(t) > 1)}


def random_ranks(rng: random.Random) -> tuple[str, list[str]]:
    """A pattern in tiktoken's dialect, and special tokens."""
    special = {
        "".join(rng.choice(LETTERS) for _ in range(rng.choice((1, 2, 3)))) for _ in range(rng.choice((0, 0, 1, 2)))
    }
    return wild_stage(rng, rng.choice((0, 1, 2, 3)), Dialect.FANCY), sorted(special)


def attack_ranks(pattern: str, special: Iterable[str] = ()) -> tuple[int, list[str]]:
    """(cuts asked, seams at which the IDs of the whole are not those of the sides) of a rank file."""
    node = parse(pattern, "pattern", Dialect.FANCY)
    ops = [Split("pattern", pattern, node, positions(node, "pattern"), "Removed", invert=True)]
    literals = [Literal(text) for text in special]
    rule = TableCuts(derive(NO_NORMALIZER, ops, literals, str, LettersProbe(engine=FANCY)).table)
    pairs = {(a, b) for a in LETTERS for b in LETTERS if rule.is_cut(a + b, 1)}
    if not pairs:
        return 0, []
    tokens = {lit.content: 5000 + k for k, lit in enumerate(literals)}
    engine = tiktoken.Encoding("attack", pat_str=pattern, mergeable_ranks=_RANKS, special_tokens=tokens)
    known = dict(zip(TEXTS, engine.encode_batch(TEXTS, num_threads=1, allowed_special="all"), strict=True))
    return _additive(known, lambda text, i: (text[i - 1], text[i]) in pairs, interior=False)


def _additive(
    known: Mapping[str, Sequence[Any]], is_cut: Callable[[str, int], bool], *, interior: bool
) -> tuple[int, list[str]]:
    cuts, broken = 0, []
    for text, whole in known.items():
        for i in range(1, len(text)):
            if is_cut(text, i):
                cuts += 1
                right = known[text[i - 1 :]][len(known[text[i - 1]]) :] if interior else known[text[i:]]
                if whole != [*known[text[:i]], *right]:
                    broken.append(f"{text[:i]}|{text[i:]}")
    return cuts, broken


# --- lemma 5 ----------------------------------------------------------------------------------------------------------

EVERY_CHARACTER = split_spec(r"[\p{^L}]|[\p{L}]")
"""Without literals every pair is a cut."""
_WORDS = split_spec(r" ?[^ ]+|\s")
_PRE_TOKENIZERS = (
    *(EVERY_CHARACTER,) * 5,
    _WORDS,
    *({"type": "Sequence", "pretokenizers": [
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}, EVERY_CHARACTER,
    ]} for scheme in ("always", "first")),
)  # fmt: skip


def _replace(old: str, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


_NORMALIZERS: tuple[tuple[dict[str, Any] | None, str], ...] = (
    *((None, "ab "),) * 4,
    ({"type": "NFC"}, "e\u0301 "),
    ({"type": "NFD"}, "eé "),
    ({"type": "Lowercase"}, "aA "),
    (_replace(" ", "▁"), "a▁ "),
    (_replace("a", ""), "ab "),
    (_replace("ab", "b"), "ab "),
    (_replace("b", "ab"), "ab "),
    ({"type": "Prepend", "prepend": "▁"}, "ab "),
    ({"type": "Prepend", "prepend": "a"}, "ab "),
    ({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, _replace(" ", "▁")]}, "ab "),
    ({"type": "Strip", "strip_left": True, "strip_right": True}, "ab "),
    ({"type": "StripAccents"}, "a\u0301 "),
)
"""Each with an alphabet to write texts in."""


def random_literals(rng: random.Random, alphabet: str) -> list[dict[str, Any]]:
    """One to four literals; some are prefixes of others, or others with a letter more."""
    contents: list[str] = []
    for _ in range(rng.choice((1, 2, 2, 3, 4))):
        grown = contents and rng.random() < 0.4
        content = rng.choice(contents) + rng.choice(alphabet) if grown else ""
        if not grown:
            content = "".join(rng.choice(alphabet[:2] + alphabet) for _ in range(rng.choice((1, 2, 2, 3))))
        if content not in contents:
            contents.append(content)
    odds = rng.choice((0.1, 0.3))
    return [
        {
            "id": k,
            "content": content,
            **{flag: rng.random() < odds for flag in ("lstrip", "rstrip", "single_word")},
            "normalized": rng.random() < 0.45,
            "special": rng.random() < 0.5,
        }
        for k, content in enumerate(contents)
    ]


def random_literal_case(rng: random.Random) -> dict[str, Any]:
    """A ``tokenizer.json`` without its model, and the alphabet to write texts in."""
    normalizer, alphabet = rng.choice(_NORMALIZERS)
    return {
        "alphabet": alphabet,
        "added_tokens": random_literals(rng, alphabet),
        "normalizer": normalizer,
        "pre_tokenizer": rng.choice(_PRE_TOKENIZERS),
    }


def attack_literals(case: Mapping[str, Any]) -> tuple[int, list[str]]:
    """(cuts asked, seams that are cuts and at which the IDs are not additive). Raises `Refusal`."""
    alphabet: str = case["alphabet"]
    flags = ("content", "normalized", "lstrip", "rstrip", "single_word")
    literals = [Literal(**{flag: token[flag] for flag in flags}) for token in case["added_tokens"]]
    engine = literal_engine(case)
    normalize = engine.normalizer.normalize_str if engine.normalizer else str
    rule = normalizer_rule(case["normalizer"], PROBE)
    derived = derive(rule, stages(case["pre_tokenizer"], PROBE), literals, normalize, PROBE)
    cuts = TableCuts(derived.table, interior=derived.interior)
    texts = strings(alphabet, LONGEST)
    try:
        encoded = engine.encode_batch_fast(texts, add_special_tokens=False)
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        # The engine panics where a literal that strips left follows one that holds white space: T is not defined.
        raise Refusal("panic", "engine") from None
    known = {text: e.ids for text, e in zip(texts, encoded, strict=True)}
    return _additive(known, cuts.is_cut, interior=derived.interior)


def literal_engine(case: Mapping[str, Any]) -> Tokenizer:
    """Pieces of up to four characters are tokens of their own, but for the literals' contents."""
    taken = {token["content"] for token in case["added_tokens"]}
    seen = sorted({*case["alphabet"], *"ab▁ ", "é"})
    pieces = (p for p in ("".join(t) for n in range(1, 5) for t in itertools.product(seen, repeat=n)) if p not in taken)
    vocab = {"?": 100} | {piece: 101 + k for k, piece in enumerate(pieces)}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "?"}
    parts = {name: case[name] for name in ("added_tokens", "normalizer", "pre_tokenizer")}
    return Tokenizer.from_str(json.dumps({"version": "1.0", **parts, "model": model}))
