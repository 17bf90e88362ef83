"""Open-addressing tables, filled here and probed by the kernels (``cuda_src/vocabulary.cuh``, ``pairs.cuh``), and the
hash of a filter (``cuts.cuh``).

Each function of 64 bits below is the one of the same name there, over arrays. Slots are a power of two, at most half
of them taken; a key lies at its home slot or at the next free one behind it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]

_A = np.uint64(0x9E3779B97F4A7C15)
_B = np.uint64(0xD6E8FEB86659FD93)
_A32, _B32, _LOW = np.uint64(0x9E3779B9), np.uint64(0xD6E8FEB9), np.uint64(0xFFFFFFFF)
_EVEN = np.uint64((1 << 64) - 2)
"""Slots of 16 bytes: a key's home is the first of two that lie in one sector of the device's memory."""


def slots_for(keys: int, least: int = 2) -> int:
    """log2 of the number of slots: at least so many for each key."""
    return max(4, int(least * keys - 1).bit_length()) if keys else 4


SPARSE = 8
"""Slots for each key of a small table that is asked mostly for what it does not hold: a warp waits for its longest way
to a free slot."""


def hash_8(key: U64, length: U64, bits: int) -> U64:
    return (((key ^ length * _A) * _B) >> np.uint64(64 - bits)) & _EVEN


def hash_16(low: U64, high: U64, length: U64, bits: int) -> U64:
    mixed = low * _A
    return ((mixed ^ (mixed >> np.uint64(29)) ^ high ^ length) * _B) >> np.uint64(64 - bits)


def hash_pair(left: U64, right: U64, bits: int) -> U64:
    """Of 32 bits: a merge waits for it."""
    return (((left * _A32 + right) * _B32 & _LOW) >> np.uint64(32 - bits)) & _EVEN


def hash_seam(seams: U64) -> npt.NDArray[np.uint32]:
    """Of rows of two numbers, shape ``(n, 2)``."""
    mixed = (seams[:, 0] * np.uint64(0x9E3779B1) + seams[:, 1] * np.uint64(0x85EBCA6B)) & _LOW
    mixed = ((mixed ^ mixed >> np.uint64(16)) * np.uint64(0x2C1B3C6D)) & _LOW
    return (mixed ^ mixed >> np.uint64(15)).astype(np.uint32)


def seam_bits(hashes: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Two bits of each hash's word."""
    one, five, low = np.uint32(1), np.uint32(5), np.uint32(31)
    return one << (hashes & low) | one << (hashes >> five & low)


def hash_long(text: bytes) -> int:
    """The whole 64 bits for a text of more than 16 bytes."""
    mask = (1 << 64) - 1
    value = len(text)
    for at in range(0, len(text), 8):
        value = (value ^ int.from_bytes(text[at : at + 8], "little")) * int(_A) & mask
        value ^= value >> 32
    return value * int(_B) & mask


def place(homes: U64, bits: int) -> npt.NDArray[np.int64]:
    """A slot for each key, shape ``(n,)``: its home, or the first free one behind it, around the end."""
    slots = np.full(len(homes), -1, np.int64)
    taken = np.zeros(1 << bits, np.bool_)
    waiting = np.arange(len(homes))
    at = homes.astype(np.int64)
    while len(waiting):
        free = ~taken[at]
        # of several keys that want one free slot, the first gets it
        wanted, first = np.unique(at[free], return_index=True)
        chosen = waiting[free][first]
        slots[chosen] = wanted
        taken[wanted] = True
        left = slots[waiting] < 0
        waiting = waiting[left]
        at = at[left]
        step = taken[at]
        at = np.where(step, (at + 1) & ((1 << bits) - 1), at)
    return slots
