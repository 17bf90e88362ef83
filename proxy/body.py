"""A request's body: read, decoded, limited.

Invariants
1. No more than ``limit`` bytes of body, and no more than ``limit`` bytes of what it decodes to, are ever held for one
   request; decoders produce at most `PIECE` bytes a step, so a bomb is noticed before it is inflated.
2. Nothing is read, and no "100 Continue" is sent, before the declared size and the encoding have passed.
3. Over all requests, `Held` counts what is held; what would be too much is refused. A coded body counts as the larger
   of what came and what it has become, at every step of its decoding, so at most twice as much is held.
4. A body that comes slower than `Pace` allows ends with 408, however steady its trickle is.
5. A decoder gets its input in pieces of `PIECE` bytes, and so long as its time is not up: no coding can make the work
   more than proportional to what comes in and goes out, nor slow without end.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import math
import threading
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import brotli  # type: ignore[import-untyped]
import zstandard
from aiohttp import web
from aiohttp.client_exceptions import ClientPayloadError
from aiohttp.web_protocol import RequestPayloadError

from proxy import errors
from proxy.errors import ApiError

PIECE = 64 << 10
BOMB_FROM = 8 << 20
"""Below this size, in bytes, a high ratio is no harm."""
BOMB_RATIO = 200
"""Above it, more output than this per input byte is no chat request."""
JOINED = 8 << 20
"""Bytes that are put together at once: new memory takes a millisecond a megabyte on some machines."""
MAX_MEMBERS = 10_000
"""Members of one gzip body. Tools that write many write 64 KiB or more into each; empty ones only cost time."""
MAX_WINDOW = 8 << 20
"""RFC 8878 asks every HTTP decoder for 8 MiB and none for more."""


@dataclass(frozen=True, slots=True)
class Pace:
    """``silence_s``: longest wait for the next bytes, in seconds. ``bytes_per_s``: the least that must come on the
    whole, beyond the first ``silence_s``; 0 for no such limit.
    """

    silence_s: float
    bytes_per_s: float = 0.0

    def deadline(self, begun: float, now: float, size: int) -> float:
        """When the next bytes must be there; ``size`` bytes have come of a body that began at ``begun``."""
        due = now + self.silence_s
        return min(due, begun + self.silence_s + size / self.bytes_per_s) if self.bytes_per_s else due


class Held:
    """Bytes of the bodies of all requests that are held. For any thread."""

    def __init__(self) -> None:
        self.size = 0
        self._lock = threading.Lock()

    def fits(self, size: int, limit: int) -> None:
        """Raises `ApiError` 429 where ``size`` bytes more would be over ``limit``."""
        if self.size + size > limit:
            raise errors.bodies_full(limit)

    def add(self, size: int, limit: int | None = None) -> None:
        """Count so many bytes more, or fewer. Raises `ApiError` 429, and counts nothing, as `fits`."""
        with self._lock:
            if limit is not None:
                self.fits(size, limit)
            self.size += size


class Share:
    """One request's part of `Held`. Give it back with `release`, once or more often; then it counts nothing more."""

    def __init__(self, held: Held, limit: int) -> None:
        self._held, self._limit = held, limit
        self._size = 0
        self._over = False
        self._lock = threading.Lock()

    def fits(self, size: int) -> None:
        """Raises `ApiError` 429 where ``size`` bytes cannot be held now. Takes nothing."""
        self._held.fits(size, self._limit)

    def take(self, size: int) -> None:
        """Count ``size`` bytes more. Raises `ApiError` 429, and counts nothing, where they are too many."""
        self.hold(self._size + size)

    def hold(self, size: int) -> None:
        """Count ``size`` bytes in all. Raises as `take`."""
        with self._lock:
            if not self._over:
                self._held.add(size - self._size, self._limit if size > self._size else None)
                self._size = size

    def release(self) -> None:
        """The bytes are no longer held."""
        with self._lock:
            self._over = True
            self._held.add(-self._size)
            self._size = 0


class Broken(Exception):
    """The bytes are not what Content-Encoding says."""


class Slow(Exception):
    """Decoding takes longer than it may."""


