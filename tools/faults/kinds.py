"""Faults in a list of token IDs, of the kinds that a tier with a bug in it would send.

Invariant: `Faults.make` returns IDs that differ from the right ones, or None where a kind has nothing to change (a
session without an earlier state, one ID in all). Half of the kinds keep the number of IDs, so that nothing that merely
counts can find them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from random import Random

import numpy as np

from toktier.ids import Ids


class Kind(StrEnum):
    """What is wrong with the IDs."""

    SUBSTITUTION = "substitution"
    DELETION = "deletion"
    DUPLICATION = "duplication"
    SWAP = "swap"
    """Two neighbours in the wrong order."""
    RESPLIT = "resplit"
    """Another tokenization of the same text with the same number of IDs."""
    STALE_CHUNK = "stale_chunk"
    """One stretch is that of an earlier state of the session."""
    WRONG_SESSION = "wrong_session"
    """All of them are another session's."""
    WRONG_TEMPLATE = "wrong_template"
    """All of them are those of the same messages under another chat template."""


LONGEST_STRETCH = 64
"""IDs of a stale stretch at most."""


class Vocabulary:
    """The tokens of a tokenizer, two at least, by ID and by spelling, but for added ones: their text is not split."""

    def __init__(self, vocab: dict[str, int]) -> None:
        self.ids = vocab
        self.spelling = {id_: token for token, id_ in vocab.items()}
        self.plain = sorted(self.spelling)


class Faults:
    """Makes faults for the requests of one model. ``vocabulary``: its tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def make(
        self,
        kind: Kind,
        ids: Ids,
        rng: Random,
        *,
        earlier: Ids | None = None,
        other: Ids | None = None,
    ) -> Ids | None:
        """``ids`` with one fault, a new array; or None where this kind would change nothing here.

        ``earlier`` are IDs that this session sent before. ``other`` are those that `Kind.WRONG_SESSION` and
        `Kind.WRONG_TEMPLATE` send in place of the right ones.
        """
        made = self._make(kind, ids, rng, earlier, other)
        if made is None or np.array_equal(made, ids):
            return None
        return np.ascontiguousarray(made, np.uint32)

    def _make(self, kind: Kind, ids: Ids, rng: Random, earlier: Ids | None, other: Ids | None) -> Ids | None:
        at = rng.randrange(len(ids)) if len(ids) else 0
        match kind:
            case Kind.SUBSTITUTION if len(ids):
                made = ids.copy()
                while made[at] == ids[at]:
                    made[at] = rng.choice(self._vocabulary.plain)
                return made
            case Kind.DELETION if len(ids) > 1:
                return np.delete(ids, at)
            case Kind.DUPLICATION if len(ids):
                return np.insert(ids, at, ids[at])
            case Kind.SWAP:
                return _swapped(ids, rng)
            case Kind.RESPLIT:
                return self._resplit(ids, rng)
            case Kind.STALE_CHUNK if earlier is not None:
                return _stale(ids, earlier, rng)
            case Kind.WRONG_SESSION | Kind.WRONG_TEMPLATE:
                return other
        return None

    def _resplit(self, ids: Ids, rng: Random) -> Ids | None:
        """The first two neighbours after a random place whose text two other tokens spell as well."""
        start = rng.randrange(len(ids)) if len(ids) else 0
        for k in range(len(ids)):
            at = (start + k) % len(ids)
            pair = self._other_pair([int(id_) for id_ in ids[at : at + 2]], rng)
            if pair is not None:
                made = ids.copy()
                made[at : at + 2] = pair
                return made
        return None

    def _other_pair(self, pair: Sequence[int], rng: Random) -> tuple[int, int] | None:
        spelled = [self._vocabulary.spelling.get(id_) for id_ in pair]
        if len(spelled) < 2 or None in spelled:
            return None
        whole = "".join(part for part in spelled if part is not None)
        known = self._vocabulary.ids
        cuts = [cut for cut in range(1, len(whole)) if whole[:cut] in known and whole[cut:] in known]
        others = [(known[whole[:cut]], known[whole[cut:]]) for cut in cuts if whole[:cut] != spelled[0]]
        return rng.choice(others) if others else None


def _swapped(ids: Ids, rng: Random) -> Ids | None:
    unequal = np.flatnonzero(ids[:-1] != ids[1:])
    if not len(unequal):
        return None
    at = int(unequal[rng.randrange(len(unequal))])
    made = ids.copy()
    made[at], made[at + 1] = ids[at + 1], ids[at]
    return made


def _stale(ids: Ids, earlier: Ids, rng: Random) -> Ids | None:
    """From where the two states part, a stretch of the earlier one; after a plain append, its end once more."""
    shared = min(len(ids), len(earlier))
    differ = np.flatnonzero(ids[:shared] != earlier[:shared])
    size = rng.randint(1, LONGEST_STRETCH)
    made = ids.copy()
    if len(differ):
        at = int(differ[rng.randrange(min(len(differ), LONGEST_STRETCH))])
        stretch = earlier[at : min(at + size, shared)]
    else:
        at = shared
        size = min(size, len(ids) - shared, len(earlier))
        stretch = earlier[len(earlier) - size :]
    made[at : at + len(stretch)] = stretch
    return made
