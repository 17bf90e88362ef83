"""Whether raw ``tokenizer.json`` and the tokenizer object that an engine makes of the same files agree.

vLLM and SGLang call ``AutoTokenizer.from_pretrained(...).encode(text, add_special_tokens=False)``. transformers does
not take ``tokenizer.json`` as it is: it adds tokens of ``tokenizer_config.json``, ``added_tokens.json`` and
``special_tokens_map.json``, may rebuild normalizer and splits from the class that the configuration names, and may
correct known faults. The reference is right only where the outcome is the same, so both encode a probe set, once per
model. A difference means that the model must be served in text mode.

What transformers puts around a text with ``add_special_tokens=True`` may differ as well (it may rebuild the
post-processor from ``add_bos_token``). That is compared apart: only requests that ask for special tokens depend on it.

Invariants:

- transformers runs in a process of its own (`toktier.parity_worker`): it costs seconds and hundreds of MB. The process
  needs the files only, so it runs beside the load; it ends with its `Comparison`, and with this process however that
  ends.
- Only a verdict is kept on disk, under everything that it depends on: the tokenizer's digest (files and tokenizers'
  version), the files that only transformers reads, transformers' version, `REVISION`.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import numpy as np

from toktier import files as sources
from toktier import kept
from toktier.engines.base import Engine
from toktier.errors import UnusableFile
from toktier.files import TokenizerFiles
from toktier.ids import Ids
from toktier.parity_texts import probes
from toktier.postprocessor import SpecialTokens

REVISION = 2
"""Raise it when the texts or the rules change: it voids the verdicts on disk."""
WORKER = Path(__file__).with_name("parity_worker.py")
TIMEOUT_S = 120.0
"""Longest run of the other process; on one idle core it takes about five seconds."""

OTHER_FILES = ("vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "tiktoken.model", "tekken.json")
"""Files that TokTier does not read and transformers may."""


class Outcome(StrEnum):
    """Only `DIFFERENT` says that IDs must not be sent. The last three say that nothing is known."""

    EQUAL = "equal"
    DIFFERENT = "different"
    NOT_INSTALLED = "not_installed"
    NOT_READABLE = "not_readable"
    FAILED = "failed"


@dataclass(frozen=True)
class Parity:
    """``different``: indices into `probes` of the texts whose IDs differ. ``detail`` is for logs: it holds no text."""

    outcome: Outcome
    detail: str
    different: tuple[int, ...] = ()
    special: bool = False
    """Whether the outcome is equal with special tokens, too."""
    from_cache: bool = False
    """Whether an earlier start found it out."""


class Comparison:
    """One comparison: begun when it is made, unless its verdict is kept in ``cache_dir``; over when its block ends.

    Never raises. `stop` may be called from any thread, the rest from one.
    """

    def __init__(
        self, read: TokenizerFiles, digest: str, *, cache_dir: Path | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        """``digest``: the tokenizer's, of `TokenizerFiles.digest`."""
        self._cache_dir = cache_dir
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._stopped = False
        self._known: Parity | None = None
        version = transformers_version()
        if read.sidecar is not None:
            # Engines serve such models through code that comes with the model and is not run here.
            self._known = Parity(Outcome.NOT_READABLE, "transformers does not read rank files")
            return
        if version is None:
            self._known = Parity(Outcome.NOT_INSTALLED, "transformers is not installed here")
            return
        try:
            self._name = f"parity-{_key(read, digest, version)}"
            self._known = _kept(kept.load(cache_dir, self._name))
            if self._known is None:
                self._start(read)
        except (OSError, UnusableFile, ValueError) as error:
            self._known = _failed(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the other process now and remove its files; `result` then says `Outcome.FAILED`, in whichever thread."""
        self._stopped = True
        if self._process is not None:
            self._process.kill()
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
        if self._scratch is not None:
            self._scratch.cleanup()

    def result(self, reference: Engine, special: SpecialTokens | None) -> Parity:
        """The verdict on ``reference`` and on what stands around its IDs, if that is known.

        Blocks until the other process has its answer, or its time is over.
        """
        if self._known is None:
            self._known = self._compare(reference, special)
            if self._known.outcome in (Outcome.EQUAL, Outcome.DIFFERENT):
                known = self._known
                value = {name: getattr(known, name) for name in ("outcome", "detail", "different", "special")}
                kept.store(self._cache_dir, self._name, value)
        return self._known

    def _start(self, read: TokenizerFiles) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="toktier-parity-")
        scratch = Path(self._scratch.name)
        self._texts = list(probes(read))
        (scratch / "texts.json").write_text(json.dumps(self._texts), "utf-8")
        (scratch / "files").mkdir()
        folder = _folder(read, scratch / "files")
        self._deadline = time.monotonic() + self._timeout_s
        self._process = subprocess.Popen(  # noqa: S603 (this interpreter, our own file)
            [sys.executable, "-P", str(WORKER), str(folder), str(scratch / "texts.json"), str(scratch / "ids.json")],
            stdin=subprocess.PIPE,  # its end is the sign to end, see the worker
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        if self._stopped:
            self.stop()

    def _compare(self, reference: Engine, special: SpecialTokens | None) -> Parity:
        assert self._process is not None
        assert self._scratch is not None
        try:
            code = self._process.wait(max(0.0, self._deadline - time.monotonic()))
            if self._stopped:
                return Parity(Outcome.FAILED, "it was stopped")
            if code:
                return Parity(Outcome.FAILED, f"the process ended with exit code {code}")
            answer = json.loads(Path(self._scratch.name, "ids.json").read_bytes())
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            return Parity(Outcome.FAILED, "it was stopped") if self._stopped else _failed(error)
        if "error" in answer:
            return Parity(Outcome.FAILED, f"AutoTokenizer could not be used: {answer['error']}")
        by = f"transformers {answer['version']}"
        texts, theirs, around = self._texts, answer["ids"], answer["special"]
        if len(theirs) != len(texts) or len(around) != len(texts):
            return Parity(Outcome.FAILED, f"{by} encoded {len(theirs)} of {len(texts)} texts")
        ours = list(map(reference.encode, texts))
        different = _different(ours, theirs)
        if different:
            return Parity(Outcome.DIFFERENT, f"{by} differs on {len(different)} of {len(texts)} probe texts", different)
        alike = special is not None and not _different(list(map(special.around, ours)), around)
        return Parity(
            Outcome.EQUAL,
            f"{by} agrees on {len(texts)} probe texts" + ("" if alike else ", but not with special tokens"),
            special=alike,
        )


def _different(ours: Sequence[Ids], theirs: Sequence[Sequence[int]]) -> tuple[int, ...]:
    rows = enumerate(zip(ours, theirs, strict=True))
    return tuple(i for i, (own, other) in rows if not np.array_equal(own, np.array(other, np.int64)))


def transformers_version() -> str | None:
    """The installed version, or None."""
    try:
        return metadata.version("transformers")
    except metadata.PackageNotFoundError:
        return None


def _failed(error: Exception) -> Parity:
    return Parity(Outcome.FAILED, f"{type(error).__name__}: {error}")


def _key(read: TokenizerFiles, digest: str, version: str) -> str:
    state = hashlib.blake2b(digest_size=20)
    parts = [str(REVISION), digest, version]
    for name in OTHER_FILES:
        path = read.folder / name
        parts.append(hashlib.blake2b(path.read_bytes()).hexdigest() if path.is_file() else "")
    state.update("\n".join(parts).encode())
    return state.hexdigest()


def _kept(value: Mapping[str, Any]) -> Parity | None:
    try:
        outcome = Outcome(value["outcome"])
        if outcome not in (Outcome.EQUAL, Outcome.DIFFERENT):
            return None
        different = tuple(map(int, value["different"]))
        return Parity(outcome, str(value["detail"]), different, bool(value["special"]), from_cache=True)
    except (KeyError, ValueError, TypeError, OverflowError):
        return None


def _folder(read: TokenizerFiles, scratch: Path) -> Path:
    """The folder that `AutoTokenizer` is given: the source's own, or a plain copy of it in ``scratch``."""
    if not read.compressed:
        return read.folder
    (scratch / sources.MODEL_FILE).write_bytes(read.tokenizer)
    for name, content in read.small.items():
        path = scratch / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    for name in OTHER_FILES:
        if (read.folder / name).is_file():
            (scratch / name).symlink_to((read.folder / name).resolve())
    return scratch
