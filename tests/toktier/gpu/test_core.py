"""The device core, compiled by g++, beside the reference: where pieces begin, and the IDs, for every family."""

from __future__ import annotations

import ctypes
import json
import random
import re
import shutil
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import tiktoken

from tests.support.gpu import FAMILIES, files_of, host_core, hostile, reference, segment, tables
from tests.support.small_ranks import plain, plain_bpe, random_ranks, repetitive, shuffled
from tests.support.tokenizer_files import CACHE
from tests.support.tokenizers_data import each
from toktier.certificate.classes import FANCY, Probe
from toktier.gpu.buffers import REQUEST, WORK_SIZE
from toktier.gpu.merges import rank_merges
from toktier.gpu.tables import STRUCTURE_SIZE, Tables, _parts, splits_of_pattern
from toktier.gpu.vocabulary import vocabulary_of_ranks, vocabulary_of_spec
from toktier.rank_files import BYTE_RANKS, Ranks
from tools.bench.texts import corpus
from tools.kernels.host import SHAPES, Counts

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

EXERCISED = ("deferred", "opaque", "cuts", "longs", "uniform", "windows", "open", "units", "shorts", "middles")


def starts_of(name: str, text: str) -> list[int]:
    """The offsets in bytes at which the reference's pieces begin."""
    lengths = [len(piece.encode()) if "tiktoken" in name else len(piece) for piece in reference(name).pieces(text)]
    return np.cumsum([0, *lengths])[:-1].tolist()


def test_both_sides_lay_out_their_structures_alike() -> None:
    assert [host_core().size(k) for k in range(4)] == [
        STRUCTURE_SIZE,
        WORK_SIZE,
        REQUEST.itemsize,
        ctypes.sizeof(Counts),
    ]


@pytest.mark.parametrize("name", each(FAMILIES))
def test_pieces_and_ids_of_hostile_texts(name: str) -> None:
    known, given, core = reference(name), tables(name), host_core()
    seen = dict.fromkeys(EXERCISED, 0)
    for k, text in enumerate(hostile(name, 160, "core")):
        raw = text.encode()
        shape = list(SHAPES)[k % 3]
        if len(raw) < 2000 or "tiktoken" not in name:  # tiktoken tells no pieces: asking for them is quadratic
            found, _ = core.starts(given, raw, shape)
            assert found.tolist() == starts_of(name, text), (shape, text)
        encoded = core.encode(given, raw, shape)
        assert encoded.ids is not None
        assert encoded.ids.tolist() == known.encode(text).tolist(), (shape, text)
        for key in EXERCISED:
            seen[key] += encoded.counts[key]
    assert all(seen.values()), seen


@pytest.mark.parametrize("name", each(FAMILIES))
def test_ids_of_mixed_text(name: str) -> None:
    text = segment(name, corpus(7, 60_000))
    assert text is not None
    want = reference(name).encode(text)
    for shape in SHAPES:
        got = host_core().encode(tables(name), text.encode(), shape).ids
        assert got is not None
        assert np.array_equal(got, want), shape


