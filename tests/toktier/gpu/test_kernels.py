"""The kernels themselves on the host, launched as on a GPU, beside the reference: threads in several orders."""

from __future__ import annotations

import random
import re
import shutil
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.support.gpu import FAMILIES, hostile, reference, segment, tables
from tests.support.small_ranks import plain, random_ranks, repetitive, shuffled
from tests.support.tokenizer_files import CACHE
from tests.support.tokenizers_data import each
from toktier.certificate.classes import FANCY, Probe
from toktier.gpu.buffers import LARGE, SMALL, Layout
from toktier.gpu.chain import BRIEF, NAMES, Sizes, layout_for, room_for
from toktier.gpu.merges import rank_merges
from toktier.gpu.tables import Tables, _parts, splits_of_pattern
from toktier.gpu.vocabulary import BREAK_BYTE, BREAK_ID, vocabulary_of_ranks
from toktier.rank_files import Ranks
from tools.bench.texts import corpus, styled
from tools.kernels.emulated import Emulator, emulator
from tools.kernels.host import SOURCES

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")


@cache
def emulated() -> Emulator:
    return emulator(ROOT / ".cache" / "gpu-core")


@pytest.mark.parametrize("name", each(FAMILIES))
def test_ids_of_hostile_texts(name: str) -> None:
    known, given = reference(name), tables(name)
    ways = {"one": 0, "small": 0, "large": 0}
    for k, text in enumerate(hostile(name, 200, "kernels")):
        raw = text.encode()
        layout = layout_for(room_for(len(raw)))
        if k % 3:
            layout = Layout.of(1 << 15, LARGE if k % 3 == 1 else SMALL)
        one = layout.room == BRIEF
        ways["one" if one else layout.shape.name] += 1
        found = emulated().encode(given, raw, layout, k % 4, one=one)
        assert found.tolist() == known.encode(text).tolist(), (layout.room, k % 4, text)
    assert min(ways.values()) > 30, ways


@pytest.mark.parametrize("name", each(FAMILIES))
def test_ids_of_mixed_texts_at_every_edge_of_the_buffers(name: str) -> None:
    for style in ("code", "prose", "CJK"):
        text = segment(name, styled(style, 3, 9_000))
        assert text is not None
        for size in (1, 31, 63, 64, 65, 700, 2047, 2048, 2049, 4095, 4096, 5000):
            part = text.encode()[:size].decode(errors="ignore")
            if not part:
                continue
            layout = layout_for(room_for(len(part.encode())))
            found = emulated().encode(tables(name), part.encode(), layout, size % 4, one=layout.room == BRIEF)
            assert found.tolist() == reference(name).encode(part).tolist(), (style, size)


def test_a_long_text_has_blocks_for_all_of_it() -> None:
    text = segment("qwen3", corpus(11, 60_000))
    assert text is not None
    want = reference("qwen3").encode(text)
    for shape in (SMALL, LARGE):
        found = emulated().encode(tables("qwen3"), text.encode(), Layout.of(1 << 17, shape))
        assert np.array_equal(found, want), shape


@pytest.mark.parametrize("name", each(("llama3_1", "gpt_oss")))
def test_units_of_all_sizes_in_one_text(name: str) -> None:
    """Rows of one character or word in one piece: a warp's units, a block's, and such as several blocks would take."""
    rng = random.Random(name)
    parts = ["\u00b7" * 1500, "\u00b6" * 240, ".::" * 62, "\uff0f" * 1900, "?," * 1400, "|" * 1300, "/" * 33, "*" * 31]
    text = "".join(rng.choices(parts, k=14)) + "\u044b\u045fN" * 1400 + "".join(rng.choices(parts, k=6))
    layout = Layout.of(1 << 17, SMALL if name == "llama3_1" else LARGE)
    found = emulated().encode(tables(name), text.encode(), layout)
    assert np.array_equal(found, reference(name).encode(text))