class Coded:
    """A coded body, which is handed out in pieces: what a decoder does not use of its input, it copies at every step.

    ``due``: from this `time.monotonic` on nothing more is given, and `Slow` raised.
    """

    def __init__(self, raw: bytes, due: float = math.inf) -> None:
        self.raw = raw
        self._due = due
        self._at = 0

    def read(self, size: int = PIECE) -> bytes:
        """The next bytes, at most ``size`` and `PIECE`; none at the end."""
        if time.monotonic() >= self._due:
            raise Slow
        start = self._at
        self._at = start + min(size, PIECE)
        return self.raw[start : self._at]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.read, b"")


def _zlib(coded: Coded, wbits: int) -> Iterator[bytes]:
    """Members one after the other (RFC 1952 allows several for gzip), each piece at most `PIECE` bytes."""
    decoder = zlib.decompressobj(wbits)
    members = 1
    for data in coded:
        while data:
            if decoder.eof:
                members += 1
                if wbits != 31 or members > MAX_MEMBERS:
                    raise Broken
                decoder = zlib.decompressobj(wbits)
            try:
                yield decoder.decompress(data, PIECE)
            except zlib.error:
                raise Broken from None
            data = decoder.unused_data if decoder.eof else decoder.unconsumed_tail
    while not decoder.eof:
        # All input is taken; the decoder may still hold output.
        piece = decoder.decompress(b"", PIECE)
        if not piece and not decoder.eof:
            raise Broken
        yield piece


def _gzip(coded: Coded) -> Iterator[bytes]:
    return _zlib(coded, 31)


def _deflate(coded: Coded) -> Iterator[bytes]:
    # RFC 9110 says zlib format; some senders leave its header out. The header check tells the two apart.
    raw = coded.raw
    headed = len(raw) >= 2 and raw[0] & 15 == 8 and (raw[0] << 8 | raw[1]) % 31 == 0
    return _zlib(coded, 15 if headed else -15)


def _zstd(coded: Coded) -> Iterator[bytes]:
    try:
        # A frame that is cut short reads as an early end: what it held is then no complete JSON either.
        decoder = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)
        reader = decoder.stream_reader(coded, read_across_frames=True)  # type: ignore[arg-type] # it has what is needed
        while piece := reader.read(PIECE):
            yield piece
    except zstandard.ZstdError:
        raise Broken from None


def _brotli(coded: Coded) -> Iterator[bytes]:
    decoder = brotli.Decompressor()
    try:
        for data in coded:
            yield decoder.process(data, output_buffer_limit=PIECE)  # fails for data after the end
            while not decoder.can_accept_more_data() and not decoder.is_finished():
                yield decoder.process(b"", output_buffer_limit=PIECE)
        while not decoder.is_finished():
            # All input is taken; the decoder may still hold output.
            piece = decoder.process(b"", output_buffer_limit=PIECE)
            if not piece and not decoder.is_finished():
                raise Broken
            yield piece
    except brotli.error:
        raise Broken from None


DECODERS: dict[str, Callable[[Coded], Iterator[bytes]]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "zstd": _zstd,
    "br": _brotli,
}


def decode(coding: str, raw: bytes, limit: int, within_s: float, grown: Callable[[int], None] | None = None) -> bytes:
    """``raw`` without its content coding. ``grown`` is told how many bytes there are, piece by piece, and may raise.

    Raises `ApiError`: 400 when broken, 408 after ``within_s`` seconds, 413 over ``limit`` bytes or as a bomb.
    """
    pieces: list[bytes] = []
    size = 0
    try:
        for piece in DECODERS[coding](Coded(raw, time.monotonic() + within_s)):
            size += len(piece)
            if size > limit or (size > BOMB_FROM and size > BOMB_RATIO * len(raw)):
                raise errors.too_large(limit)
            if grown is not None:
                grown(size)
            pieces.append(piece)
    except Broken:
        raise ApiError(
            400, "The body is not valid for its Content-Encoding.", code="invalid_content_encoding"
        ) from None
    except Slow:
        raise ApiError(408, "The body took too long to decode.", code="request_timeout") from None
    return b"".join(pieces)


def decoded_start(coding: str, raw: bytes, limit: int) -> bytes:
    """At most ``limit`` bytes of what ``raw``, the start of a reply, says under its ``Content-Encoding``.

    As far as it can be decoded; as it is where the coding is not known.
    """
    decoder = DECODERS.get(coding.strip().lower())
    if decoder is None:
        return raw[:limit]
    out = bytearray()
    with contextlib.suppress(Broken):
        for piece in decoder(Coded(raw)):
            out += piece
            if len(out) >= limit:
                break
    return bytes(out[:limit])


