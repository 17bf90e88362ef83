"""What a reply says of the process that wrote it. Another process on the same port may say something else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Marks(NamedTuple):
    """None where the reply does not say it."""

    server: str | None = None
    """The ``Server`` header."""
    fingerprint: str | None = None
    """``system_fingerprint``: engines make it of their version and settings."""
    model: str | None = None
    """``model``, as the reply names it."""

    def differs(self, other: Marks) -> str | None:
        """The first mark that both have and that is not the same; None where there is none."""
        for name, mine, its in zip(self._fields, self, other, strict=True):
            if mine is not None and its is not None and mine != its:
                return name
        return None


def marks_of(headers: Mapping[str, str], value: Any) -> Marks:
    """The marks of a reply whose JSON body (or one event of it) is ``value``."""
    told = value if isinstance(value, dict) else {}
    fingerprint, model = told.get("system_fingerprint"), told.get("model")
    return Marks(
        headers.get("Server"),
        fingerprint if isinstance(fingerprint, str) else None,
        model if isinstance(model, str) else None,
    )


def steady(replies: Iterable[Marks]) -> Marks:
    """What all replies say alike; a mark that changes from one to the next, or is not always there, says nothing."""
    columns = zip(*replies, strict=True)
    return Marks(*(column[0] if len(set(column)) == 1 else None for column in columns))
