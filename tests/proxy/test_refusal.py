"""A 400 about the IDs is TokTier's to mend, however its body is coded."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import aiohttp
import brotli  # type: ignore[import-untyped]
import pytest
import zstandard

from tests.support.proxy import Stage

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
ABOUT_IDS = b'{"error":{"message":"bad kv_transfer_params.prompt_token_ids","code":400}}'
OTHER = b'{"error":{"message":"max_tokens is too large","code":400}}'
CODINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "GZip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}


def answer(coding: str, body: bytes, status: str = "400 Bad Request") -> list[dict[str, Any]]:
    return [{"head": {"status": status, "headers": {"Content-Encoding": coding}}}, {"send_hex": body.hex()}]


@pytest.mark.parametrize("status", ["400 Bad Request", "422 Unprocessable Entity"])
@pytest.mark.parametrize("coding", CODINGS)
async def test_coded_refusals_of_ids_are_sent_again_as_text(stage: Stage, coding: str, status: str) -> None:
    stage.up.scripts.append(answer(coding, CODINGS[coding](ABOUT_IDS), status))
    code, body = await stage.post(BODY, headers={"Accept-Encoding": "gzip, deflate, br, zstd"})
    assert (code, json.loads(body)["object"]) == (200, "chat.completion")
    assert ["kv_transfer_params" in seen.json for seen in stage.up.chats] == [True, False]
    line = (await stage.proxy.logged(1))[0]
    assert (line["bypass"], line["flags"]) == ("upstream_refused_ids", ["ids_refused_retry"])


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", gzip.compress(OTHER)),
        ("gzip", gzip.compress(ABOUT_IDS)[:20]),
        ("gzip", b"no gzip"),
        ("gzip", gzip.compress(OTHER + b" " * (1 << 26) + ABOUT_IDS)),
        ("compress", OTHER),
    ],
    ids=["about something else", "cut short", "no gzip", "told after 64 MiB", "of another coding"],
)
async def test_what_is_not_known_to_be_about_ids_is_relayed_as_it_came(stage: Stage, coding: str, body: bytes) -> None:
    stage.up.scripts.append(answer(coding, body))
    async with stage.client.post(stage.proxy.url + "/v1/chat/completions", json=BODY) as reply:
        assert (reply.status, reply.headers["Content-Encoding"]) == (400, coding)
        assert await reply.read() == body
    assert len(stage.up.chats) == 1


async def test_a_refusal_that_breaks_off_breaks_off_for_the_client(stage: Stage) -> None:
    start = [{"head": {"status": "400 Bad Request"}}, {"send_hex": ABOUT_IDS[:12].hex()}, {"close": True}]
    stage.up.scripts.append(start)
    with pytest.raises(aiohttp.ClientError):
        await stage.post(BODY)
    assert len(stage.up.chats) == 1
    assert (await stage.proxy.logged(1))[0]["flags"] == ["incomplete_stream"]