def test_every_kernel_has_the_shared_memory_that_all_devices_give() -> None:
    """99 KB a block on 8.6, 8.9 and 12.0 (CUDA C++ Programming Guide, compute capabilities)."""
    numbers = np.array([emulated().library.tt_number(k) for k in range(10)], np.uint32)
    needed = {name: Sizes.of(numbers).shared(name) for name in NAMES}
    assert max(needed.values()) <= 99 << 10, needed


def test_segments_in_one_launch() -> None:
    parts = [corpus(k, 150) for k in range(5)]
    known = [reference("gpt2_tiktoken").encode(part).tolist() for part in parts]
    text = bytes([BREAK_BYTE]).join(part.encode() for part in parts)
    want = [i for ids in known for i in (*ids, BREAK_ID)][:-1]
    for one in (False, True):
        assert emulated().encode(tables("gpt2_tiktoken"), text, layout_for(BRIEF), one=one).tolist() == want


def test_long_pieces_of_small_random_vocabularies() -> None:
    """Windows that do not join, units whose ends move, rules that dip; beside a BPE that tries every merge."""
    rng = random.Random("brief")
    splits = splits_of_pattern("[^ ]+| ", Probe(CACHE, FANCY))
    for k in range(16):
        ranks = random_ranks(rng, rng.randint(3, 60))
        if k % 2:
            ranks = shuffled(rng, ranks)
        given = Tables(*_parts(splits, vocabulary_of_ranks(Ranks("test", "", {}, ranks))))
        merges = rank_merges(ranks)
        for size in (40, 64, 100, 300, 1500, *([2100] if k < 4 else [])):
            text = repetitive(rng, ranks, size)
            layout = layout_for(BRIEF) if size < BRIEF else Layout.of(4096, LARGE if k % 4 < 2 else SMALL)
            found = emulated().encode(given, text, layout, k % 4, one=size < BRIEF)
            want = [i for piece in re.findall(rb"[^ ]+|.", text) for i in plain(piece, ranks, merges)]
            assert found.tolist() == want, (text, ranks)


PLANTS = {
    "no barrier before the merged tokens are put in a row": (
        "brief.cuh",
        "    __syncthreads();\n    const u32 total",
        "    const u32 total",
    ),
    "a barrier that half of the threads pass by": (
        "brief.cuh",
        "    find_longs(t, w);\n    __syncthreads();",
        "    find_longs(t, w);\n    if (tid & 1) __syncthreads();",
    ),
    "shared memory that is too small": (
        "kernels.cu",
        "sizeof(BriefSpace<Brief>),",
        "sizeof(BriefSpace<Brief>) - 8192,",
    ),
}
_TRY = """
import sys
from pathlib import Path
from tests.support.gpu import hostile, reference, tables
from toktier.gpu.chain import BRIEF, layout_for
from tools.kernels import emulated, host

host.SOURCES = Path(sys.argv[1])
found = emulated.emulator(host.SOURCES)
for k, text in enumerate(hostile("gpt2_tiktoken", 60, "plants")):
    raw = text.encode()
    if len(raw) >= BRIEF:
        continue
    ids = found.encode(tables("gpt2_tiktoken"), raw, layout_for(BRIEF), k % 4, one=True)
    assert ids.tolist() == reference("gpt2_tiktoken").encode(text).tolist(), "other IDs"
"""


@pytest.mark.parametrize("plant", PLANTS)
def test_planted_faults_are_noticed(tmp_path: Path, plant: str) -> None:
    sources = tmp_path / "cuda_src"
    shutil.copytree(SOURCES, sources)
    file, right, wrong = PLANTS[plant]
    text = (sources / file).read_text()
    assert text.count(right) == 1
    (sources / file).write_text(text.replace(right, wrong))
    done = subprocess.run([sys.executable, "-c", _TRY, sources], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    told = ("other IDs", "waits for threads that do not come", "written behind its shared memory", "another operation")
    crashed = done.returncode == -signal.SIGSEGV  # tokens that are not there have been counted
    assert crashed or any(words in done.stderr for words in told), done.stderr[-2000:]
