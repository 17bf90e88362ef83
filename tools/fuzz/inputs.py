"""What one input is: bytes for a socket, and what must come of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Input:
    """``pieces`` are sent one after the other, with a pause between two of them."""

    number: int
    shape: str
    pieces: tuple[bytes, ...]
    method: str = "POST"
    """Of the first request: the reply to HEAD has no body."""
    one_line: bool = False
    """It is one well-formed request: the log must have exactly one line for it."""
    replies: int = 1
    """So many are waited for; fewer where the connection is closed before."""
    leave: str | None = None
    """``close``, ``abort`` (a reset) or ``half`` (only the sending side): after the last piece, unread."""
    wire: bool = False
    """It needs a connection of its own."""


NAME = "fz-"


def name(number: int) -> str:
    """The X-Request-Id of an input."""
    return f"{NAME}{number}"


def request(
    request_id: str,
    method: str,
    target: str,
    body: bytes = b"",
    headers: Iterable[tuple[str, str | bytes]] = (),
    *,
    length: bool = True,
) -> bytes:
    """A request with the usual headers, then ``headers`` as they are."""
    lines = [f"{method} {target} HTTP/1.1".encode(), b"Host: fuzz", b"X-Request-Id: " + request_id.encode()]
    if length:
        lines.append(b"Content-Length: " + str(len(body)).encode())
    for field, value in headers:
        lines.append(field.encode() + b": " + (value if isinstance(value, bytes) else value.encode("utf-8")))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
