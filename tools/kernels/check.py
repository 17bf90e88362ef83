"""On a machine with a GPU: the kernels' IDs beside the reference's, on seeded text and on random strings.

``python -m tools.kernels.check TOKENIZER... --megabytes 200 --strings 1000000`` prints a line a tokenizer and exits 1
where there was a difference; ``--plant`` damages the tables first, once a way, and exits 1 where that is not noticed.
Processes make text and the reference's IDs; this one has the device.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from toktier import files
from toktier.engines.base import Reference
from toktier.engines.reference import ReferenceEngine
from toktier.engines.tiktoken_engine import TiktokenEngine
from toktier.errors import CannotEncode
from toktier.gpu import fatbin
from toktier.gpu.launcher import Device, Encoder, KernelFault
from toktier.gpu.tables import Tables, tables_of
from toktier.ids import Ids
from toktier.reference_of import reference_of
from tools.bench.texts import corpus, styled, worst
from tools.kernels.seams import seam, whole_only

SIDECARS = {"gpt2_tiktoken": "r50k_base", "o200k_tiktoken": "o200k_base", "qwen_tiktoken": "qwen"}
"""For folders without a sidecar: the one of ``conf/tiktoken``."""
STYLES = (
    "mixed",
    "mixed",
    "code",
    "prose",
    "logs",
    "CJK",
    "base64",
    "one letter",
    "spaces",
    "digits",
    "newlines",
    "runs",
)
NATURAL = ("mixed", "code", "prose", "logs", "CJK")
CAPPED = 200_000
SIZES = (900, 5_000, 40_000, 200_000, 1_000_000, 3_000_000, 6_000_000)
PER_JOB = 10_000
ALONE = 10
"""Of so many strings one goes alone as well."""
_SEPARATOR = "\ue000"


@dataclass(frozen=True)
class Job:
    folder: Path
    seed: int
    size: int
    """Characters of a text; 0: `PER_JOB` random strings."""


def read(folder: Path) -> files.TokenizerFiles:
    name = SIDECARS.get(folder.name)
    here = Path(__file__).resolve().parents[2] / "conf" / "tiktoken"
    return files.read(folder, sidecar=here / f"{name}.tiktoken.json" if name else None)


@cache
def _reference(folder: Path) -> Reference:
    return reference_of(read(folder))[0]


@cache
def _literal_ids(folder: Path) -> npt.NDArray[np.uint32]:
    engine = _reference(folder)
    if isinstance(engine, TiktokenEngine):
        return np.array(sorted(engine.ranks.special_tokens.values()), np.uint32)
    assert isinstance(engine, ReferenceEngine)
    return np.array(sorted(engine.tokenizer.get_added_tokens_decoder()), np.uint32)


@cache
def _literals(folder: Path) -> list[str]:
    engine = _reference(folder)
    if isinstance(engine, TiktokenEngine):
        return sorted(engine.ranks.special_tokens)
    assert isinstance(engine, ReferenceEngine)
    return sorted(token.content for token in engine.tokenizer.get_added_tokens_decoder().values() if token.content)


def style_of(job: Job) -> tuple[str, int, random.Random]:
    """The style of its text, the characters that it has, and what else is drawn of. Worst cases have no more than
    `CAPPED`, which references can take."""
    rng = random.Random(f"style {job.seed}")
    style = rng.choice(STYLES)
    return style, job.size if style in NATURAL else min(job.size, CAPPED), rng


def text_of(job: Job) -> str:
    """Seeded text of one of `STYLES`."""
    style, size, rng = style_of(job)
    if style == "mixed":
        return corpus(job.seed, size)
    if style in NATURAL:
        return styled(style, job.seed, size)
    if style == "runs":  # runs of two or three characters in turn: what windows cannot join
        part = "".join(char * rng.randint(1, 130) for char in rng.sample("=-*#/ \n\tab", rng.choice((2, 2, 3))))
        return (part * (size // len(part) + 1))[:size]
    return worst(style, job.seed, size, "")


@cache
def _alphabet(folder: Path) -> npt.NDArray[np.uint32]:
    """Up to 40 code points of each class of the tokenizer."""
    tables = tables_of_folder(folder)
    classes = tables.arrays["page_classes"].reshape(-1, 128)[tables.arrays["pages"]].ravel()
    points = np.arange(len(classes))
    usable = ((points < 0xD800) | (points > 0xDFFF)) & (points != ord(_SEPARATOR))
    rng = np.random.default_rng(5)
    rows = []
    for cls in range(tables.numbers["classes"]):
        members = points[usable & (classes == cls)]
        chosen = np.concatenate([members[:20], rng.choice(members, 20)])
        rows.append(np.resize(chosen, 40))
    return np.array(rows, np.uint32)


def strings_of(job: Job) -> list[str]:
    """Random strings over the tokenizer's classes, a third of them with runs; some as `seam` makes them."""
    rng = np.random.default_rng(job.seed)
    alphabet = _alphabet(job.folder)
    lengths = rng.choice([1, 2, 3, 5, 8, 13, 30, 80], PER_JOB, p=[0.05, 0.1, 0.15, 0.2, 0.2, 0.15, 0.1, 0.05])
    total = int(lengths.sum()) + PER_JOB
    classes = rng.integers(0, len(alphabet), total)
    chars = alphabet[classes, rng.integers(0, alphabet.shape[1], total)]
    common = np.array(list(map(ord, "aeST '\n.1 \r,\u4e2d\u00e9/=-_sdtlv")), np.uint32)
    chars = np.where(rng.random(total) < 0.4, rng.choice(common, total), chars)
    again = rng.random(total) < np.repeat(rng.choice([0.0, 0.0, 0.7], PER_JOB), lengths + 1)
    sources = np.maximum.accumulate(np.where(again, 0, np.arange(total)))
    chars = chars[sources].astype("<u4")
    chars[np.cumsum(lengths + 1) - 1] = ord(_SEPARATOR)
    found = chars.tobytes().decode("utf-32-le").split(_SEPARATOR)[:-1]
    if tokens := _whole_only(job.folder):
        own = random.Random(job.seed)
        found[::20] = [seam(tokens, own) for _ in found[::20]]
    return found


