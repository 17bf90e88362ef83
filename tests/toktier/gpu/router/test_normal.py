"""Normal forms by regions, beside the normalizer on the whole text."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tokenizers import normalizers

from tests.support.tokenizer_files import CACHE
from toktier.campaign.corpus import PROSE
from toktier.certificate.classes import Probe
from toktier.errors import Refusal
from toktier.gpu.router.normal import Normal, normal_of

MARKS = "\u0301\u0323\u0345\u0334\u093c\u09bc\u09be\u09c7\u3099\u0327\u1161\u11a8\u05bc\u0e34"
STARTERS = "aeK\u00e9\u0958\u09df\u212b\u1e9b\u304b\u1100\uac00\uac01\ufb01\u2167\ud7a3\u4e2d \n|\x00\x01\U0001f600"


def proven(normal: Normal, text: str) -> bool:
    return not len(normal.loose(np.frombuffer(bytearray(text.encode()), np.uint8)))


def form(name: str) -> Normal:
    made = normal_of({"type": name}, getattr(normalizers, name)().normalize_str, Probe(CACHE))
    assert made is not None
    return made


@pytest.mark.parametrize("name", ["NFC", "NFKC"])
def test_the_form_of_a_text_is_the_engines(name: str) -> None:
    normal, whole = form(name), getattr(normalizers, name)()
    rng = random.Random(name)
    changed = 0
    for _ in range(3000):
        text = "".join(rng.choice(rng.choice((MARKS, STARTERS, STARTERS))) for _ in range(rng.randint(0, 14)))
        if rng.random() < 0.2:
            text += chr(rng.choice((rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)))) + rng.choice(MARKS)
        want = whole.normalize_str(text)
        assert normal.of(text) == want, ascii(text)
        assert not proven(normal, text) or text == want
        assert proven(normal, text) == all(normal.stable[ord(c)] for c in text)
        changed += text != want
    assert changed > 500
    assert normal.of(PROSE) == whole.normalize_str(PROSE) != PROSE


@pytest.mark.parametrize("name", ["NFC", "NFKC"])
def test_every_stable_character_stays_what_it_is(name: str) -> None:
    normal, whole = form(name), getattr(normalizers, name)()
    stable = "".join(map(chr, normal.stable.nonzero()[0]))
    assert proven(normal, stable)
    loose = [chr(c) for c in (~normal.stable).nonzero()[0] if not 0xD800 <= c < 0xE000]
    assert not any(proven(normal, c) for c in loose)
    assert whole.normalize_str(stable) == stable
    assert normal.stable.sum() > 1_000_000


@pytest.mark.parametrize("name", ["NFC", "NFKC"])
def test_long_texts_of_one_script_are_told_as_their_characters_are(name: str) -> None:
    normal = form(name)
    rng = random.Random(f"long {name}")
    first = (0x300, 0x370, 0x400, 0x5D0, 0x620, 0x900, 0x1100, 0x1E00, 0x3000, 0x3040, 0x4E00, 0xA640, 0xAC00, 0xF900)
    for start in (*first, 0xFF00, 0x11000, 0x1D100, 0x1F600):
        chars = [chr(point) for point in range(start, start + 0x100)] + ["a", " "]
        for _ in range(4):
            text = "".join(rng.choices(chars, k=rng.choice((30, 300, 2000))))
            places = normal.loose(np.frombuffer(bytearray(text.encode()), np.uint8)).tolist()
            loose = [k for k, c in enumerate(text) if not normal.stable[ord(c)]]
            assert places == [len(text[:k].encode()) for k in loose]


def test_common_text_is_proven() -> None:
    nfc = form("NFC")
    assert proven(nfc, "na\u00efve caf\u00e9, \u4e2d\u6587\u3002\U0001f600 \u041f\u0440\u0438\u0432\u0435\u0442")
    assert not proven(nfc, "e\u0301")


def test_what_changes_nothing_is_none_and_what_is_not_known_is_refused() -> None:
    probe = Probe(CACHE)
    assert normal_of(None, None, probe) is None
    assert normal_of({"type": "Sequence", "normalizers": []}, str, probe) is None
    assert normal_of({"type": "Sequence", "normalizers": [{"type": "NFC"}]}, str, probe) is not None
    for spec in ({"type": "Lowercase"}, {"type": "NFD"}, {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 2}):
        with pytest.raises(Refusal, match="normalizer"):
            normal_of(spec, str, probe)
