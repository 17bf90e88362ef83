"""Random small tokenizer files over a tiny alphabet: every part that a certificate has a rule for, in any combination.

The vocabulary is made so that IDs show pieces: most pairs of characters are merges, so a boundary that moved is seen.
"""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

from tokenizers import Tokenizer

from tests.support.regex_oracle import random_pattern
from tests.support.split_cases import BEHAVIOURS

ALPHABET = "aB1 ."
MORE = "\u2581\u00e9e\u0301"
"""What rewriting steps bring in, and what composes."""


def random_spec(rng: random.Random) -> dict[str, Any]:
    """A ``tokenizer.json``; the engine may refuse it (a pattern), and so may a certificate."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": random_literals(rng) if rng.random() < 0.5 else [],
        "normalizer": random_normalizer(rng) if rng.random() < 0.5 else None,
        "pre_tokenizer": random_pre_tokenizer(rng) if rng.random() < 0.85 else None,
        "post_processor": None,
        "decoder": None,
        "model": random_model(rng),
    }


def random_literals(rng: random.Random) -> list[dict[str, Any]]:
    contents = {"".join(rng.choice(ALPHABET + "aB<>") for _ in range(rng.choice((1, 2, 2, 3)))) for _ in range(3)}
    return [
        {
            "id": 900 + i,
            "content": content,
            "single_word": rng.random() < 0.15,
            "lstrip": rng.random() < 0.15,
            "rstrip": rng.random() < 0.15,
            "normalized": rng.random() < 0.4,
            "special": rng.random() < 0.5,
        }
        for i, content in enumerate(sorted(contents)[: rng.choice((1, 2, 3))])
    ]


def random_normalizer(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    kind = rng.choice(
        ("NFC", "NFD", "NFKC", "Lowercase", "Replace", "Replace", "Prepend", "Strip", "StripAccents", "BertNormalizer")
        + (("Sequence",) * 3 if depth < 2 else ())
    )
    if kind == "Sequence":
        return {"type": kind, "normalizers": [random_normalizer(rng, depth + 1) for _ in range(rng.choice((1, 2, 3)))]}
    if kind == "Replace":
        pattern = rng.choice(
            [{"String": text} for text in (" ", "a", "aB", "  ")]
            + [{"Regex": text} for text in ("\\s+", "[a1]", "a+B", " {2,}")]
        )
        return {"type": kind, "pattern": pattern, "content": rng.choice(("\u2581", "", "B", " ", "aB", "1."))}
    if kind == "Prepend":
        return {"type": kind, "prepend": rng.choice(("\u2581", " ", "a"))}
    if kind == "Strip":
        return {"type": kind, "strip_left": rng.random() < 0.6, "strip_right": rng.random() < 0.6}
    if kind == "BertNormalizer":
        return {
            "type": kind,
            "clean_text": rng.random() < 0.5,
            "handle_chinese_chars": rng.random() < 0.5,
            "strip_accents": rng.choice((None, True, False)),
            "lowercase": rng.random() < 0.5,
        }
    return {"type": kind}


def random_pre_tokenizer(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    kind = rng.choice(
        ("Split", "Split", "SplitString", "ByteLevel", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit")
        + ("BertPreTokenizer", "Metaspace", "Metaspace", "CharDelimiterSplit")
        + (("Sequence",) * 5 if depth < 2 else ())
    )
    if kind == "Sequence":
        parts = [random_pre_tokenizer(rng, depth + 1) for _ in range(rng.choice((1, 2, 2, 3)))]
        return {"type": kind, "pretokenizers": parts}
    if kind == "Split":
        pattern = random_pattern(rng, rng.choice((0, 1, 2))).replace("C", "1").replace("b", "B")
        return _split({"Regex": rng.choice((pattern, pattern, " ?a+|\\s+(?!\\S)|\\s|[^a\\s]+", "[aB]+|1{1,3}"))}, rng)
    if kind == "SplitString":
        return _split({"String": rng.choice((" ", "a", "aB", "\u2581", "."))}, rng)
    if kind == "ByteLevel":
        flags = {name: rng.random() < 0.5 for name in ("add_prefix_space", "use_regex")}
        return {"type": kind, "trim_offsets": True, **flags}
    if kind == "Digits":
        return {"type": kind, "individual_digits": rng.random() < 0.5}
    if kind == "Punctuation":
        return {"type": kind, "behavior": rng.choice(list(BEHAVIOURS))}
    if kind == "Metaspace":
        scheme = rng.choice(("always", "first", "never"))
        return {"type": kind, "replacement": "\u2581", "prepend_scheme": scheme, "split": rng.random() < 0.6}
    if kind == "CharDelimiterSplit":
        return {"type": kind, "delimiter": rng.choice("a .")}
    return {"type": kind}


def _split(pattern: dict[str, str], rng: random.Random) -> dict[str, Any]:
    behaviour = rng.choice(list(BEHAVIOURS))
    return {"type": "Split", "pattern": pattern, "behavior": behaviour, "invert": rng.random() < 0.3}


def random_model(rng: random.Random) -> dict[str, Any]:
    letters = [*ALPHABET, *MORE, "b", "<", ">", "\u0120", "\u00c3", "\u00a9", "\u00cc", "\u0123"]
    if rng.random() < 0.3:
        letters = [c for c in letters if rng.random() < 0.85]
    pairs = [p for p in itertools.product(letters, repeat=2) if rng.random() < rng.choice((0.3, 0.9))]
    rng.shuffle(pairs)
    triples = [(a + b, c) for a, b in pairs[:20] for c in letters[:4]]
    merges = list(dict.fromkeys([*pairs, *triples]))
    tokens = ["?", *letters]
    fallback = rng.random() < 0.3
    if fallback:
        missing = rng.randrange(256) if rng.random() < 0.3 else -1
        tokens += [f"<0x{n:02X}>" for n in range(256) if n != missing]
    tokens += [a + b for a, b in merges]
    vocab = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None if rng.random() < 0.2 else "?",
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": rng.random() < 0.5,
        "byte_fallback": fallback,
        "ignore_merges": rng.random() < 0.2,
        "vocab": vocab,
        "merges": [list(m) for m in merges],
    }


def engine_of(spec: dict[str, Any]) -> Tokenizer | None:
    """The engine's object, or None where the engine refuses the file."""
    try:
        return Tokenizer.from_str(json.dumps(spec))
    except Exception as error:  # the engine's refusals have no type of their own
        if "Oniguruma" in str(error) or "unk" in str(error).lower():
            return None
        raise