@pytest.mark.parametrize("name", each(FAMILIES))
def test_every_character_has_its_class(name: str) -> None:
    points = [p for p in (*range(1 << 16), *range(1 << 16, 0x110000, 37)) if not 0xD800 <= p < 0xE000]
    for at in range(0, len(points), 4000):
        text = segment(name, "".join(f"a{chr(point)}1{chr(point)}" for point in points[at : at + 4000]))
        if text is None:  # a literal in it
            continue
        encoded = host_core().encode(tables(name), text.encode(), list(SHAPES)[at // 4000 % 3])
        assert encoded.ids is not None
        assert np.array_equal(encoded.ids, reference(name).encode(text)), hex(points[at])


@pytest.mark.parametrize("name", each(["qwen3", "deepseek_v4", "llama3_1"]))
def test_pieces_are_cut_only_between_characters_that_no_token_has_side_by_side(name: str) -> None:
    """The filter takes no pair of the vocabulary for another, and few others for one of its pairs."""
    model = json.loads(files_of(name).tokenizer)["model"]
    together = set()
    for token in vocabulary_of_spec(model).texts:
        text = token.decode(errors="ignore")
        together |= {pair for pair in map("".join, pairwise(text)) if min(pair) > "\x7f" and pair.encode() in token}
    assert len(together) > 2000
    encoded = host_core().encode(tables(name), " ".join(sorted(together)).encode(), "small")
    assert encoded.counts["cuts"] == 0
    rng = random.Random(f"seams {name}")
    drawn = {"".join(chr(rng.randint(0x4E00, 0x9FFF)) for _ in range(2)) for _ in range(3000)} - together
    encoded = host_core().encode(tables(name), " ".join(sorted(drawn)).encode(), "small")
    known = tables(name).arrays["adjacent_bytes"].view(np.uint8)
    parts = {pair for pair in drawn if np.unpackbits(known, bitorder="little")[_bytes_that_meet(pair)]}
    assert 0.95 * len(drawn - parts) < encoded.counts["cuts"] <= len(drawn - parts)


def _bytes_that_meet(pair: str) -> int:
    return (pair[0].encode()[-1] & 63) * 64 + (pair[1].encode()[0] & 63)


def _undecided(rng: random.Random) -> str:
    """Rows of one kind each, of up to 900 bytes: what leaves several states possible, for as long as it goes on."""
    kinds = (
        "\u4e2d\u6587",
        "\u0e01\u0e48",
        "\u01c5\u02b0",
        "aA",
        "a",
        "'",
        "s",
        "1",
        " ",
        "\n",
        "\u0301",
        "=/",
        "\u00e9",
    )
    rows = []
    for kind in rng.choices(kinds, k=rng.randint(2, 12)):
        rows += rng.choices(kind, k=rng.choice((1, 2, 5, 20, 60, 300)))
    return "".join(rows)


@pytest.mark.parametrize("name", each(FAMILIES))
def test_where_few_states_are_possible_one_is_found_to_be(name: str) -> None:
    rng, given, core, settled = random.Random(f"settled {name}"), tables(name), host_core(), 0
    for k in range(60):
        text = segment(name, _undecided(rng))
        if text is None:
            continue
        shape = list(SHAPES)[k % 3]
        if "tiktoken" not in name:
            found, _ = core.starts(given, text.encode(), shape)
            assert found.tolist() == starts_of(name, text), (shape, text)
        encoded = core.encode(given, text.encode(), shape)
        assert encoded.ids is not None
        assert encoded.ids.tolist() == reference(name).encode(text).tolist(), (shape, text)
        settled += encoded.counts["settled"]
    assert settled > 0


def test_a_state_that_is_left_out_is_noticed() -> None:
    rng, given = random.Random("left out"), tables("gpt_oss")
    assert any(_differs("gpt_oss", _damaged(given), _undecided(rng)) for _ in range(60))


def _damaged(given: Tables) -> Tables:
    """A state that is possible is not known to be."""
    members = given.arrays["members"].view("<u2").reshape(-1, 4).copy()
    members[:, 1] = 0xFFFF
    return replace(given, arrays={**given.arrays, "members": members.view("<u8").ravel()})


def _differs(name: str, given: Tables, text: str) -> bool:
    kept = segment(name, text)
    if kept is None:
        return False
    ids = host_core().encode(given, kept.encode(), "small").ids
    return ids is None or ids.tolist() != reference(name).encode(kept).tolist()


def test_a_row_that_may_be_of_either_case_is_no_head() -> None:
    """To gpt-oss's pattern CJK is upper and lower case, so nothing synchronises in it."""
    name = "gpt_oss"
    text = "a" + "\u4e2d" * 160 + ", B"
    for shape in ("small", "large"):
        found, counts = host_core().starts(tables(name), (text * 40).encode(), shape)
        assert found.tolist() == starts_of(name, text * 40)
        assert counts["settled"] > 0
        assert counts["deferred"] == 0


def test_long_pieces_of_small_random_vocabularies() -> None:
    """Windows that do not join, units whose ends move, rules that dip; beside a BPE that tries every merge."""
    rng = random.Random("long")
    seen = dict.fromkeys((*EXERCISED[3:], "unsettled", "rounds", "dips"), 0)
    splits = splits_of_pattern("[^ ]+| ", Probe(CACHE, FANCY))
    for _ in range(30):
        ranks = random_ranks(rng, rng.randint(3, 60))
        given = Tables(*_parts(splits, vocabulary_of_ranks(Ranks("test", "", {}, ranks))))
        merges = rank_merges(ranks)
        for _ in range(12):
            size = rng.choice((40, 64, 100, 200, 500))
            text = repetitive(rng, ranks, size)
            encoded = host_core().encode(given, text, rng.choice(list(SHAPES)))
            assert encoded.ids is not None
            want = [i for piece in re.findall(rb"[^ ]+|.", text) for i in plain(piece, ranks, merges)]
            assert encoded.ids.tolist() == want, (text, ranks)
            for key in seen:
                seen[key] += encoded.counts[key]
    assert all(seen.values()), seen


def starts_of_bpe(text: bytes, ranks: dict[bytes, int]) -> list[int]:
    """Where the tokens of a text begin that is one stretch, by a BPE that tries every merge."""
    lengths = {rank: len(token) for token, rank in ranks.items()}
    single = {token: rank for token, rank in ranks.items() if len(token) == 1}
    ids = plain_bpe(text, single, rank_merges(ranks))
    return np.cumsum([0, *(lengths[i] for i in ids)])[:-1].tolist()


def test_rounds_that_dip_are_done_in_parts() -> None:
    """Merges that make lower ones possible, seldom and often, by eight threads; beside a BPE that tries every merge."""
    rng = random.Random("dips")
    seen = dict.fromkeys(("dips", "dip_parts"), 0)
    splits = splits_of_pattern("[^ ]+| ", Probe(CACHE, FANCY))
    for _ in range(30):
        ranks = shuffled(rng, random_ranks(rng, rng.randint(3, 60), b"abcdef"[: rng.randint(2, 6)]))
        given = Tables(*_parts(splits, vocabulary_of_ranks(Ranks("test", "", {}, ranks))))
        for _ in range(12):
            quiet = rng.choice((0, 1, 8, 60))
            letters = b"abcdef" + b"x" * quiet
            text = bytes(rng.choices(letters, k=rng.choice((3, 30, 200, 700))))
            starts, counts = host_core().unit(given, text)
            assert starts is not None
            assert starts.tolist() == starts_of_bpe(text, ranks), (text, ranks)
            for key in seen:
                seen[key] += counts[key]
    assert all(seen.values()), seen


def test_what_a_dip_reaches_is_in_its_part() -> None:
    """A merge that eats what stands around it moves the parts' ends away; too much of it is left to the CPU."""
    splits = splits_of_pattern("[^ ]+| ", Probe(CACHE, FANCY))
    reaching = {b"y" * left + b"ab" + b"x" * right: 300 + 9 * left + right for left in range(9) for right in range(9)}
    ranks = BYTE_RANKS | reaching | {b"ab": 400}
    given = Tables(*_parts(splits, vocabulary_of_ranks(Ranks("test", "", {}, ranks))))
    again = parts = 0
    for rest in range(20, 120, 3):
        text = (b"y" * rest + b"ab" + b"x" * rest) * 9
        starts, counts = host_core().unit(given, text)
        assert starts is not None
        assert starts.tolist() == starts_of_bpe(text, ranks)
        again, parts = again + counts["dips_again"], parts + counts["dip_parts"]
    assert again > 5
    assert parts > 20
    swallowing = BYTE_RANKS | {b"ab" + b"x" * k: 300 + k for k in range(1, 400)} | {b"ab": 900}
    other = Tables(*_parts(splits, vocabulary_of_ranks(Ranks("test", "", {}, swallowing))))
    starts, counts = host_core().unit(other, b"z" * 100 + b"ab" + b"x" * 1500)
    assert starts is not None
    assert (len(starts), counts["dips_again"] > 3) == (100 + 1 + 1500 - 399, True)
    starts, counts = host_core().unit(given, b"ab" * 1000)
    assert starts is not None
    assert (len(starts), counts["dips"]) == (1000, 1)
    assert host_core().unit(given, b"ab" * 1100)[0] is None
    starts, counts = host_core().unit(given, (b"ab" * 200 + b"z" * 20) * 9)
    assert starts is not None
    assert (len(starts), counts["dip_parts"] > 3) == (9 * 220, True)


def test_what_a_piece_begins_with_decides_all_of_it() -> None:
    """Tokens of a repeated unit lie as the piece's beginning says, so that windows agree with each other and not with
    it; between runs they shift. Passes go as far as that goes. Beside tiktoken."""
    ranks = dict(BYTE_RANKS)
    for token in (b"ab", b"abab", b"abababab", b"aa", b"bb", b"aaaa", b"bbbb", b"aaaaaaaa", b"ca", b"ba", b"cc"):
        ranks[token] = len(ranks)
    splits = splits_of_pattern("[^ ]+| ", Probe(CACHE, FANCY))
    given = Tables(*_parts(splits, vocabulary_of_ranks(Ranks("test", "", {}, ranks))))
    known = tiktoken.Encoding("test", pat_str="[^ ]+| ", mergeable_ranks=ranks, special_tokens={})
    passes = 0
    for unit in (b"ab", b"a" * 99 + b"b" * 77, b"a" * 65 + b"b" * 63, b"c" * 33 + b"a" * 71, b"a"):
        for before in (b"", b"b", b"c ", b"ab ca "):
            text = (before + unit * (3000 // len(unit) + 1))[:3000]
            encoded = host_core().encode(given, text, "small")
            assert encoded.ids is not None
            assert encoded.ids.tolist() == known.encode_ordinary(text.decode()), (before, unit)
            passes = max(passes, encoded.counts["passes"])
    assert passes >= 3


def test_pieces_are_cut_where_no_token_reaches() -> None:
    """Vocabularies of parts of characters: tokens that no merges make count for a piece and not for a part of one."""
    rng = random.Random("cuts")
    seen = dict.fromkeys(("cuts", "parts", "early"), 0)
    splits = splits_of_pattern("[^ ]+| ", Probe(CACHE, FANCY))
    letters = ("\u00e9", "\u00e8", "\u0169", "\u4e2d", "\u4e2e", "a")
    for _ in range(60):
        ranks = random_ranks(rng, rng.randint(10, 80), bytes(set("".join(letters).encode())))
        for text in rng.sample(letters, 3):  # tokens without merges
            ranks.setdefault((text * rng.randint(1, 3)).encode(), max(ranks.values()) + 1)
        given = Tables(*_parts(splits, vocabulary_of_ranks(Ranks("test", "", {}, ranks))))
        merges = rank_merges(ranks)
        for _ in range(25):
            parts = (*letters, " ", "a" * rng.choice((1, 1, 40, 70)))
            text = "".join(rng.choices(parts, k=rng.choice((2, 3, 5, 9, 20, 90)))).encode()
            encoded = host_core().encode(given, text, rng.choice(list(SHAPES)))
            assert encoded.ids is not None
            want = [i for piece in re.findall(rb"[^ ]+|.", text) for i in plain(piece, ranks, merges)]
            assert encoded.ids.tolist() == want, (text, ranks)
            for key in seen:
                seen[key] += encoded.counts[key]
    assert all(seen.values()), seen
