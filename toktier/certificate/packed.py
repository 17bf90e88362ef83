"""A sparse relation over two sets, packed so that a look-up is three loads and is exact.

Rows lie over each other in one array (row displacement, as in parser tables): the row of x begins at ``begin[x]``, the
column of y is ``column[y]``, and a place holds the beginning of the row that it belongs to. Rows begin at different
places and no two of them need one place, so x and y are related exactly where ``table[begin[x] + column[y]]`` is
``begin[x]``. Equal rows are one row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.uint32]

_FREE = np.uint32(0xFFFFFFFF)
_STRIDE = 2654435761
"""Odd, far from a multiple of any small table: places are tried in an order that depends on nothing but the input."""


def packed(pairs: Numbers, count: int, every: int) -> tuple[Numbers, Numbers, Numbers]:
    """The relation ``pairs``, shape ``(n, 2)``, over the numbers below ``count``.

    ``every`` is the number that is related to all, on both sides, whatever pairs it stands in. Returns where the row of
    each number begins and which column is its own, shapes ``(count,)``, and the table, shape ``(2**k,)``.
    """
    pairs = pairs[(pairs != every).all(axis=1)]
    keys = np.unique(pairs[:, 0].astype(np.int64) * count + pairs[:, 1])
    owner_of_pair, column_of_pair = np.divmod(keys, count)
    columns, column_of_pair = np.unique(column_of_pair, return_inverse=True)
    other, full = len(columns), len(columns) + 1
    column_of = np.full(count, other, np.uint32)
    column_of[columns] = np.arange(len(columns))
    column_of[every] = full

    rows: list[npt.NDArray[np.int64]] = [np.array([full]), np.arange(full + 1)]
    row_of = np.zeros(count, np.int64)
    row_of[every] = 1
    known = {row.tobytes(): k for k, row in enumerate(rows)}
    owners, starts = np.unique(owner_of_pair, return_index=True)
    for owner, part in zip(owners, np.split(column_of_pair.reshape(-1), starts[1:]), strict=False):
        row = np.append(part, full).astype(np.int64)
        row_of[owner] = known.setdefault(row.tobytes(), len(rows))
        if row_of[owner] == len(rows):
            rows.append(row)

    size = 1 << max(4 * sum(map(len, rows)), 2 * (len(rows) + full)).bit_length()
    begin, table = _placed(rows, full + 1, size)
    return begin[row_of], column_of, table


def _placed(rows: Sequence[npt.NDArray[np.int64]], width: int, size: int) -> tuple[Numbers, Numbers]:
    """A beginning for each row, shape ``(rows,)``, and the table; longest rows first, into the first fit of a walk."""
    table = np.full(size, _FREE, np.uint32)
    free = np.ones(size, np.bool_)
    unused = np.ones(size, np.bool_)
    begin = np.zeros(len(rows), np.uint32)
    span = size - width
    step = 0
    for k in sorted(range(len(rows)), key=lambda k: -len(rows[k])):
        row = rows[k]
        tries = max(4, 1024 // len(row))
        for _ in range(1000):
            places = (np.arange(step, step + tries) * _STRIDE) % span
            step += tries
            fits = unused[places] & free[places[:, None] + row].all(axis=1)
            if fits.any():
                break
        else:
            return _placed(rows, width, 2 * size)
        at = int(places[fits.argmax()])
        begin[k] = at
        unused[at] = False
        free[at + row] = False
        table[at + row] = at
    return begin, table
