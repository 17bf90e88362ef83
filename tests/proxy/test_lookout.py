"""The silent connection: when its end is told, and when it says nothing any more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from proxy import lookout
from proxy.config import Upstream as Settings
from proxy.lookout import FEW, Lookout


class Peer:
    """Accepts connections and keeps what arrives on them."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.live_s: float | None = None
        self.port = 0

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(self.live_s):
                while piece := await reader.read(100):
                    self.got.append(piece)
        writer.close()

    async def stop(self) -> None:
        self._server.close()
        for writer in self.writers:
            writer.transport.abort()
        await asyncio.sleep(0)


class Watched:
    def __init__(self, port: int) -> None:
        self.gone = 0
        self.lookout = Lookout("u", Settings(url=f"http://127.0.0.1:{port}"))
        self.lookout.on_gone = self._gone

    def _gone(self) -> None:
        self.gone += 1

    async def told(self, times: int) -> None:
        async with asyncio.timeout(10):
            while self.gone < times:
                await asyncio.sleep(0.005)


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    it = Peer()
    await it.listen()
    yield it
    await it.stop()


@pytest.fixture
async def watched(peer: Peer) -> AsyncIterator[Watched]:
    it = Watched(peer.port)
    task = asyncio.create_task(it.lookout.keep())
    yield it
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.sleep(0.01)


async def test_nothing_is_sent_and_an_end_is_told_once(peer: Peer, watched: Watched) -> None:
    assert await watched.lookout.ready()
    assert (len(peer.writers), watched.gone) == (1, 0)
    peer.writers[0].transport.abort()
    await watched.told(1)
    assert await watched.lookout.ready()
    assert (len(peer.writers), watched.gone, peer.got) == (2, 1, [])


async def test_a_half_closed_connection_has_ended(peer: Peer, watched: Watched) -> None:
    assert await watched.lookout.ready()
    peer.writers[0].write_eof()
    await watched.told(1)


async def test_a_peer_that_speaks_first_is_no_engine(peer: Peer, watched: Watched) -> None:
    assert await watched.lookout.ready()
    peer.writers[0].write(b"220 hello\r\n")
    await watched.told(1)


async def test_whoever_waits_for_it_has_it_as_soon_as_something_listens(peer: Peer) -> None:
    await peer.stop()
    watched = Watched(peer.port)
    task = asyncio.create_task(watched.lookout.keep())
    assert not await watched.lookout.ready(0.05)
    await peer.listen()
    assert await watched.lookout.ready(5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_peer_with_a_time_limit_is_distrusted(
    peer: Peer, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookout, "DISTRUSTED_PAUSE_S", 0.05)
    peer.live_s = 0.01
    await watched.told(FEW - 1)
    async with asyncio.timeout(10):
        while len(peer.writers) < FEW + 3:
            await asyncio.sleep(0.01)
    assert watched.gone == FEW - 1, "the limit of the peer says nothing of its process"
    monkeypatch.setattr(lookout, "SHORT_S", 0.005)
    await watched.told(FEW)


async def test_restarts_at_once_are_told_while_their_times_differ(
    peer: Peer, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookout, "ALIKE_S", 0.02)
    for number in range(1, FEW + 4):
        assert await watched.lookout.ready(5)
        await asyncio.sleep(0.15 * (number % 2))
        peer.writers[-1].transport.abort()
        await watched.told(number)


async def test_restarts_that_take_time_are_always_told(peer: Peer, watched: Watched) -> None:
    for number in range(1, FEW + 2):
        assert await watched.lookout.ready(5)
        await peer.stop()
        await watched.told(number)
        await asyncio.sleep(0.02)
        await peer.listen()


async def test_its_end_leaves_no_connection(peer: Peer) -> None:
    watched = Watched(peer.port)
    task = asyncio.create_task(watched.lookout.keep())
    assert await watched.lookout.ready()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    async with asyncio.timeout(20):
        while not peer.writers[0].is_closing():
            await asyncio.sleep(0.005)
    assert watched.gone == 0