@cache
def _whole_only(folder: Path) -> list[str]:
    return whole_only(tables_of_folder(folder))


def answer(job: Job) -> list[tuple[bytes, Ids]]:
    """Segments and the reference's IDs; those in which a literal was found are left out."""
    engine = _reference(job.folder)
    normalizer = engine.tokenizer.normalizer if isinstance(engine, ReferenceEngine) else None
    texts = [text_of(job)] if job.size else strings_of(job)
    if normalizer is not None:
        texts = [normalizer.normalize_str(text) for text in texts]
    try:
        ids, counts = engine.encode_batch(texts)
    except CannotEncode:
        return []
    edges = np.cumsum([0, *counts.tolist()])
    if job.size:  # a file may give a literal's ID to an ordinary token as well: few texts, so they are searched
        kept = [text != "" and not any(literal in text for literal in _literals(job.folder)) for text in texts]
    else:
        found = np.concatenate([[0], np.cumsum(np.isin(ids, _literal_ids(job.folder)))])
        kept = [text != "" and found[a] == found[b] for text, a, b in zip(texts, edges, edges[1:], strict=False)]
    rows = zip(texts, edges, edges[1:], kept, strict=False)
    return [(text.encode(), ids[a:b]) for text, a, b, keep in rows if keep]


@cache
def tables_of_folder(folder: Path) -> Tables:
    """Kept in ``var``."""
    return tables_of(read(folder), cache_dir=Path("var") / "gpu-check")


