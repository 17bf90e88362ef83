"""Rank files of tiktoken, and the sidecar that says what a rank file leaves out.

A rank file has one line per token: its bytes in base64, a space, its ID, which is its merge rank as well. The pattern
that cuts text into pieces and the special tokens are not in it; upstream they stand in program code. Here they stand in
a JSON file beside the ranks, ``NAME.tiktoken.json`` for ``NAME.tiktoken``, or ``tiktoken.json`` in the folder
(`docs/tiktoken.md`).

Invariant: whatever tiktoken would panic on, loop on or leave open is refused here, with a message, before it sees it:
a byte without a token (no text with it could be encoded), two tokens with one ID, an empty token, a special token that
is the beginning of another (tiktoken looks for them in no specified order, and the first that fits wins).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from toktier.errors import UnusableFile

FOLDER_SIDECAR = "tiktoken.json"
EXAMPLE = r'{"pat_str": "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+|\\s+", "special_tokens": {"<|endoftext|>": 50256}}'

BYTE_RANKS = {bytes([b]): b for b in range(256)}
"""A vocabulary of single bytes: with it, tiktoken's IDs are the bytes of what its pattern matched."""

_NAME = re.compile(r"(?:.+\.tiktoken|tiktoken\.model)(?:\.xz)?", re.IGNORECASE)
_LINE = re.compile(rb"([A-Za-z0-9+/]+={0,2})[ \t]+([0-9]{1,10})")
_LARGEST_ID = (1 << 31) - 1
_FIELDS = {"pat_str", "special_tokens", "name", "explicit_n_vocab"}


@dataclass(frozen=True)
class Ranks:
    """What tiktoken's ``Encoding`` is made of."""

    name: str
    pattern: str
    """``pat_str``: its matches are the pieces; text that it does not match has no tokens."""
    special_tokens: Mapping[str, int]
    mergeable: dict[bytes, int]

    @property
    def vocab_size(self) -> int:
        """The largest ID plus 1."""
        return max(max(self.mergeable.values()), max(self.special_tokens.values(), default=0)) + 1

    @property
    def spec(self) -> dict[str, Any]:
        """In the form of a parsed ``tokenizer.json``, for code that looks there for added tokens."""
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        added = [{"id": i, "content": text, **flags, "special": True} for text, i in self.special_tokens.items()]
        blocks = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "truncation", "padding")
        return {"added_tokens": added, **dict.fromkeys(blocks), "model": {"type": "tiktoken"}}


def is_rank_file(name: str) -> bool:
    """Whether a file of this name holds ranks: ``*.tiktoken``, ``tiktoken.model``, also with ``.xz``."""
    return _NAME.fullmatch(name) is not None


def sidecar_names(name: str) -> tuple[str, str]:
    """Where the sidecar of the rank file ``name`` is looked for, in this order."""
    return f"{re.sub(r'[.]xz$', '', name)}.json", FOLDER_SIDECAR


def missing_sidecar(source: str, name: str) -> UnusableFile:
    """The error that says what to write."""
    own, shared = sidecar_names(name)
    return UnusableFile(
        f"{source} holds ranks only: write the pattern and the special tokens of the encoding into {own} "
        f"(or {shared}) beside {name}, for example {EXAMPLE}; docs/tiktoken.md says where a pattern is found"
    )


def ranks_of(ranks: bytes, sidecar: Mapping[str, Any], source: str) -> Ranks:
    """The encoding in a rank file and its parsed sidecar, checked. Raises `UnusableFile`."""
    read = Ranks(
        name=_field(sidecar, "name", str, source, "tiktoken"),
        pattern=_field(sidecar, "pat_str", str, source),
        special_tokens=_special_tokens(_field(sidecar, "special_tokens", dict, source), source),
        mergeable=parse_ranks(ranks, source),
    )
    if unknown := sorted(sidecar.keys() - _FIELDS):
        raise UnusableFile(f"the sidecar of {source} has the unknown field {unknown[0]}; known are {sorted(_FIELDS)}")
    if not read.pattern:
        raise UnusableFile(f"the sidecar of {source} has an empty pat_str")
    taken = {number: token for token, number in read.mergeable.items()}
    for token, number in read.special_tokens.items():
        if number in taken:
            raise UnusableFile(f"the sidecar of {source} gives {token!r} the ID {number}, which a rank has already")
    count = _field(sidecar, "explicit_n_vocab", int, source, 0)
    held = len(read.mergeable) + len(read.special_tokens)
    if count and not count == held == read.vocab_size:
        raise UnusableFile(
            f"the sidecar of {source} has explicit_n_vocab {count}, but there are {held} tokens with IDs up to "
            f"{read.vocab_size - 1}"
        )
    return read


def parse_ranks(content: bytes, source: str) -> dict[bytes, int]:
    """Token to rank. Raises `UnusableFile` at a line that is none, and where an encoding is impossible."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        m = _LINE.fullmatch(line.rstrip())
        try:
            token = base64.b64decode(m[1], validate=True) if m else b""
        except binascii.Error:
            token = b""
        if m is None or not token or int(m[2]) > _LARGEST_ID:
            raise UnusableFile(
                f"line {number} of the ranks of {source} is not a base64 token and its ID; fetch it again"
            )
        if token in ranks:
            raise UnusableFile(f"line {number} of the ranks of {source} repeats a token; fetch it again")
        ranks[token] = int(m[2])
    if len(set(ranks.values())) < len(ranks):
        raise UnusableFile(f"the ranks of {source} give two tokens one ID; fetch them again")
    missing = sum(bytes([b]) not in ranks for b in range(256))
    if missing:
        raise UnusableFile(f"the ranks of {source} lack {missing} of the 256 single bytes; they are no full rank file")
    return ranks


def _special_tokens(told: Mapping[str, Any], source: str) -> dict[str, int]:
    for token, number in told.items():
        if type(number) is not int or not 0 <= number <= _LARGEST_ID:
            raise UnusableFile(f"the sidecar of {source} gives {token!r} no ID: special_tokens maps texts to integers")
        if not token:
            raise UnusableFile(f"the sidecar of {source} has an empty special token, on which tiktoken never ends")
        if any("\ud800" <= c <= "\udfff" for c in token):
            raise UnusableFile(f"the sidecar of {source} has a special token with a lone surrogate, which is no text")
    if len(set(told.values())) < len(told):
        raise UnusableFile(f"the sidecar of {source} gives two special tokens one ID")
    for first, second in pairwise(sorted(told)):  # sorted, whatever begins with a text stands right behind it
        if second.startswith(first):
            raise UnusableFile(
                f"the special token {first!r} of {source} is the beginning of {second!r}: tiktoken looks for special "
                "tokens in no specified order, so that which one it finds is open; leave one of them out"
            )
    return dict(told)


def _field(sidecar: Mapping[str, Any], name: str, kind: type, source: str, default: Any = None) -> Any:
    value = sidecar.get(name, default)
    if type(value) is not kind:
        wanted = {str: "a string", dict: "an object of texts and IDs", int: "a whole number"}[kind]
        raise UnusableFile(f"the sidecar of {source} needs {name}, {wanted}; an example: {EXAMPLE}")
    if isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value):
        raise UnusableFile(f"{name} in the sidecar of {source} has a lone surrogate, which is no text")
    return value
