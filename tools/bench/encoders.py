"""One engine of the library account, in a process of its own: ``python encoders.py ENGINE TOKENIZER``.

This file is run by the Pythons of several environments (`tools.bench.environments`), so it imports nothing of TokTier
but for TokTier's own engine, and no package before it is asked for its engine. TOKENIZER is a ``tokenizer.json``, for
TokTier's own engine the folder of the tokenizer.

A line of JSON on standard input, then as many bytes of text as its ``bytes`` says; a line of JSON in answer:

- ``{"do": "base"}``, with the text of a session. A session is begun with it.
- ``{"do": "reset"}``: a session is begun anew with the same text.
- ``{"do": "change", "steps": [[s, e, n], ...]}``, one after the other: the characters from ``s`` to ``e`` become the
  next ``n`` of the text that follows. Answers with a list: nanoseconds of each, from the new text (or what is new of
  it) to the IDs, and the characters that were looked at for that (null: not known).
- ``{"do": "ids"}``: the digest and the number of the IDs. TokTier's own engine also compares them with a full encode.
"""

from __future__ import annotations

import array
import dataclasses
import gc
import hashlib
import importlib
import importlib.metadata
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SEGMENT_CACHE = 512 << 20
"""Bytes that fastokens may keep: more than it needs for the longest text."""


class Full:
    """An engine without sessions: it encodes the whole text again. It has seen the session's text before."""

    def __init__(self, encode: Callable[[str], Any], version: str, warm: bool = True) -> None:
        self.version = version
        self.note = ""
        self._encode, self._warm = encode, warm
        self._base = self._text = ""
        self._ids: Any = ()

    def base(self, text: str) -> None:
        self._base = self._text = text
        if self._warm:
            self._encode(text)

    def reset(self) -> None:
        self._text = self._base

    def change(self, start: int, end: int, new: str) -> tuple[int, int | None]:
        self._text = text = self._text[:start] + new + self._text[end:]
        clock = time.perf_counter_ns()
        self._ids = self._encode(text)
        return time.perf_counter_ns() - clock, len(text)

    def ids(self) -> bytes:
        return packed(self._ids)


class Own:
    """TokTier's rope, with the thresholds that it is served with: measured here and now, as at the start of a server.
    A text below `Shortcuts.whole_below` is encoded anew, as the tier does."""

    def __init__(self, folder: str) -> None:
        from toktier.measured import measure
        from toktier.rope import Rope
        from toktier.tokenizer import EMBEDDED, FrozenTokenizer, embedded

        cache = Path(os.environ["TOKTIER_BENCH_CACHE"])
        source = Path(folder)
        own = embedded(cache_dir=cache) if source == EMBEDDED else FrozenTokenizer.load(source, cache_dir=cache)
        own = dataclasses.replace(own, shortcuts=measure(own.encoder))
        encoder = own.encoder
        self.version = ""
        self.note = ""
        self._tokenizer = own
        self._whole_below = own.shortcuts.whole_below
        self._new: Callable[[], Any] = lambda: Rope(encoder)
        self._base = ""
        self._rope = self._new()

    def base(self, text: str) -> None:
        self._base = text
        self.reset()

    def reset(self) -> None:
        self._rope = self._new()
        self._rope.set(self._base)
        # A session in use has spare room; the first append after a load makes it.
        self._rope.append("x")
        self._rope.truncate(len(self._base))

    def change(self, start: int, end: int, new: str) -> tuple[int, int | None]:
        rope, size = self._rope, self._rope.chars
        clock = time.perf_counter_ns()
        if size - (end - start) + len(new) < self._whole_below:
            text = rope.text()
            tail = new + text[end:]
            splice = rope.anew(text[:start] + tail, start, [tail] if tail else [])
        elif start == size:
            splice = rope.append(new)
        elif not new and end == size:
            splice = rope.truncate(start)
        elif end == size:
            splice = rope.follow(start, [new] if new else [])
        else:
            splice = rope.replace(start, end, new)
        view = rope.ids
        first = splice.first_changed
        took = time.perf_counter_ns() - clock
        assert 0 <= first <= len(view)
        return took, splice.scanned

    def ids(self) -> bytes:
        found = packed(self._rope.ids)
        assert found == packed(self._tokenizer.window.encode(self._rope.text())), "the rope and a full encode differ"
        return found


