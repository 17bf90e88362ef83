"""Bytes to the proxy as a test wants them: slow, broken, too many, or nothing at all."""

from __future__ import annotations

import asyncio


async def talk(port: int, *pieces: bytes, pause: float = 0.05, quiet_s: float = 0.5) -> bytes:
    """Sends piece by piece; what came back until the other side closed (``<closed>``) or was quiet for ``quiet_s``."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    got = b""
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)
        while True:
            async with asyncio.timeout(quiet_s):
                data = await reader.read(65_536)
            if not data:
                return got + b"<closed>"
            got += data
    except TimeoutError:
        return got
    finally:
        writer.close()


def head(*lines: str) -> bytes:
    """The head of a chat request."""
    return "\r\n".join(("POST /v1/chat/completions HTTP/1.1", "Host: x", *lines, "", "")).encode()
