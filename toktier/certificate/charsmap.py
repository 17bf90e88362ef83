"""SentencePiece's ``precompiled_charsmap``: strings to be replaced, with what replaces them.

The bytes are the size of a trie in bytes (u32), its units (u32 each, a darts-clone double array), and the replacements,
each ended by a NUL; all little-endian. A unit holds its label in bits 0-7, whether a leaf hangs on it in bit 8, and the
way to its children in bits 10-30 (eight bits further up where bit 9 is set): child c stands at ``base ^ c``, the leaf
at ``base``. A leaf has bit 31 set, and the place of its replacement below it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from toktier.errors import Refusal

_LEAF = 1 << 31
_LONGEST = 256
_CHUNK = 4096

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Keys:
    """Keys by their first character; several keys of one replacement are one row. All arrays have shape ``(n,)``."""

    first: Ints
    longer: npt.NDArray[np.bool_]
    """Whether the key has more characters than that one."""
    value: Ints
    """Where in ``blob`` the replacement begins."""
    blob: bytes

    def replacement(self, value: int) -> str:
        end = self.blob.find(b"\0", value)
        return self.blob[value : end if end >= 0 else len(self.blob)].decode()


def decoded(encoded: object, place: str) -> bytes:
    """The bytes of the field of a tokenizer file, which is in base64. Raises `Refusal` where it is not."""
    try:
        return base64.b64decode(encoded, validate=True)  # type: ignore[arg-type]
    except (binascii.Error, TypeError, ValueError) as e:
        raise Refusal("charsmap that cannot be read", place) from e


def read_keys(raw: bytes, place: str) -> Keys:
    """All keys of a charsmap. Raises `Refusal` where it cannot be read, or a key ends inside its first character."""
    size = int.from_bytes(raw[:4], "little")
    units = np.frombuffer(raw[4 : 4 + size // 4 * 4], "<u4").astype(np.int64)
    first, length, value = _walked(units, place)
    need = _length(first, length)
    if (length < need).any():
        raise Refusal("charsmap with a key that is no text", place)
    return Keys(_code_points(first, need), length > need, value, raw[4 + size :])


def _walked(units: Ints, place: str) -> tuple[Ints, Ints, Ints]:
    """Of each key its first four bytes as one number, big-endian, its length in bytes, and its value.

    Level by level: a state is a node and the first bytes on the way to it. The trie shares what its keys end in, so
    equal states are merged.
    """
    if not len(units):
        raise Refusal("charsmap that cannot be read", place)
    head, node = np.zeros(1, np.int64), np.zeros(1, np.int64)
    rows: list[Ints] = []
    for depth in range(1, _LONGEST):
        found = [
            _children(units, head[i : i + _CHUNK], node[i : i + _CHUNK], depth) for i in range(0, len(node), _CHUNK)
        ]
        states = np.unique(np.concatenate(found, axis=1), axis=1)
        head, node = states
        if not len(node):
            break
        ends = (units[node] & 0x100) != 0
        leaf = _base(units, node[ends])
        if (leaf >= len(units)).any():
            raise Refusal("charsmap that cannot be read", place)
        rows.append(np.stack([head[ends], np.full(len(leaf), depth), units[leaf] & (_LEAF - 1)]))
    else:
        raise Refusal("charsmap with keys without end", place)
    merged = np.concatenate([np.zeros((3, 0), np.int64), *rows], axis=1)
    return merged[0], merged[1], merged[2]


def _children(units: Ints, head: Ints, node: Ints, depth: int) -> Ints:
    labels = np.arange(1, 256, dtype=np.int64)
    at = _base(units, node)[:, None] ^ labels
    inside = at < len(units)
    parent, k = np.nonzero(inside & ((units[np.where(inside, at, 0)] & (_LEAF | 0xFF)) == labels))
    shift = 32 - 8 * depth
    grown = head[parent] | labels[k] << shift if shift >= 0 else head[parent]
    return np.stack([grown, at[parent, k]])


def _base(units: Ints, node: Ints) -> Ints:
    unit = units[node]
    result: Ints = node ^ ((unit >> 10 & 0x1FFFFF) << ((unit & 0x200) >> 6))
    return result


def _length(head: Ints, length: Ints) -> Ints:
    """The bytes of the first character, by its first byte; as many as there are where that begins no character."""
    lead = head >> 24
    sizes = np.select([lead < 0x80, lead < 0xC0, lead < 0xE0, lead < 0xF0, lead < 0xF5], [1, -1, 2, 3, 4], -1)
    return np.where(sizes < 0, length, sizes)


def _code_points(head: Ints, need: Ints) -> Ints:
    """The first characters; -1 where the bytes are none."""
    numbers, which = np.unique(np.stack([head, need]), axis=1, return_inverse=True)
    codes = np.full(numbers.shape[1], -1, np.int64)
    for k, (number, size) in enumerate(numbers.T.tolist()):
        try:
            codes[k] = ord(number.to_bytes(4, "big")[:size].decode())
        except (UnicodeDecodeError, TypeError):
            continue  # no text has it
    result: Ints = codes[which.reshape(-1)]
    return result


def build_charsmap(replacements: Mapping[bytes, str]) -> bytes:
    """The bytes of a charsmap. Every node has 256 units to itself: for a few hundred keys."""
    blob, values = b"", dict[bytes, int]()
    for key, text in replacements.items():
        values[key] = len(blob)
        blob += text.encode() + b"\0"
    nodes = sorted({key[:n] for key in replacements for n in range(len(key) + 1)} | {b""}, key=lambda k: (len(k), k))
    base = {node: 256 * (i + 1) for i, node in enumerate(nodes)}
    position = {node: base[node[:-1]] ^ node[-1] if node else 0 for node in nodes}
    units = np.zeros(256 * (len(nodes) + 1), np.uint32)
    for node in nodes:
        label = node[-1] if node else 0
        units[position[node]] = label | (node in values) << 8 | (position[node] ^ base[node]) << 10
        if node in values:
            units[base[node]] = _LEAF | values[node]
    return (4 * len(units)).to_bytes(4, "little") + units.astype("<u4").tobytes() + blob
