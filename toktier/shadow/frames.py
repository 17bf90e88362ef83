"""What goes over the socket between the pool and a worker: frames of eight bytes of length and so many of content.

Down, a job: its small fields pickled (the worker is started by whoever writes it, and trusts it), its body, its text in
pieces and an empty frame, its IDs. Nothing large is copied as a whole, which would hold the interpreter of a process
that serves requests. Up: JSON, since the pool need not trust a worker that has gone astray; nothing but `Answer` is
read out of it.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from toktier.shadow.job import Drop, Job, Kind, NotComparable, Piece, Verdict

ANSWER_LIMIT = 1 << 20
"""Bytes of an answer; a real one has one or two thousand."""
HEAD = 8
PIECE = 1 << 20
"""Characters of a text that are encoded at once: about a millisecond."""

Receive = Callable[[int], bytes]
"""Gives exactly so many bytes, or raises `EOFError`."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One step of a worker. ``result`` is None for a sign of life; ``final`` ends the job.

    A verdict that is not final may still get its `Piece`; if it does not, it stands as it is.
    """

    result: Verdict | NotComparable | None
    final: bool


def head(content: bytes) -> bytes:
    """What goes before ``content``; apart from it, since that may be large."""
    return len(content).to_bytes(HEAD, "little")


def pack_job(job: Job) -> Iterator[bytes]:
    """The contents of its frames."""
    yield pickle.dumps(replace(job, body=b"", text="", ids=b""), pickle.HIGHEST_PROTOCOL)
    yield job.body
    for start in range(0, len(job.text), PIECE):
        yield job.text[start : start + PIECE].encode("utf-8", "surrogatepass")
    yield b""
    yield job.ids


def read_job(receive: Receive) -> Job:
    """Raises `EOFError` at the end of the stream."""
    job = pickle.loads(_content(receive))  # noqa: S301 (from the process that started this one)
    assert isinstance(job, Job)
    body = _content(receive)
    pieces = [piece.decode("utf-8", "surrogatepass") for piece in iter(lambda: _content(receive), b"")]
    return replace(job, body=body, text="".join(pieces), ids=_content(receive))


def _content(receive: Receive) -> bytes:
    size = int.from_bytes(receive(HEAD), "little")
    return receive(size) if size else b""


def pack_answer(answer: Answer) -> bytes:
    """The content of a frame."""
    value: dict[str, Any] = {"final": answer.final}
    if isinstance(answer.result, Verdict):
        value["verdict"] = asdict(answer.result)
    elif answer.result is not None:
        value["dropped"] = asdict(answer.result)
    return json.dumps(value).encode()


def read_answer(receive: Receive) -> Answer:
    """Raises `EOFError` at the end of the stream, `ValueError` for what is no answer."""
    size = int.from_bytes(receive(HEAD), "little")
    if size > ANSWER_LIMIT:
        raise ValueError("too long for an answer")
    try:
        value = json.loads(receive(size))
        if "verdict" in value:
            return Answer(_verdict(value["verdict"]), bool(value["final"]))
        if "dropped" in value:
            dropped = value["dropped"]
            return Answer(NotComparable(Drop(dropped["reason"]), str(dropped["detail"])), bool(value["final"]))
        return Answer(None, bool(value["final"]))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no answer: {type(error).__name__}") from error


def _verdict(value: dict[str, Any]) -> Verdict:
    values = {one.name: value[one.name] for one in fields(Verdict)}
    values["kind"] = None if value["kind"] is None else Kind(value["kind"])
    values["piece"] = None if value["piece"] is None else Piece(**value["piece"])
    return Verdict(**values)
