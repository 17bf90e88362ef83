"""The hash tables: every key is found from its home slot, and nothing else is."""

from __future__ import annotations

import random

import numpy as np
import pytest

from toktier.errors import Refusal
from toktier.gpu import hashing
from toktier.gpu.vocabulary import BREAK_BYTE, BREAK_ID, byte_alphabet, piece_tables, vocabulary_of_spec
from toktier.rank_files import BYTE_RANKS


def walk(homes: hashing.U64, slots: np.ndarray, bits: int) -> bool:
    """Whether there is no free slot between each key's home and its slot."""
    taken = set(slots.tolist())
    size = 1 << bits
    for home, slot in zip(homes.tolist(), slots.tolist(), strict=True):
        at = int(home)
        while at != slot:
            if at not in taken:
                return False
            at = (at + 1) % size
    return True


def test_keys_lie_behind_their_homes_without_a_gap() -> None:
    rng = random.Random("place")
    for bits in (4, 6, 9):
        homes = np.array([rng.randrange(1 << bits) // rng.choice((1, 4)) for _ in range(1 << (bits - 1))], np.uint64)
        slots = hashing.place(homes, bits)
        assert len(set(slots.tolist())) == len(homes)
        assert walk(homes, slots, bits)


def test_slots_are_twice_the_keys() -> None:
    for keys in (0, 1, 8, 9, 1000):
        assert 1 << hashing.slots_for(keys) >= 2 * keys


def test_pieces_are_in_the_table_of_their_length() -> None:
    pieces = [(bytes([b]), b) for b in range(256)] + [(b"x" * n, 1000 + n) for n in (8, 9, 16, 17, 40)]
    tables = piece_tables(pieces)
    small = tables["slots_8"]
    assert sorted(small["id"][small["length"] == 1].tolist()) == [*range(255), BREAK_ID]  # no text has the break byte
    assert small["key"][small["id"] == BREAK_ID].tolist() == [BREAK_BYTE]
    assert small["id"][small["length"] == 8].tolist() == [1008]
    middle = tables["slots_16"]
    assert sorted(middle["id"][middle["length"] > 0].tolist()) == [1009, 1016]
    long = tables["slots_long"]
    for slot in long[long["length"] > 0]:
        at = int(slot["offset"])
        assert bytes(tables["long_text"][at : at + int(slot["length"])]) == b"x" * (int(slot["id"]) - 1000)


def spec(**model: object) -> dict[str, object]:
    char_of = {byte: char for char, byte in byte_alphabet().items()}
    singles = {char_of[b]: b for b in sorted(char_of)}
    return {
        "type": "BPE",
        "vocab": {**singles, "ab": 300, "abc": 301, "日": 302},
        "merges": ["a b"],
        **model,
    }


def test_a_token_without_merges_counts_as_a_piece_only_where_merges_are_ignored() -> None:
    def texts(**model: object) -> set[bytes]:
        return {text for text, _ in vocabulary_of_spec(spec(**model)).pieces if len(text) > 1}

    assert texts() == {b"ab"}
    assert texts(ignore_merges=True) == {b"ab", b"abc"}  # "日" is written in no byte alphabet


@pytest.mark.parametrize(("name", "value"), [("continuing_subword_prefix", "##"), ("end_of_word_suffix", "</w>")])
def test_what_the_kernels_do_not_do_is_refused(name: str, value: str) -> None:
    with pytest.raises(Refusal) as refused:
        vocabulary_of_spec(spec(**{name: value}))
    assert refused.value.construct == name


def test_byte_ranks_are_the_bytes() -> None:
    assert {bytes([b]) for b in byte_alphabet().values()} < BYTE_RANKS.keys()
