"""Odd and malicious ``tokenizer.json`` files: each is certified, refused by name or unusable, in bounded time and
memory; none raises anything else. A panic of the engine is no ``Exception``, so it is easily let through."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import models

from tests.support.tokenizer_files import CACHE
from toktier.certificate.follow import MOST_ATOMS
from toktier.certificate.normalizer import MOST_STEPS
from toktier.certificate.replace import LONGEST_CONTENT
from toktier.certificate.stages import MOST_OPERATIONS
from toktier.errors import UnusableFile
from toktier.tokenizer import FrozenTokenizer

Spec = dict[str, Any]

LETTERS = "abcde \u2581xyz"
SPEC: Spec = {
    "version": "1.0",
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "WhitespaceSplit"},
    "post_processor": None,
    "decoder": None,
    "model": {"type": "BPE", "unk_token": "a", "vocab": {c: i for i, c in enumerate(LETTERS)}, "merges": []},
}
HAN = [chr(0x4E00 + i) for i in range(3000)]


def loaded(spec: Spec | bytes, folder: Path) -> FrozenTokenizer:
    path = folder / "tokenizer.json"
    path.write_bytes(spec if isinstance(spec, bytes) else json.dumps(spec).encode())
    return FrozenTokenizer.load(path, cache_dir=CACHE, window=False)


def normalizer(block: Any) -> Spec:
    return {**SPEC, "normalizer": block}


def pre_tokenizer(block: Any) -> Spec:
    return {**SPEC, "pre_tokenizer": block}


def split(pattern: Any, behavior: Any = "Isolated") -> Spec:
    return pre_tokenizer({"type": "Split", "pattern": pattern, "behavior": behavior, "invert": False})


def replaced(pattern: str, content: str) -> Spec:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def model(**fields: Any) -> Spec:
    return {**SPEC, "model": {**SPEC["model"], **fields}}


def token(**fields: Any) -> Spec:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {**SPEC, "added_tokens": [{"id": 50, "content": "x", **flags, **fields}]}


def nested(kind: str, leaf: Spec, depth: int) -> Spec:
    for _ in range(depth):
        leaf = {"type": "Sequence", kind: [leaf]}
    return leaf


UNUSABLE: dict[str, Spec | bytes] = {
    "an unknown normalizer": normalizer({"type": "Nope"}),
    "a list for a normalizer": normalizer([]),
    "no charsmap": normalizer({"type": "Precompiled"}),  # the engine panics
    "a charsmap that is cut short": normalizer({"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    "a null in a row": pre_tokenizer({"type": "Sequence", "pretokenizers": [None]}),
    "no row": pre_tokenizer({"type": "Sequence", "pretokenizers": None}),
    "a row in a row, and so on": pre_tokenizer(nested("pretokenizers", {"type": "WhitespaceSplit"}, 200)),
    "a pattern of two kinds": split({"String": "a", "Regex": "b"}),
    "a pattern that Oniguruma rejects": split({"Regex": "(a"}),
    "a behaviour that there is not": split({"String": "a"}, "Nope"),
    "a replacement of two characters": pre_tokenizer({"type": "Metaspace", "replacement": "ab"}),
    "a merge of an unknown token": model(merges=["a q"]),
    "a merge of one token": model(merges=["a"]),
    "a negative ID": model(vocab={"a": -1}),
    "an ID beyond 32 bits": model(vocab={"a": 1 << 33}),
    "a vocabulary that is a list": model(vocab=[]),
    "a lone surrogate in the vocabulary": model(vocab={"\ud800": 0}),
    "a lone surrogate as a literal": token(content="\ud800"),
    "a literal of no ID": token(id=None),
    "dropout": model(dropout=0.5),
    "a prefix that no token has": model(continuing_subword_prefix="####", merges=["a b"], vocab={"a": 0, "b": 1}),
    "no end": b'{"model": ' + b"[" * 100_000,
    "a number without end": b'{"model": {"vocab": {"a": ' + b"9" * 5000 + b"}}}",
    "a byte order mark": b"\xef\xbb\xbf" + json.dumps(SPEC).encode(),
}  # fmt: skip

REFUSED: dict[str, tuple[Spec, str]] = {
    "an empty string to split by": (split({"String": ""}), "empty string"),
    "an empty pattern": (split({"Regex": ""}), "empty string"),
    "an empty string to replace": (normalizer(replaced("", "x")), "empty string"),  # the engine panics on all texts
    "a trie beyond its end": (
        normalizer({"type": "Precompiled", "precompiled_charsmap": "CAAAAAAAAAAAAAAA"}),
        "engine panics",
    ),
    "a pattern of very many letters": (split({"Regex": "|".join(HAN)}), f"more than {MOST_ATOMS:,}"),
    "a very long string to split by": (split({"String": "ab" * 50_000}), f"more than {MOST_ATOMS:,}"),
    "many atoms that all follow each other": (split({"Regex": f"(?:{'|'.join(HAN[:900])})+"}), "more than 200,000"),
    "very many splits": (
        pre_tokenizer({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}] * 1000}),
        f"more than {MOST_OPERATIONS} operations",
    ),
    "very many normalizers": (
        normalizer({"type": "Sequence", "normalizers": [{"type": "NFC"}] * 1000}),
        f"more than {MOST_STEPS} steps",
    ),
    "a long prefix": (normalizer({"type": "Prepend", "prepend": "x" * 5000}), f"more than {LONGEST_CONTENT}"),
    "a long replacement": (normalizer(replaced("a", "x" * 5000)), f"more than {LONGEST_CONTENT}"),
    "no token for an unknown": (model(unk_token="zz"), "self-check"),
    "no unknown token of a Unigram": (
        {**SPEC, "model": {"type": "Unigram", "unk_id": None, "vocab": [["a", 0.0], ["b", -1.0]]}},
        "model.unk_id",
    ),
    "a pre-tokenizer without a rule": (pre_tokenizer({"type": "UnicodeScripts"}), "UnicodeScripts"),
}

CERTIFIED: dict[str, Spec] = {
    "a row of nothing": normalizer({"type": "Sequence", "normalizers": []}),
    "rows in a row": pre_tokenizer(nested("pretokenizers", {"type": "WhitespaceSplit"}, 40)),
    "an empty literal": token(content=""),
    "a literal that looks like a pattern": token(content=".*+?[("),
    "a literal of a NUL": token(content="a\0b"),
    "a literal with the largest ID": token(id=(1 << 32) - 1),
    "two literals of one content": {**SPEC, "added_tokens": token()["added_tokens"] * 2},
    "no merges": model(),
    "an empty vocabulary": model(vocab={}, unk_token=None),
    "a space for a space": pre_tokenizer({"type": "Metaspace", "replacement": " ", "prepend_scheme": "never"}),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_unusable(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnusableFile) as caught:
        loaded(UNUSABLE[name], tmp_path)
    assert "tokenizer.json" in str(caught.value)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, tmp_path: Path) -> None:
    spec, construct = REFUSED[name]
    tokenizer = loaded(spec, tmp_path)
    assert tokenizer.certificate is None
    assert construct in str(tokenizer.refusal)


@pytest.mark.parametrize("name", CERTIFIED)
def test_certified(name: str, tmp_path: Path) -> None:
    tokenizer = loaded(CERTIFIED[name], tmp_path)
    assert tokenizer.refusal is None
    assert tokenizer.certificate is not None


def test_a_model_that_lacks_its_unknown_token_is_read(tmp_path: Path) -> None:
    """The samples that the post-processor is held against have no IDs then."""
    held = models.WordPiece({"a": 0}, unk_token="[UNK]")
    spec = {**SPEC, "model": {**json.loads(held.__getstate__()), "type": "WordPiece"}}
    tokenizer = loaded(spec, tmp_path)
    assert "self-check" in str(tokenizer.refusal)
    assert tokenizer.special_refusal is None


@pytest.mark.parametrize("damage", [lambda _: b"", lambda raw: raw[:40], lambda raw: raw[:-1] + bytes([raw[-1] ^ 1])])
def test_damaged_tables_are_derived_again(damage: Any, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(SPEC))

    def digest() -> str:
        certificate = FrozenTokenizer.load(tmp_path, cache_dir=tmp_path / "cache", window=False).certificate
        assert certificate is not None
        return certificate.digest

    first = digest()
    kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert len(kept) >= 2
    for path in kept:
        path.write_bytes(damage(path.read_bytes()))
    assert digest() == first
    for path in kept:
        path.unlink()
        path.mkdir()  # neither readable nor to be replaced by a file
    assert digest() == first
