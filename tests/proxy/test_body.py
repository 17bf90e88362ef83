"""Bodies: codings, bombs, limits, expectations, broken transfer codings."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import random
import time
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import brotli  # type: ignore[import-untyped]
import pytest
import zstandard
from multidict import CIMultiDict

from proxy import body
from proxy.errors import ApiError
from tests.support.proxy import Stage, staged
from tests.support.raw_http import head, talk

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "héllo " * 50}]}
RAW = json.dumps(CHAT, ensure_ascii=False).encode()
LIMIT = 1 << 20


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


ENCODERS = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "br": brotli.compress,
}


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(tmp_path, server={"max_body_bytes": LIMIT, "read_timeout_s": 2}) as it:
        yield it


@pytest.mark.parametrize("coding", ENCODERS)
def test_decode_undoes_each_coding(coding: str) -> None:
    for data in (b"", b"x", RAW, b"ab" * 300_000):
        assert body.decode(coding, ENCODERS[coding](data), LIMIT, 60) == data


@pytest.mark.parametrize("coding", ENCODERS)
def test_the_start_of_a_reply_is_decoded_as_far_as_it_goes(coding: str) -> None:
    data = bytes(range(256)) * 400
    packed = ENCODERS[coding](data)
    assert body.decoded_start(f" {coding.upper()} ", packed, 1000) == data[:1000]
    assert body.decoded_start(coding, packed, 1 << 20) == data
    for size in range(0, len(packed), 50):
        assert data.startswith(body.decoded_start(coding, packed[:size], 1 << 20))
    assert body.decoded_start(coding, b"\0never packed", 100) == b""
    assert body.decoded_start("", data, 1000) == body.decoded_start("x", data, 1000) == data[:1000]


def test_decode_takes_what_the_specifications_allow() -> None:
    assert body.decode("deflate", raw_deflate(RAW), LIMIT, 60) == RAW
    assert body.decode("gzip", gzip.compress(b"a") + gzip.compress(b"b"), LIMIT, 60) == b"ab"
    compress = zstandard.ZstdCompressor().compress
    assert body.decode("zstd", compress(b"a") + compress(b"b"), LIMIT, 60) == b"ab"


def test_gzip_members_are_limited() -> None:
    assert body.decode("gzip", gzip.compress(b"a") * 5000, LIMIT, 60) == b"a" * 5000
    with pytest.raises(ApiError) as caught:
        body.decode("gzip", gzip.compress(b"") * 20_000, LIMIT, 60)
    assert caught.value.status == 400


def test_parts_that_hold_nothing_come_to_nothing() -> None:
    """Frames and blocks without content, by the hundred thousand, end; what is not limited in number is quick."""
    skipped, frame = b"\x50\x2a\x4d\x18" + bytes(4), zstandard.ZstdCompressor().compress(b"")
    assert body.decode("zstd", frame * 100_000, LIMIT, 60) == b""
    assert body.decode("zstd", skipped * 100_000 + ENCODERS["zstd"](RAW), LIMIT, 60) == RAW
    blocks = b"\x00\x00\x00\xff\xff" * 100_000
    assert body.decode("deflate", b"\x78\x9c" + blocks + zlib.compress(RAW)[2:], LIMIT, 60) == RAW
    with pytest.raises(ApiError):
        body.decode("br", b"\x06" * 500_000, LIMIT, 60)


@pytest.mark.parametrize("coding", ENCODERS)
def test_broken_codings_are_400(coding: str) -> None:
    packed = ENCODERS[coding](RAW)
    broken = [RAW, b"\x00" * 50, b"\xff" * 50]
    if coding != "zstd":  # zstandard reads a cut frame as an early end; what it held is then no complete JSON
        broken.append(packed[:-5])
        broken += [packed + b"trailing", packed + b"\0" * 100_000]
    for data in broken:
        with pytest.raises(ApiError) as caught:
            body.decode(coding, data, LIMIT, 60)
        assert caught.value.status == 400


@pytest.mark.parametrize("coding", ENCODERS)
def test_bombs_are_413_and_never_inflated(coding: str) -> None:
    bomb = ENCODERS[coding](b"0" * 50_000_000)
    for limit in (LIMIT, 64 << 20):
        tracemalloc.start()
        with pytest.raises(ApiError) as caught:
            body.decode(coding, bomb, limit, 60)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert caught.value.status == 413
        assert peak < min(limit, max(body.BOMB_FROM, body.BOMB_RATIO * len(bomb))) + (1 << 20)


class Fed:
    """A decoder; notes how much it is handed at a time."""

    def __init__(self, decoder: Any, sizes: list[int]) -> None:
        self._decoder, self._sizes = decoder, sizes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)

    def process(self, data: bytes, **options: Any) -> bytes:
        self._sizes.append(len(data))
        return self._decoder.process(data, **options)  # type: ignore[no-any-return]

    def decompress(self, data: bytes, size: int) -> bytes:
        self._sizes.append(len(data))
        return self._decoder.decompress(data, size)  # type: ignore[no-any-return]


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br"])
def test_decoders_get_little_at_a_time(coding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they leave over is copied at each step: with all of the input at hand, decoding it would be quadratic."""
    sizes: list[int] = []
    new_zlib, new_brotli = zlib.decompressobj, brotli.Decompressor
    monkeypatch.setattr(zlib, "decompressobj", lambda wbits: Fed(new_zlib(wbits), sizes))
    monkeypatch.setattr(brotli, "Decompressor", lambda: Fed(new_brotli(), sizes))
    for data in (random.Random(1).randbytes(LIMIT), b"ab" * (LIMIT // 2)):
        packed = brotli.compress(data, quality=0) if coding == "br" else ENCODERS[coding](data)
        sizes.clear()
        assert body.decode(coding, packed, LIMIT, 60) == data
        assert max(sizes) <= body.PIECE
        assert sum(sizes) <= 2 * (len(packed) + len(data))


@pytest.mark.parametrize("coding", ENCODERS)
def test_decoding_ends_when_its_time_is_up(coding: str) -> None:
    for data in (RAW, b"0" * 3_000_000):
        with pytest.raises(ApiError) as caught:
            body.decode(coding, ENCODERS[coding](data), 64 << 20, 0)
        assert (caught.value.status, caught.value.code) == (408, "request_timeout")


def test_one_read_of_frames_without_content_ends_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing comes out of them, so only what goes in can be counted."""
    clock = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with pytest.raises(ApiError) as caught:
        body.decode("zstd", (b"\x50\x2a\x4d\x18" + bytes(4)) * 100_000, LIMIT, 5)
    assert caught.value.status == 408
    assert next(clock) == 6  # when it began, four pieces, and one that was not given


def test_large_but_plain_bodies_are_no_bombs() -> None:
    text = "".join(f"{n:08x}" for n in range(1_200_000)).encode()
    assert body.decode("gzip", gzip.compress(text, 1), 64 << 20, 60) == text


@pytest.mark.parametrize("sizes", [(), (3,), (700, 1, 700, 701), (64, *[1000] * 5, 7)])
async def test_pieces_are_put_together_while_others_go_on(
    sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "JOINED", 1000)
    pieces = [bytes(number % 251 for number in range(size)) for size in sizes]
    turns = [0]

    async def others() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    size = sum(sizes)
    joined = await body._joined(list(pieces), size)
    beside.cancel()
    assert type(joined) is bytes
    assert joined == b"".join(pieces)
    assert turns[0] >= size // 2000
    assert (turns[0] == 0) == (size <= 1000)


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "zstd", "br", "deflate"])
async def test_encoded_requests_are_served_and_go_up_plain(stage: Stage, coding: str) -> None:
    packed = ENCODERS[coding.lower()](RAW)
    assert (await stage.post(packed, headers={"Content-Encoding": coding}))[0] == 200
    seen = stage.up.chats[0]
    assert seen.header("Content-Encoding") is None
    assert int(seen.header("Content-Length") or 0) == len(seen.body)
    assert seen.body.startswith(RAW[:-1])


async def test_refused_codings(stage: Stage) -> None:
    for coding, status in (("snappy", 415), ("gzip, gzip", 415), ("gzip", 400), ("zstd", 400), ("identity", 200)):
        assert (await stage.post(RAW, headers={"Content-Encoding": coding}))[0] == status
    for coding in ("identity, identity", ", Identity ,", "", ","):
        assert (await stage.post(RAW, headers={"Content-Encoding": coding}))[0] == 200, coding
    twice = CIMultiDict([("Content-Encoding", "identity")] * 2)
    assert (await stage.post(RAW, headers=twice))[0] == 200
    packed = CIMultiDict([("Content-Encoding", "identity"), ("Content-Encoding", "gzip")])
    assert (await stage.post(gzip.compress(RAW), headers=packed))[0] == 200
    bomb = gzip.compress(b"0" * 50_000_000)
    status, error = await stage.error(bomb, headers={"Content-Encoding": "gzip"})
    assert (status, error["code"]) == (413, "request_too_large")
    assert (await stage.post(RAW))[0] == 200


async def test_a_body_that_decodes_too_slowly_is_408(tmp_path: Path) -> None:
    async with staged(tmp_path, server={"prepare_timeout_s": 1e-9}) as stage:
        for coding in ENCODERS:
            status, error = await stage.error(ENCODERS[coding](RAW), headers={"Content-Encoding": coding})
            assert (status, error["code"]) == (408, "request_timeout")
        assert (await stage.post(RAW))[0] == 200  # as text


@pytest.mark.parametrize("coding", ["gzip, chunked", "identity, chunked", "GZIP,Chunked"])
async def test_other_transfer_codings_are_not_passed_on(stage: Stage, coding: str) -> None:
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(RAW), RAW)
    answer = await talk(stage.proxy.port, head(f"Transfer-Encoding: {coding}") + chunks)
    assert answer.startswith(b"HTTP/1.1 501 Not Implemented\r\n")
    assert b'"unsupported_transfer_coding"' in answer
    assert answer.endswith(b"<closed>")
    assert [line["error"] for line in stage.proxy.log] == ["unsupported_transfer_coding"]
    assert not stage.up.chats


async def test_chunked_is_known_however_it_is_written(stage: Stage) -> None:
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(RAW), RAW)
    for coding in ("chunked", "Chunked", " chunked "):
        answer = await talk(stage.proxy.port, head(f"Transfer-Encoding: {coding}") + chunks)
        assert answer.startswith(b"HTTP/1.1 200"), coding


async def test_limit_holds_for_declared_and_chunked_bodies(stage: Stage) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b"0" * 65_536

    status, error = await stage.error(b"0" * (LIMIT + 1))
    assert (status, error["code"]) == (413, "request_too_large")
    async with stage.client.post(stage.proxy.url + "/v1/chat/completions", data=chunks()) as reply:
        assert reply.status == 413
        assert reply.content_type == "application/json"
    assert (await stage.post(RAW))[0] == 200
    assert len(stage.up.chats) == 1


async def test_continue_comes_before_the_body_and_is_not_forwarded(stage: Stage) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.proxy.port)
    writer.write(head("Expect: 100-continue", f"Content-Length: {len(RAW)}"))
    async with asyncio.timeout(20):
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(RAW)
    async with asyncio.timeout(20):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    writer.close()
    assert stage.up.chats[0].header("Expect") is None


async def test_no_continue_for_a_body_that_is_not_wanted(stage: Stage) -> None:
    got = await talk(stage.proxy.port, head("Expect: 100-continue", "Content-Length: 99999999999"))
    assert got.startswith(b"HTTP/1.1 413")
    assert got.endswith(b"<closed>")
    assert b"100 Continue" not in got


async def test_no_continue_without_a_key(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("a:secret-key-a\n")
    async with staged(tmp_path, auth={"mode": "keys", "key_file": keys}) as stage:
        got = await talk(
            stage.proxy.port, head("Expect: 100-continue", "Content-Length: 10", "Authorization: Bearer wrong")
        )
    assert got.startswith(b"HTTP/1.1 401")
    assert got.endswith(b"<closed>")
    assert b"100 Continue" not in got


async def test_other_expectations_are_417(stage: Stage) -> None:
    got = await talk(stage.proxy.port, head("Expect: pancake", f"Content-Length: {len(RAW)}") + RAW)
    assert got.startswith(b"HTTP/1.1 417")
    assert b'"error"' in got
    assert stage.up.chats == []


async def test_broken_chunks_are_400(stage: Stage) -> None:
    got = await talk(stage.proxy.port, head("Transfer-Encoding: chunked") + b"5\r\nabcde\r\nnonsense\r\n")
    assert got.split()[1] == b"400"
    assert b'{"error"' in got
    assert b"nonsense" not in got
    assert stage.up.chats == []


async def test_malformed_http_is_json_and_quotes_nothing(stage: Stage) -> None:
    for data in (b"CANARY\r\n\r\n", head("Bad Header CANARY: x"), b"GET /health HTTP/9.CANARY\r\n\r\n"):
        got = await talk(stage.proxy.port, data)
        assert got.split()[1] == b"400"
        assert b'{"error"' in got
        assert b"CANARY" not in got
    assert "CANARY" not in repr(stage.proxy.events)


async def test_slow_body_is_408(tmp_path: Path) -> None:
    async with staged(tmp_path, server={"read_timeout_s": 0.1}) as stage:
        got = await talk(stage.proxy.port, head("Content-Length: 100"), b"{")
        assert got.startswith(b"HTTP/1.1 408")
