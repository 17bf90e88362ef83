"""Chunks to segments and back, with an encoder whose IDs are the bytes of a segment."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from tokenizers import normalizers

from tests.support.models import qwen3
from tests.support.tokenizer_files import CACHE
from toktier.certificate.classes import Probe
from toktier.errors import Refusal
from toktier.gpu.router import segments as module
from toktier.gpu.router.devices import Failed
from toktier.gpu.router.literals import Finder
from toktier.gpu.router.normal import normal_of
from toktier.gpu.router.segments import Segmenter, Segments, segmenter_of
from toktier.gpu.vocabulary import BREAK_BYTE, BREAK_ID
from toktier.ids import Ids
from toktier.reasons import Gpu

RAW = {"<|end|>": 1001, "<s>": 1002}
LATER = {"[I\u0301]": 1003, "</s": 1004}
NFC = normalizers.NFC().normalize_str


def segmenter(composing: bool) -> Segmenter:
    normal = normal_of({"type": "NFC"}, NFC, Probe(CACHE)) if composing else None
    later = {(NFC(text) if composing else text).encode(): k for text, k in LATER.items()}
    return Segmenter(Finder({text.encode(): k for text, k in RAW.items()}), Finder(later), normal)


def by_hand(piece: str, composing: bool) -> list[int]:
    """Raw literals first, then the others in the normal form of what is between."""

    def split(text: str, known: dict[str, int]) -> list[str | int]:
        out: list[str | int] = []
        held = ""
        while text:
            hit = max((one for one in known if text.startswith(one)), key=len, default="")
            if hit:
                out += [held, known[hit]]
                held, text = "", text[len(hit) :]
            else:
                held, text = held + text[0], text[1:]
        return [*out, held]

    ids: list[int] = []
    for part in split(piece, RAW):
        if isinstance(part, int):
            ids.append(part)
            continue
        form = NFC if composing else str
        for inner in split(form(part), {form(text): k for text, k in LATER.items()}):
            ids += [inner] if isinstance(inner, int) else inner.encode()
    return ids


def device(made: Segments) -> Ids:
    ids = made.buffer.astype(np.uint32)
    ids[ids == BREAK_BYTE] = BREAK_ID
    return ids


def encoded(one: Segmenter, pieces: Sequence[str]) -> list[list[int]]:
    made = one.segments(pieces)
    ids, counts = made.assembled(device(made))
    assert ids.dtype == np.uint32
    return [row.tolist() for row in np.split(ids, np.cumsum(counts)[:-1])]


@pytest.mark.parametrize("composing", [False, True])
def test_every_chunk_gets_its_own_ids(composing: bool) -> None:
    one = segmenter(composing)
    rng = random.Random(7)
    words = (*RAW, *LATER, "I", "\u0301", "\u0300", "[", "]", "a", "<", "e", "\u00e9", "\u4e2d", "|end|>", "")
    for _ in range(400):
        pieces = ["".join(rng.choices(words, k=rng.choice((0, 1, 3, 9)))) for _ in range(rng.randint(1, 6))]
        if any(pieces):
            assert encoded(one, pieces) == [by_hand(piece, composing) for piece in pieces], pieces


def test_parts_end_at_breaks_and_hold_all_of_them() -> None:
    rng = random.Random(8)
    one = segmenter(False)
    for _ in range(100):
        made = one.segments(["x" * rng.randint(0, 30) + "<s>" * rng.randint(0, 3) for _ in range(12)])
        parts = made.parts(33)
        assert parts is not None
        assert sum(count for _, count in parts) == made.count
        assert all(len(raw) <= 33 and raw.tobytes().count(BREAK_BYTE) == count - 1 for raw, count in parts)
        assert b"\xff".join(raw.tobytes() for raw, _ in parts) == made.buffer.tobytes()
    assert one.segments(["x" * 34, "y"]).parts(33) is None


def test_what_costs_too_much_is_left_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST", 100)
    monkeypatch.setattr(module, "LONGEST_UNSTABLE", 10)
    for pieces, reason in ((["a", "b" * 101], Gpu.LONG_PIECE), (["e\u0301" * 6], Gpu.NOT_NORMAL)):
        with pytest.raises(Failed) as failed:
            segmenter(True).segments(pieces)
        assert failed.value.reason is reason
    assert encoded(segmenter(True), ["\u4e2d" * 50])
    with pytest.raises(UnicodeEncodeError):
        segmenter(True).segments(["a\ud800"])


@pytest.mark.xdist_group("qwen3")
def test_literals_have_the_references_ids_and_flags_are_refused() -> None:
    tokenizer = qwen3()
    made = segmenter_of(tokenizer.spec, tokenizer.reference, CACHE)
    want = {token["content"].encode(): token["id"] for token in tokenizer.spec["added_tokens"]}
    assert made.raw._ids == want
    assert not made.later
    assert made.normal is not None
    token = {**tokenizer.spec["added_tokens"][0], "lstrip": True}
    with pytest.raises(Refusal, match="lstrip"):
        segmenter_of({**tokenizer.spec, "added_tokens": [token]}, tokenizer.reference, CACHE)