def jobs(folder: Path, megabytes: float, strings: int, seed: int) -> Iterator[Job]:
    rng = random.Random(f"jobs {seed}")
    chars = 0.0
    while chars < megabytes * 1e6:
        job = Job(folder, rng.getrandbits(40), rng.choice(SIZES))
        chars += style_of(job)[1]
        yield job
    for _ in range(-(-strings // PER_JOB)):
        yield Job(folder, rng.getrandbits(40), 0)


@dataclass
class Told:
    """What was compared."""

    bytes: int = 0
    strings: int = 0
    tokens: int = 0
    differences: int = 0
    first: str = ""
    alone: int = 0
    """Strings that went alone as well."""


def compare(encoder: Encoder, answers: list[tuple[bytes, Ids]], told: Told) -> None:
    """One text goes alone, several in one launch; some of these alone as well: short texts go other ways."""
    if not answers:
        return
    counts = None
    try:
        if len(answers) == 1:
            got = encoder.encode(answers[0][0])
        else:
            got, counts = encoder.encode_batch([segment for segment, _ in answers])
    except KernelFault as fault:
        told.differences += 1
        told.first = told.first or str(fault)
        return
    want = np.concatenate([ids for _, ids in answers])
    told.bytes += sum(len(segment) for segment, _ in answers)
    told.strings += len(answers) if counts is not None else 0
    told.tokens += len(want)
    sizes = np.array([len(ids) for _, ids in answers])
    for segment, ids in answers[::ALONE] if counts is not None else ():
        told.alone += 1
        if not np.array_equal(one := encoder.encode(segment), ids):
            told.differences += 1
            told.first = told.first or f"alone: {one[:6]} for {ids[:6]}: {segment[:200]!r}"
    if np.array_equal(got, want) and (counts is None or np.array_equal(counts, sizes)):
        return
    told.differences += 1
    if not told.first:
        same = min(len(got), len(want))
        parts = np.flatnonzero(got[:same] != want[:same])
        at = int(parts[0]) if len(parts) else same
        which = int(np.searchsorted(np.cumsum(sizes), at, side="right"))
        told.first = (
            f"token {at} of {len(want)}: {got[at : at + 6]} for {want[at : at + 6]}; segment {which} of {len(answers)}"
        )
        told.first += f": {answers[min(which, len(answers) - 1)][0][:200]!r}"


def run(encoder: Encoder, work: Iterator[Job], pool: multiprocessing.pool.Pool, stop: bool = False) -> Told:
    """Compares every job; with ``stop``, up to the first difference."""
    told = Told()
    for answers in pool.imap_unordered(answer, work):
        compare(encoder, answers, told)
        if stop and told.differences:
            break
    return told


def _damaged(tables: Tables, name: str, change: Callable[[npt.NDArray[np.void]], None]) -> Tables:
    array = tables.arrays[name].copy()
    change(array)
    return replace(tables, arrays={**tables.arrays, name: array})


def plants(tables: Tables) -> dict[str, Tables]:
    """The tables with one thing wrong in each."""
    stride = tables.numbers["stride"]

    def other_class(array: npt.NDArray[np.void]) -> None:
        array[ord("a")] = array[ord(" ")]

    def emission(array: npt.NDArray[np.void]) -> None:
        array[stride + int(tables.arrays["blocks"][ord(" ")])] ^= 1 << 19

    def sync_state(array: npt.NDArray[np.void]) -> None:
        array[int(tables.arrays["blocks"][ord(" ")])] = stride * 2

    def piece(array: npt.NDArray[np.void]) -> None:
        array["id"][array["length"] == 3] += 1

    def long_piece(array: npt.NDArray[np.void]) -> None:
        array["id"][array["length"] > 0] ^= 1

    def pair_rank(array: npt.NDArray[np.void]) -> None:
        used = np.flatnonzero(array["rank"] != 0xFFFFFFFF)
        array["rank"][used] = array["rank"][used] ^ 0x3F

    def byte(array: npt.NDArray[np.void]) -> None:
        array[0xE4] = array[0xE5]

    return {
        "class of a": _damaged(tables, "blocks", other_class),
        "emission": _damaged(tables, "moves", emission),
        "synchronised state": _damaged(tables, "sync", sync_state),
        "pieces of 3 bytes": _damaged(tables, "slots_8", piece),
        "pieces of 9 to 16 bytes": _damaged(tables, "slots_16", long_piece),
        "order of merges": _damaged(tables, "pairs", pair_rank),
        "token of a byte": _damaged(tables, "of_byte", byte),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.kernels.check", description=__doc__)
    parser.add_argument("tokenizers", type=Path, nargs="+", help="folders")
    parser.add_argument("--megabytes", type=float, default=20.0, help="characters of text for each, in millions")
    parser.add_argument("--strings", type=int, default=100_000, help="random strings for each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plant", action="store_true", help="damage the tables and expect differences")
    parser.add_argument("--compile", type=int, help="compile the checkout's kernels for this architecture (90: H200)")
    arguments = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    kernels = fatbin.compiled(arguments.compile) if arguments.compile else fatbin.load()
    missed = False
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        device = Device(kernels)
        print(device.name, flush=True)
        for folder in arguments.tokenizers:
            tables = tables_of_folder(folder)
            given = plants(tables) if arguments.plant else {"": tables}
            for plant, damaged in given.items():
                started = time.perf_counter()
                encoder = Encoder(device, damaged)
                work = jobs(folder, arguments.megabytes, arguments.strings, arguments.seed)
                told = run(encoder, work, pool, arguments.plant)
                encoder.close()
                missed |= (told.differences == 0) == bool(plant)
                print(
                    f"{folder.name} {plant or 'as it is'}: {told.differences} differences in {told.bytes:,} bytes, "
                    f"{told.strings:,} strings ({told.alone:,} alone), {told.tokens:,} tokens; "
                    f"{time.perf_counter() - started:.1f} s {told.first}",
                    flush=True,
                )
    sys.exit(missed)


if __name__ == "__main__":
    main()