class Installed:
    """The sessions of the package toktier 0.3.0, in memory, by its documented interface."""

    def __init__(self, file: str) -> None:
        # By name: where this runs, it is another package than the one that this checkout is.
        toktier: Any = importlib.import_module("toktier")
        artifacts: Any = importlib.import_module("toktier.artifacts")
        self._folder = tempfile.TemporaryDirectory(prefix="toktier-bench-")
        # Its cache, staged with the file as on a host without a network.
        config = toktier.Config.resolve(home=Path(self._folder.name), offline=True)
        digest, size = artifacts.sha256_file(Path(file))
        entry = artifacts.ArtifactEntry(
            "qwen3_8b", "Qwen/Qwen3-8B", "0" * 40, (artifacts.ArtifactFile("tokenizer.json", digest, size),)
        )
        place = artifacts.artifact_cache_dir(config) / entry.directory_name
        place.mkdir(parents=True)
        shutil.copy(file, place / "tokenizer.json")
        manifest = artifacts.ArtifactManifest({"qwen3_8b": entry})
        self._tokenizer = toktier.load("qwen3_8b", device="cpu", manifest=manifest, config=config)
        self.version = importlib.metadata.version("toktier")
        route = self._tokenizer.explain(summary=True).get("planned_backend")
        self.note = "" if route == "fast_cpu" else f"not its fast path: {route}"
        self._base = self._text = ""
        self._open: Any = None
        self._session: Any = None
        self._encoded: Any = None

    def base(self, text: str) -> None:
        self._base = text
        self.reset()

    def reset(self) -> None:
        self._text, self._encoded = self._base, None
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None

    def _begin(self) -> None:
        """A session is begun when it is first appended to, as that takes long."""
        self._open = self._tokenizer.session()
        self._session = self._open.__enter__()
        # The first append to a session takes some times as long as the ones after it.
        self._session.append_patch(self._base[:-1])
        self._session.append_patch(self._base[-1:])

    def change(self, start: int, end: int, new: str) -> tuple[int, int | None]:
        appends = start == len(self._text) and self._encoded is None
        self._text = text = self._text[:start] + new + self._text[end:]
        if appends:
            if self._open is None:
                self._begin()
            clock = time.perf_counter_ns()
            self._session.append_patch(new)
            return time.perf_counter_ns() - clock, None
        # A session only appends. For another text there is `encode`; with the session's name it takes as long as HF.
        clock = time.perf_counter_ns()
        self._encoded = self._tokenizer.encode(text, lookup="off")
        return time.perf_counter_ns() - clock, None

    def ids(self) -> bytes:
        return packed(self._session.ids if self._encoded is None else self._encoded.ids)


def hf(file: str) -> Full:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(file)
    version = importlib.metadata.version("tokenizers")
    return Full(lambda text: tokenizer.encode(text, add_special_tokens=False).ids, version, warm=False)


def fastokens(file: str, cache: int) -> Full:
    import fastokens

    tokenizer = fastokens.Tokenizer.from_json_str(Path(file).read_text(encoding="utf-8"))
    tokenizer.enable_segment_cache(cache)
    return Full(lambda text: tokenizer.encode_batch_flat([text])[0], importlib.metadata.version("fastokens"))


def gigatoken_warm(file: str) -> Full:
    gigatoken: Any = importlib.import_module("gigatoken")
    tokenizer = gigatoken.Tokenizer(file)
    return Full(tokenizer.encode, importlib.metadata.version("gigatoken"))


ENGINES: dict[str, Callable[[str], Any]] = {
    "toktier-proxy": Own,
    "hf-full": hf,
    "fastokens-full": lambda file: fastokens(file, 0),
    "fastokens-full, segment cache": lambda file: fastokens(file, SEGMENT_CACHE),
    "gigatoken-full, warm": gigatoken_warm,
    "toktier-0.3.0": Installed,
}


def packed(ids: Any) -> bytes:
    """IDs, in whatever an engine gives them, as 32-bit words."""
    if isinstance(ids, (bytes, bytearray)):
        return bytes(ids)
    if hasattr(ids, "astype"):
        made: bytes = ids.astype("<u4").tobytes()
        return made
    return array.array("I", ids).tobytes()


def answer(engine: Any, question: dict[str, Any], text: str) -> dict[str, Any]:
    """One line of the protocol."""
    if question["do"] == "base":
        engine.base(text)
    elif question["do"] == "reset":
        engine.reset()
    elif question["do"] == "change":
        at, steps = 0, []
        for start, end, size in question["steps"]:
            steps.append((start, end, text[at : at + size]))
            at += size
        return {"changed": [engine.change(*step) for step in steps]}
    else:
        ids = engine.ids()
        return {"ids": hashlib.blake2b(ids, digest_size=8).hexdigest(), "count": len(ids) // 4}
    return {}


def main() -> None:
    name, file = sys.argv[1:]
    with os.fdopen(os.dup(0), "rb") as questions, os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # what an engine prints is no answer

        def say(value: dict[str, Any]) -> None:
            answers.write(json.dumps(value).encode() + b"\n")
            answers.flush()

        try:
            engine = ENGINES[name](file)
        except Exception as error:
            say({"error": f"{type(error).__name__}: {error}"[:300]})
            return
        gc.collect()
        gc.disable()
        say({"version": engine.version, "note": engine.note})
        for line in questions:
            question = json.loads(line)
            text = questions.read(question.get("bytes", 0)).decode()
            try:
                say(answer(engine, question, text))
            except BaseException as error:  # a panic of native code is no Exception
                say({"error": f"{type(error).__name__}: {error}"[:300]})


if __name__ == "__main__":
    main()
