"""The pass-through of the proxy account: what any proxy made with aiohttp costs, without a thought about what passes.

``python -m tools.bench.passthrough UPSTREAM``: its URL is the first line on standard output; it ends with its standard
input. It sends a request's body on, and then as many bytes more as the header `PAD` says: in the place of the IDs that
TokTier would add. With the header `STREAMED` it sends what it has while the rest still arrives; otherwise it reads the
whole body first, as TokTier has to.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web

PAD, STREAMED = "X-Bench-Pad", "X-Bench-Streamed"
PIECE = 1 << 20
"""Bytes of one write: of 64 KiB to everything at once, what took the least time (docs/log.md)."""
_MOST = 64 << 20
_PADDING = memoryview(b"1" * _MOST)


async def _pieces(request: web.Request, pad: int, streamed: bool) -> AsyncIterator[bytes | memoryview]:
    if streamed:
        async for piece in request.content.iter_any():
            yield piece
    else:
        whole = memoryview(await request.read())
        for start in range(0, len(whole), PIECE):
            yield whole[start : start + PIECE]
    for start in range(0, pad, PIECE):
        yield _PADDING[start : min(start + PIECE, pad)]


def application(upstream: str) -> web.Application:
    """Passes ``POST`` on any path to ``upstream``."""

    async def client(app: web.Application) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            app[_CLIENT] = session
            yield

    async def handle(request: web.Request) -> web.Response:
        pad = int(request.headers.get(PAD, 0))
        size = (request.content_length or 0) + pad
        headers = {"Content-Type": "application/json", "Content-Length": str(size)}
        data = _pieces(request, pad, STREAMED in request.headers)
        async with request.app[_CLIENT].post(upstream + request.path, data=data, headers=headers) as reply:
            return web.Response(status=reply.status, body=await reply.read(), content_type="application/json")

    app = web.Application(client_max_size=_MOST)
    app.cleanup_ctx.append(client)
    app.router.add_post("/{path:.*}", handle)
    return app


_CLIENT = web.AppKey("client", aiohttp.ClientSession)


async def _serve(upstream: str) -> None:
    runner = web.AppRunner(application(upstream), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


def main() -> None:
    import uvloop

    uvloop.run(_serve(sys.argv[1]))


if __name__ == "__main__":
    main()