def _listed(request: web.BaseRequest, name: str) -> list[str]:
    """The members of a header that is a list (RFC 9110, 5.6.1), in lower case."""
    members = ",".join(request.headers.getall(name, [])).lower().split(",")
    return [member for member in map(str.strip, members) if member]


def transfer_coding_is_known(request: web.BaseRequest) -> None:
    """Raises 501 where the body has another transfer coding than ``chunked``, which aiohttp would leave in it."""
    if any(coding != "chunked" for coding in _listed(request, "Transfer-Encoding")):
        raise ApiError(
            501, "The only transfer coding that is known is chunked.", code="unsupported_transfer_coding", close=True
        )


def coding_of(request: web.BaseRequest) -> str | None:
    """The content coding to undo, None for none. Raises 415 for one that is not known."""
    codings = [coding for coding in _listed(request, "Content-Encoding") if coding != "identity"]
    if not codings:
        return None
    if len(codings) == 1 and codings[0] in DECODERS:
        return codings[0]
    raise ApiError(
        415,
        "Content-Encoding must be gzip, deflate, zstd or br.",
        code="unsupported_content_encoding",
        headers={"Accept-Encoding": "gzip, deflate, zstd, br"},
    )


def expects_continue(request: web.BaseRequest) -> bool:
    """Whether the client waits for "100 Continue". Raises 417 for any other expectation."""
    expect = request.headers.get("Expect")
    if expect is None or request.version < (1, 1):
        return False
    if expect.strip().lower() != "100-continue":
        raise ApiError(417, "The only expectation that is met is 100-continue.", code="expectation_failed")
    return True


Run = Callable[[int, Callable[[], bytes]], Awaitable[bytes]]
"""Runs work on so many bytes in a thread."""


async def read(request: web.BaseRequest, limit: int, pace: Pace, share: Share, run: Run, decode_s: float) -> bytes:
    """The decoded body, at most ``limit`` bytes. Decoding is done by ``run`` and may take ``decode_s`` seconds.

    Raises `ApiError`: 400, 408, 413, 415, 429.
    """
    coding = coding_of(request)
    waiting = expects_continue(request)
    declared = request.content_length or 0
    if declared > limit:
        # A client that waits for "100 Continue" sends no body after this answer, so the connection is of no more use.
        raise errors.too_large(limit, close=waiting)
    share.fits(declared)
    if waiting and request.can_read_body and not request.content.is_eof():
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    raw = await _raw(request, limit, pace, share)
    if coding is None:
        return raw
    came = len(raw)

    def grown(size: int) -> None:
        share.hold(max(came, size))

    plain = await run(4 * came, lambda: decode(coding, raw, limit, decode_s, grown))  # what JSON usually packs to
    share.hold(len(plain))
    return plain


async def _joined(pieces: list[bytes], size: int) -> bytes:
    """The pieces, ``size`` bytes together, as one. Where they are many, others get their turn in between."""
    if size <= JOINED:
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
    whole = io.BytesIO(bytes(size))  # it is given out as it is, without a copy
    since = 0
    for piece in pieces:
        since += whole.write(piece)
        if since >= JOINED:
            since = 0
            await asyncio.sleep(0)
    return whole.getvalue()


async def _raw(request: web.BaseRequest, limit: int, pace: Pace, share: Share) -> bytes:
    pieces: list[bytes] = []
    size = 0
    loop = asyncio.get_running_loop()
    begun = loop.time()
    try:
        async with asyncio.timeout_at(pace.deadline(begun, begun, 0)) as due:
            while piece := await request.content.readany():
                size += len(piece)
                if size > limit:
                    pieces.clear()
                    raise errors.too_large(limit)
                share.take(len(piece))
                pieces.append(piece)
                due.reschedule(pace.deadline(begun, loop.time(), size))
    except TimeoutError:
        raise ApiError(408, "The body did not arrive in time.", code="request_timeout", close=True) from None
    except (RequestPayloadError, ClientPayloadError, web.HTTPException):
        raise ApiError(
            400, "The body's transfer coding is broken.", code="invalid_transfer_coding", close=True
        ) from None
    return await _joined(pieces, size)
