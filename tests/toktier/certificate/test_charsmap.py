"""The format of charsmaps, read back from what is built, and as the engine reads it."""

from __future__ import annotations

import base64
import random

import pytest
from tokenizers import normalizers

from toktier.certificate.charsmap import build_charsmap, decoded, read_keys
from toktier.errors import Refusal


def rows(raw: bytes) -> set[tuple[int, bool, str]]:
    keys = read_keys(raw, "normalizer")
    return {
        (int(c), bool(m), keys.replacement(int(v))) for c, m, v in zip(keys.first, keys.longer, keys.value, strict=True)
    }


def test_reads_what_is_built() -> None:
    rng = random.Random(6)
    alphabet = "ab\x7fé\u0600ﬁ中\U0001f468\u0301"
    for _ in range(30):
        texts = {"".join(rng.choice(alphabet) for _ in range(rng.randint(1, 4))) for _ in range(rng.randint(1, 12))}
        keys = {key: "".join(rng.choice(alphabet) for _ in range(rng.randint(0, 3))) for key in texts}
        raw = build_charsmap({key.encode(): text for key, text in keys.items()})
        assert rows(raw) == {(ord(key[0]), len(key) > 1, text) for key, text in keys.items()}
        engine = normalizers.Precompiled(raw).normalize_str
        for key, text in keys.items():
            if len(key) == 1:
                assert engine(key) == text


def test_bytes_that_no_text_has_are_no_keys_of_a_character() -> None:
    raw = build_charsmap({b"\xff": "x", b"a\xcc": "y"})
    assert rows(raw) == {(-1, False, "x"), (ord("a"), True, "y")}


@pytest.mark.parametrize(
    "raw",
    [b"", b"\x04\x00\x00\x00", build_charsmap({b"\xc3": "x"}), b"\x04\x00\x00\x00\x00\x01\x00\x00"],
    ids=["empty", "cut off", "key inside a character", "root with a leaf and nothing else"],
)
def test_what_cannot_be_read(raw: bytes) -> None:
    if raw[4:] == b"\x00\x01\x00\x00":
        assert rows(raw) == set(), "the empty key matches nothing"
        return
    with pytest.raises(Refusal, match="charsmap"):
        read_keys(raw, "normalizer")


def test_base64() -> None:
    assert decoded(base64.b64encode(b"abc").decode(), "normalizer") == b"abc"
    for bad in (None, "a", "?" * 4, 7):
        with pytest.raises(Refusal, match="charsmap that cannot be read"):
            decoded(bad, "normalizer")
