"""From where on the state of a transducer is known, whatever stood before.

A subset construction from the set of all states: where it comes down to one state that reads no register, that state
is the machine's own, and no boundary before that point is still open. It is a property of the table and needs no other
proof. Walked from any byte of a text, it gives an exact point to begin at; runs that never synchronise (a run of
spaces, for one) are walked as maps from states to states instead (``cuda_src/statemap.cuh``).
"""

from __future__ import annotations

from dataclasses import dataclass

from toktier.errors import Refusal
from toktier.gpu.transducer import Transducer, live_registers

MOST_SUBSETS = 2_000


@dataclass(frozen=True)
class Synchroniser:
    """``rows[s][c]``: ``(True, q)``, synchronised in state q, or ``(False, subset)``. Subset 0 is all states."""

    rows: tuple[tuple[tuple[bool, int], ...], ...]
    subsets: tuple[frozenset[int], ...]


def synchroniser(machine: Transducer) -> Synchroniser:
    """Of a machine `with_breaks`. Raises `Refusal` where it has very many subsets."""
    quiet = [not live for live in live_registers(machine)]
    every = frozenset(range(len(machine.rows)))
    numbers = {every: 0}
    order = [every]
    rows: list[tuple[tuple[bool, int], ...]] = []
    while len(rows) < len(order):
        row = []
        for cls in range(machine.end + 1):
            after = frozenset(machine.rows[q][cls].target for q in order[len(rows)])
            if len(after) == 1 and quiet[q := next(iter(after))]:
                row.append((True, q))
                continue
            if after not in numbers:
                if len(order) == MOST_SUBSETS:
                    raise Refusal(f"more than {MOST_SUBSETS:,} subsets in the synchronising automaton", "splits")
                numbers[after] = len(order)
                order.append(after)
            row.append((False, numbers[after]))
        rows.append(tuple(row))
    return Synchroniser(tuple(rows), tuple(order))
