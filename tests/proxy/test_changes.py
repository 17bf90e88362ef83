"""The list of changes, as functions."""

from __future__ import annotations

import json

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from proxy import changes
from proxy.jsonspan import parse


def proxied(*pairs: tuple[str, str]) -> CIMultiDictProxy[str]:
    return CIMultiDictProxy(CIMultiDict(pairs))


CLIENT = proxied(
    ("Host", "proxy"),
    ("Authorization", "Bearer a"),
    ("X-Api-Key", "b"),
    ("Api-Key", "c"),
    ("Cookie", "d=e"),
    ("Content-Length", "5"),
    ("Content-Encoding", "gzip"),
    ("Connection", "close, X-Hop , x-other"),
    ("X-Hop", "1"),
    ("X-OTHER", "1"),
    ("Connection", "x-second"),
    ("X-Second", "1"),
    ("X-Latin-1", "caf\udce9"),
    ("Keep-Alive", "1"),
    ("Expect", "100-continue"),
    ("X-Twice", "1"),
    ("X-Twice", "2"),
    ("Accept", "*/*"),
)


def test_request_headers_without_passthrough() -> None:
    sent = changes.request_headers(CLIENT, passthrough=False, credential=None, request_id="r")
    assert list(sent.items()) == [("X-Twice", "1"), ("X-Twice", "2"), ("Accept", "*/*"), ("X-Request-Id", "r")]
    sent = changes.request_headers(CLIENT, passthrough=False, credential="Bearer up", request_id="r")
    assert sent.getall("Authorization") == ["Bearer up"]
    assert "X-Api-Key" not in sent


def test_request_headers_with_passthrough() -> None:
    sent = changes.request_headers(CLIENT, passthrough=True, credential="Bearer a", request_id="r")
    assert [sent.getall(n) for n in ("Authorization", "X-Api-Key", "Cookie")] == [["Bearer a"], ["b"], ["d=e"]]
    odd = proxied(("Authorization", "Bearer a\udce9"))
    sent = changes.request_headers(odd, passthrough=True, credential="Bearer a\udce9", request_id="r")
    assert "Authorization" not in sent  # not another, shorter key


def test_reply_headers() -> None:
    headers = proxied(
        ("Content-Length", "3"),
        ("Content-Encoding", "gzip"),
        ("Set-Cookie", "a"),
        ("Set-Cookie", "b"),
        ("Transfer-Encoding", "chunked"),
        ("Connection", "keep-alive"),
        ("Connection", "X-Hop"),
        ("X-Hop", "1"),
        ("X-Latin-1", "caf\udce9"),
    )
    assert list(changes.reply_headers(headers).items()) == [
        ("Content-Length", "3"),
        ("Content-Encoding", "gzip"),
        ("Set-Cookie", "a"),
        ("Set-Cookie", "b"),
    ]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b'{"input_ids":[1]}', "input_ids"),
        (b'{"input_ids":null,"prompt_token_ids":null,"prompt_token_ids_b64":null}', None),
        (b'{"kv_transfer_params":{"prompt_token_ids":null},"nvext":{"token_data":null}}', None),
        (b'{"input_ids":null,"input_ids":[1],"input_ids":null}', "input_ids"),
        (b'{"nvext":{"token_data":null},"nvext":{"token_data":0}}', "nvext.token_data"),
        (b'{"nvext":{"token_data":[1],"token_d\\u0061ta":null}}', "nvext.token_data"),
        (b'{"nvext":{"a":{"token_data":[1]},"token_data":null}}', None),
        (b'{"nvext":{"a":"' + b"x" * 5000 + b'","token_data":null}}', "nvext.token_data"),
        (b'{"prompt_token_ids":[]}', "prompt_token_ids"),
        (b'{"kv_transfer_params":{"prompt_token_ids":[1]}}', "kv_transfer_params.prompt_token_ids"),
        (b'{"nvext":{"token_data":[1]}}', "nvext.token_data"),
        (b'{"nvext":{"a":1},"nvext":{"token_data":[1]},"nvext":3}', "nvext.token_data"),
        (b'{"kv_transfer_params":{"a":{"prompt_token_ids":[1]}}}', None),
        (b'{"kv_transfer_params":["prompt_token_ids"]}', None),
        (b'{"kv_transfer_params":[["prompt_token_ids",1]]}', None),
        (b'{"kv_transfer_params":null,"nvext":{}}', None),
        (b'{"messages":[{"input_ids":[1]}],"prompt":[1,2]}', None),
    ],
)
def test_client_ids(body: bytes, path: str | None) -> None:
    assert changes.client_ids(parse(body)) == path


@pytest.mark.parametrize("field", changes.ID_PATHS)
def test_id_member(field: str) -> None:
    name, value = changes.id_member(field, [b"[1", b",2]"])
    found = {name: json.loads(b"".join(value))}
    for step in changes.ID_PATHS[field]:
        found = found[step]
    assert found == [1, 2]


def test_error_event_is_one_event() -> None:
    for boundary in (True, False):
        event = changes.error_event(boundary).decode()
        assert event.startswith("event: error\n" if boundary else "\n\nevent: error\n")
        assert event.endswith("}\n\n")
        data = json.loads(event.split("data: ")[1])
        assert data["error"]["message"]
        assert "[DONE]" not in event
