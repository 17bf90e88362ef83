"""On a machine with a GPU: which text of a size takes the kernels longest.

``python -m tools.kernels.worst TOKENIZER... --seconds 20 --json FILE`` tries runs of one character of each class, runs
of several in turn, units that the vocabulary repeats (their tokens lie as the beginning of the piece says, however far
back that is) and random strings of few characters; then it changes what was slowest, for as long as it may. A line for
each of the slowest, with the time host to host; exits 1 where one is above ``--limit-ms``.

`--verify` encodes the slowest again, shorter, beside the reference.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from toktier.gpu import fatbin
from toktier.gpu.launcher import Bucket, Device, Encoder, KernelFault
from toktier.gpu.tables import Tables
from tools.kernels.check import _reference, tables_of_folder

SIZE = 1 << 20
COMMON = " \n\t\r=-*#_.,;:()/\\'\"01aAbéя中的あก\u00a0\u3000😀"
RUNS = (
    (1, 1),
    (2, 1),
    (3, 2),
    (7, 5),
    (31, 33),
    (64, 64),
    (65, 63),
    (70, 70),
    (99, 77),
    (255, 257),
    (1000, 999),
    (9999, 9998),
)
SHOWN = 12


@dataclass(frozen=True)
class Recipe:
    """A text: ``prefix``, then each part as often as its count says, again and again; or random parts."""

    parts: tuple[str, ...]
    counts: tuple[int, ...]
    prefix: str = ""
    seed: int = -1
    """From 0 on: parts are drawn at random."""

    def text(self, size: int) -> bytes:
        """Of ``size`` bytes or a little less."""
        if self.seed >= 0:
            rng = random.Random(self.seed)
            longest = max(len(part.encode()) * count for part, count in zip(self.parts, self.counts, strict=True))
            rows = list(zip(self.parts, self.counts, strict=True))
            drawn = rng.choices(rows, k=min(size, 8 * size // longest + 8))
            whole = self.prefix + "".join(part * count for part, count in drawn)
        else:
            row = "".join(part * count for part, count in zip(self.parts, self.counts, strict=True))
            whole = self.prefix + row * (size // len(row.encode()) + 1)
        return whole.encode()[:size].decode("utf-8", "ignore").encode()

    def __str__(self) -> str:
        rows = " ".join(f"{part!r}*{count}" for part, count in zip(self.parts, self.counts, strict=True))
        return f"{self.prefix!r} + {'random of ' if self.seed >= 0 else ''}{rows}"[:160]


@dataclass(frozen=True)
class Timed:
    tokenizer: str
    recipe: str
    bytes: int
    tokens: int
    ms: float
    """Host to host from page-locked memory, the lesser of two; infinite where the kernels gave up."""
    passes: int
    """Over what windows left open."""


def characters(tables: Tables, rng: random.Random) -> list[str]:
    """Some of each class, and common ones."""
    classes = tables.arrays["page_classes"].reshape(-1, 128)[tables.arrays["pages"]].ravel()
    found = list(COMMON)
    for cls in range(tables.numbers["classes"]):
        members = [int(point) for point in np.flatnonzero(classes == cls) if not 0xD800 <= point <= 0xDFFF]
        found += [chr(point) for point in (members[:3] + rng.sample(members, min(3, len(members))))]
    return list(dict.fromkeys(found))


def units(texts: Sequence[bytes]) -> list[str]:
    """What tokens of at least four bytes consist of by repetition, longest tokens first."""
    found: dict[str, int] = {}
    for text in texts:
        period = (text + text).find(text, 1)
        if len(text) < 4 or period * 2 > len(text):
            continue
        try:
            unit = text[:period].decode()
        except UnicodeDecodeError:
            continue
        found[unit] = max(found.get(unit, 0), len(text))
    return sorted(found, key=lambda unit: -found[unit])


def recipes(tables: Tables, vocabulary: Sequence[bytes], rng: random.Random) -> Iterator[Recipe]:
    """Those to begin with."""
    chars, repeated = characters(tables, rng), units(vocabulary)
    yield from (Recipe((char,), (1,)) for char in chars)
    for unit in repeated[:60]:
        yield Recipe((unit,), (1,), rng.choice(repeated) * rng.randint(1, 5))
    for runs in RUNS:
        for _ in range(8):
            yield Recipe((rng.choice(repeated), rng.choice(repeated)), runs)
            yield Recipe((rng.choice(chars), rng.choice(chars)), runs)
    for pair in ((" ", "\n"), ("=", "-"), (")", ";"), ("\r", "\n"), ("-", "="), ("*", "/"), ("\n", "\t")):
        yield from (Recipe(pair, runs) for runs in RUNS)
    for k in range(60):
        some = tuple(rng.sample(chars + repeated, rng.choice((2, 3, 5, 20))))
        most = rng.choice((1, 3, 60, 130, 3000))
        yield Recipe(some, tuple(rng.randint(1, most) for _ in some), seed=k)
    for k in range(30):
        some = tuple(token.decode("utf-8", "ignore") or "a" for token in rng.sample(list(vocabulary), 30))
        yield Recipe(some, (1,) * len(some), seed=k)
    marks = [
        text for token in vocabulary if (text := token.decode("utf-8", "ignore")) and not re.search(r"[\w\s]", text)
    ]
    for k in range(30):  # long ways of a change beside text of many different merges, all in one piece
        some = (
            rng.choice(["-=", "=-", *filter(marks.__contains__, repeated)]),
            *rng.sample(marks, min(300, len(marks))),
        )
        yield Recipe(some, (rng.choice((100, 700, 4000)), *(1,) * (len(some) - 1)), seed=k)


def changed(recipe: Recipe, others: Sequence[str], rng: random.Random) -> Recipe:
    """One thing about it is another."""
    parts, counts = list(recipe.parts), list(recipe.counts)
    k = rng.randrange(len(parts))
    kind = rng.randrange(6)
    if kind == 0:
        parts[k] = rng.choice(others)
    elif kind == 1:
        counts[k] = max(1, counts[k] + rng.choice((-3, -2, -1, 1, 2, 3)))
    elif kind == 2:
        counts[k] = max(1, min(200_000, int(counts[k] * rng.choice((0.25, 0.5, 2, 4)))))
    elif kind == 3:
        parts.insert(k, rng.choice(others))
        counts.insert(k, rng.choice((1, 2, 64, 101)))
    elif kind == 4 and len(parts) > 1:
        del parts[k], counts[k]
    else:
        return replace(recipe, prefix="".join(rng.choices(others, k=rng.randint(0, 3))))
    return replace(recipe, parts=tuple(parts), counts=tuple(counts))


def time_of(encoder: Encoder, name: str, recipe: Recipe, size: int) -> Timed:
    text = recipe.text(size)
    bucket = encoder.bucket(len(text))
    bucket.stage(text)
    ms = min(_once(bucket) for _ in range(2))
    told = bucket.told[0]
    return Timed(name, str(recipe), len(text), int(told["total"]), round(ms, 3), int(told["passes"]))


def _once(bucket: Bucket) -> float:
    started = time.perf_counter_ns()
    bucket.start()
    try:
        bucket.wait()
    except KernelFault:
        return float("inf")
    return (time.perf_counter_ns() - started) / 1e6


def search(encoder: Encoder, folder: Path, seconds: float, size: int, seed: int) -> list[tuple[Timed, Recipe]]:
    """Slowest first. What the kernels give up on comes before all."""
    rng = random.Random(f"worst {seed}")
    tables = tables_of_folder(folder)
    vocabulary = texts_of(tables)
    others = characters(tables, rng) + units(vocabulary)[:40]
    ended = time.perf_counter() + seconds
    found: list[tuple[Timed, Recipe]] = []
    seen: set[Recipe] = set()

    def attempt(recipe: Recipe) -> None:
        if recipe not in seen and time.perf_counter() < ended:
            seen.add(recipe)
            found.append((time_of(encoder, folder.name, recipe, size), recipe))

    with encoder.device.current():
        for recipe in recipes(tables, vocabulary, rng):
            attempt(recipe)
        while time.perf_counter() < ended:
            found.sort(key=lambda row: -row[0].ms)
            for _, recipe in found[:6]:
                attempt(changed(recipe, others, rng))
    return sorted(found, key=lambda row: -row[0].ms)


def texts_of(tables: Tables) -> list[bytes]:
    """The vocabulary's pieces, out of the tables."""
    found = []
    for name, words in (("slots_8", ("key",)), ("slots_16", ("low", "high"))):
        slots = tables.arrays[name]
        found += [
            b"".join(int(slot[word]).to_bytes(8, "little") for word in words)[: slot["length"]]
            for slot in slots[slots["length"] > 0]
        ]
    raw = tables.arrays["long_text"].tobytes()
    slots = tables.arrays["slots_long"]
    found += [raw[slot["offset"] : slot["offset"] + slot["length"]] for slot in slots[slots["length"] > 0]]
    return sorted(found)


