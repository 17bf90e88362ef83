"""The window engine: fastokens, some 50 times as fast as the reference.

Invariants:

- Its `encode` is T: it is used only after `toktier.engines.admission` found it equal to the reference on this
  tokenizer; a text that holds a character on which the two are known to differ (`unsafe`) goes to the reference, and
  so does a call on which it fails, a panic of its native code included.
- A ``tokenizer.json`` with a field that is not listed in `KNOWN` is refused, not read in part.
- No state that one text leaves behind may reach the IDs of another: its segment cache is off, whatever the environment
  says. It remembers words that it has merged, for good and in two places, and there is no switch for that: how fast a
  text is encoded can tell that its words came before (SECURITY.md).
- With its first call in a thread it makes tables of 16 MB for that thread: 5 to 40 ms, in which it keeps the GIL
  unless the text is long. So every thread begins with a long one (`RawFastokens.begin`).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import structlog
from tokenizers import Tokenizer

from toktier.engines import admission
from toktier.engines.reference import ReferenceEngine, check_text
from toktier.engines.versions import fastokens_version as installed_version
from toktier.errors import is_failure
from toktier.ids import EMPTY, Ids, from_bytes

MINIMUM = (0, 3, 5)
"""Below this version the IDs of a text depend on the texts before it (reuse of matches over a common prefix)."""

KNOWN: Mapping[str, Mapping[str, frozenset[str]]] = {
    "model": {
        "BPE": frozenset({"dropout", "unk_token", "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"})
        | {"continuing_subword_prefix", "end_of_word_suffix"},
    },
    "normalizer": {
        "Sequence": frozenset({"normalizers"}),
        "NFC": frozenset(),
        "NFD": frozenset(),
        "NFKC": frozenset(),
        "NFKD": frozenset(),
        "Lowercase": frozenset(),
        "Prepend": frozenset({"prepend"}),
        "Replace": frozenset({"pattern", "content"}),
        "Strip": frozenset({"strip_left", "strip_right"}),
    },
    "pre_tokenizer": {
        "Sequence": frozenset({"pretokenizers"}),
        "ByteLevel": frozenset({"add_prefix_space", "trim_offsets", "use_regex"}),
        "Split": frozenset({"pattern", "behavior", "invert"}),
        "Digits": frozenset({"individual_digits"}),
        "Metaspace": frozenset({"replacement", "prepend_scheme", "split"}),
        "Punctuation": frozenset({"behavior"}),
    },
}
"""Fields of ``tokenizer.json`` whose meaning fastokens implements, by component and type. It ignores all others."""

ADDED_TOKEN = frozenset({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"})

_FIRST = "a " * 8192
"""Below 16 KB the GIL would not be released."""

_log = structlog.get_logger("toktier.engines.fastokens")


class FastokensEngine:
    """T through fastokens, with the reference behind it. Thread-safe; releases the GIL."""

    name = "fastokens"

    def __init__(self, raw: RawFastokens, reference: ReferenceEngine, unsafe: frozenset[str] = frozenset()) -> None:
        self.version = raw.version
        self.unsafe = unsafe
        self.failures = 0
        """Calls that fastokens failed and the reference answered. A lower bound: counted without a lock."""
        self._among_ascii = any(map(str.isascii, unsafe))
        self._raw = raw
        self._reference = reference

    @property
    def begun(self) -> bool:
        """Whether the calling thread may expect an answer in a moment."""
        return self._raw.begun

    def begin(self) -> None:
        """Take the time of a first call now (see above). For the calling thread."""
        try:
            self._raw.begin()
        except BaseException as error:
            if not is_failure(error):  # the next text meets it as well, and is answered by the reference
                raise

    def encode(self, text: str) -> Ids:
        """T(text), shape ``(n,)``, read-only. Raises `InvalidText` on a lone surrogate."""
        return from_bytes(self.encode_bytes(text))

    def encode_bytes(self, text: str) -> bytes:
        """T(text) as little-endian uint32. Raises as `encode` does."""
        if self.unsafe and self._is_unsafe(text):
            return self._reference.encode(text).tobytes()
        try:
            return self._raw.encode_bytes(text)
        except BaseException as error:
            self._failed(error, [text])
            return self._reference.encode(text).tobytes()

    def encode_batch(self, texts: Sequence[str]) -> tuple[Ids, npt.NDArray[np.int64]]:
        """T of each text, one after the other, and their counts. The texts are encoded on all cores."""
        if any(map(self._is_unsafe, texts)):
            rows = [self.encode(text) for text in texts]
            return np.concatenate(rows), np.fromiter(map(len, rows), np.int64, len(rows))
        try:
            return self._raw.encode_batch(texts)
        except BaseException as error:
            self._failed(error, texts)
            return self._reference.encode_batch(texts)

    def encode_in_turn(self, texts: Sequence[str]) -> tuple[Ids, list[int]]:
        """As `encode_batch`, one after the other in the calling thread: for a few short ones that is half the work."""
        if any(map(self._is_unsafe, texts)):
            rows = [self.encode(text) for text in texts]
            return np.concatenate(rows), list(map(len, rows))
        try:
            return self._raw.encode_in_turn(texts)
        except BaseException as error:
            self._failed(error, texts)
            ids, counts = self._reference.encode_batch(texts)
            return ids, counts.tolist()

    def _is_unsafe(self, text: str) -> bool:
        if self._among_ascii or not text.isascii():
            for character in self.unsafe:
                if character in text:
                    return True
        return False

    def _failed(self, error: BaseException, texts: Sequence[str]) -> None:
        if not is_failure(error):
            raise error
        if isinstance(error, UnicodeEncodeError):
            check_text(texts)
        self.failures += 1
        _log.error(
            "window.failed",
            engine=f"{self.name} {self.version}",
            error=type(error).__name__,
            texts=len(texts),
            chars=sum(map(len, texts)),
        )


class RawFastokens:
    """fastokens on one ``tokenizer.json``, as it is: not admitted, no fallback. Raises what fastokens raises."""

    def __init__(self, tokenizer_json: str) -> None:
        import fastokens

        self.version = installed_version()
        self._tokenizer = fastokens.Tokenizer.from_json_str(tokenizer_json)
        self._tokenizer.enable_segment_cache(0)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._threads = threading.local()
        self.begin()  # the first call of all costs 0.15 s, which no request should pay

    @property
    def begun(self) -> bool:
        return hasattr(self._threads, "begun")

    def begin(self) -> None:
        if not self.begun:
            self._threads.begun = True
            self._tokenizer.encode_batch_flat([_FIRST])

    def encode(self, text: str) -> Ids:
        return from_bytes(self.encode_bytes(text))

    def encode_bytes(self, text: str) -> bytes:
        self.begin()
        ids: bytes = self._tokenizer.encode_batch_flat([text])[0]
        return ids

    def encode_in_turn(self, texts: Sequence[str]) -> tuple[Ids, list[int]]:
        self.begin()
        encode = self._tokenizer.encode_batch_flat
        rows = [encode([text])[0] for text in texts]
        return from_bytes(b"".join(rows)), [len(row) // 4 for row in rows]

    def encode_batch(self, texts: Sequence[str]) -> tuple[Ids, npt.NDArray[np.int64]]:
        if not texts:
            return EMPTY, np.empty(0, np.int64)
        self.begin()
        ids, offsets = self._tokenizer.encode_batch_flat(texts if type(texts) is list else list(texts))
        bounds = np.frombuffer(offsets, "<i8")
        return from_bytes(ids), bounds[1:] - bounds[:-1]


def usable_version() -> bool:
    """Whether the installed fastokens is there and new enough."""
    return _version_refusal() is None


def static_refusal(spec: Mapping[str, Any]) -> str | None:
    """Why fastokens may not serve the parsed ``tokenizer.json`` ``spec``, as far as that shows without running it."""
    return _version_refusal() or next(_unknown(spec), None)


def _version_refusal() -> str | None:
    version = installed_version()
    if not version:
        return "fastokens is not installed"
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    if numbers < MINIMUM:
        return f"fastokens {version} is older than {'.'.join(map(str, MINIMUM))}"
    return None


def _unknown(spec: Mapping[str, Any]) -> Iterator[str]:
    for component, types in KNOWN.items():
        pending = [spec[component]] if isinstance(spec.get(component), dict) else []
        while pending:
            part = pending.pop()
            kind = part.get("type", "BPE" if component == "model" else None)
            if kind not in types:
                yield f"{component} {kind} is not known to be implemented"
                continue
            for key in part.keys() - types[kind] - {"type"}:
                yield f"{component} {kind} has the unknown field {key}"
            for inner in ("normalizers", "pretokenizers"):
                pending += part.get(inner, [])
    for token in spec.get("added_tokens") or []:
        for key in token.keys() - ADDED_TOKEN:
            yield f"an added token has the unknown field {key}"


def window_engine(
    raw: RawFastokens, reference: ReferenceEngine, spec: Mapping[str, Any], digest: str, cache_dir: Path | None
) -> FastokensEngine | str:
    """The engine for the parsed ``tokenizer.json`` ``spec``, or why it is not admitted.

    A verdict for ``digest`` that lies in ``cache_dir`` is taken as it is; otherwise the self-test runs and its verdict
    is kept there.
    """
    verdict = admission.load_verdict(cache_dir, digest)
    if verdict is None:
        probe = admission.split_probe(spec)
        splits = probe and admission.Pair(RawFastokens(probe), ReferenceEngine(Tokenizer.from_str(probe)))
        literals = [token["content"] for token in spec.get("added_tokens") or [] if token["content"]]
        verdict = admission.admit(admission.Pair(raw, reference), literals, splits or None)
        admission.store_verdict(cache_dir, digest, verdict)
    if verdict.refusal is not None:
        return f"fastokens {raw.version} {verdict.refusal}"
    return FastokensEngine(raw, reference, verdict.unsafe)