def wrong(encoder: Encoder, folder: Path, recipe: Recipe, size: int) -> bool:
    """Whether the device's IDs are others than the reference's."""
    text = recipe.text(size)
    try:
        got = encoder.encode(text)
    except KernelFault:
        return False  # nothing is told that is wrong
    return not np.array_equal(got, _reference(folder).encode(text.decode()))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.kernels.worst", description=__doc__)
    parser.add_argument("tokenizers", type=Path, nargs="+", help="folders")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each")
    parser.add_argument("--bytes", type=int, default=SIZE)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-ms", type=float, default=2.0)
    parser.add_argument(
        "--verify", type=int, default=0, help="how many of the slowest are encoded by the reference too"
    )
    parser.add_argument("--json", type=Path, help="where rows of the slowest go")
    arguments = parser.parse_args()
    device = Device(fatbin.load())
    rows: list[Timed] = []
    failed = False
    for folder in arguments.tokenizers:
        encoder = Encoder(device, tables_of_folder(folder))
        found = search(encoder, folder, arguments.seconds, arguments.bytes, arguments.seed)
        rows += [timed for timed, _ in found[:SHOWN]]
        failed |= found[0][0].ms > arguments.limit_ms
        print(f"{folder.name}: {len(found)} texts", flush=True)
        for timed, _ in found[:SHOWN]:
            print(f"  {timed.ms:8.3f} ms, {timed.passes} passes, {timed.tokens:,} tokens: {timed.recipe}", flush=True)
        for _, recipe in found[: arguments.verify]:
            if wrong(encoder, folder, recipe, 60_000):
                failed = True
                print(f"  differs: {recipe}", flush=True)
        encoder.close()
    if arguments.json:
        arguments.json.write_text("[\n" + ",\n".join(json.dumps(asdict(row)) for row in rows) + "\n]\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()
