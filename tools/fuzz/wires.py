"""Inputs whose HTTP is not in order: request lines, headers, lengths, chunks, pipelines, what is cut short or slow."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from random import Random

from tools.fuzz.bodies import CHAT
from tools.fuzz.inputs import NAME, Input, request

Shape = Callable[[Random, int], Input]
SHAPES: list[tuple[int, Shape]] = []
"""Weight and maker of each shape."""

_BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "CANARY hello"}]}).encode()
_TARGETS = (
    b"/", b"*", b"", b"//v1/chat/completions", b"/v1//chat/completions", b"/v1/chat/completions/",
    b"/V1/chat/completions", b"/v1/../v1/chat/completions", b"/v1/chat%2fcompletions", b"/v1/chat/completions%00",
    b"/v1/chat/completions%0d%0aX:1", b"/v1/chat/completions;x=1", b"/v1\\chat\\completions", b"/\xff\xfe",
    b"/v1/models/\xe4\xbd\xa0", b"/v1/models/%ff", b"/v1/models/../../metrics", b"/v1/models/%2e%2e/%2e%2e/metrics",
    b"/v1/models/m%0d%0aX-CANARY:%201", b"/v1/models/%", b"/v1/responses/resp_1/../../../metrics",
    b"http://CANARY.example/v1/chat/completions", b"http://fuzz/metrics", b"CANARY.example:443", b"http://[::1",
    b"http://u:CANARY@fuzz/health", b"/health?CANARY=1", b"/health#CANARY", b"/metrics?x=\"<script>CANARY",
    b"/ready?%00", b"/v1/chat/completions?" + b"a" * 30_000, b"/" + b"a/" * 18_000, b"/v1/models/" + b"%41" * 900,
    b"/sleep", b"/reset_prefix_cache", b"/v1/load_lora_adapter", b"/docs", b"/openapi.json",
)  # fmt: skip
_METHODS = (
    b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"TRACE", b"CONNECT", b"PRI", b"get", b"post",
    b"", b"POST POST", b"CANARY", b"M-SEARCH", b"\x00POST", b"PO\tST", b"P" * 5_000, b"\xff\xff", b"QUERY",
)  # fmt: skip
_VERSIONS = (
    b"HTTP/1.1", b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/9.9", b"HTTP/1.1 ", b"HTTP/1.10", b"http/1.1",
    b"HTTP/-1.1", b"", b"HTTPS/1.1", b"HTTP/1.1\x00", b"HTTP/1,1", b"ICY", b"HTTP/ 1.1",
)  # fmt: skip
_HEADERS = (
    b"Broken", b": empty", b" : space", b"Name : value", b"X\x00Y: 1", b"X: \x00CANARY", b"X: a\rb", b"X: a\x0bb",
    b"X\xff: 1", b"X: \xff\xfe", b"X: 1\r\n folded CANARY", b" leading: 1", b"X: " + b"v" * 40_000,
    b"X" * 40_000 + b": 1", b"X: \x7f", b"Host: other", b"Host:", b"Host: a b", b"Host: CANARY/../x",
    b"Connection: close, X-Request-Id, Authorization", b"Connection: \xff",
    b"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: Q0FOQVJZ", b"Upgrade: h2c",
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__", b"Expect: 100-continue",
    b"Expect: 200-ok", b"Expect: 100-continue\r\nExpect: CANARY", b"Expect:", b"TE: trailers", b"Trailer: X-CANARY",
    b"Range: bytes=0-1", b"If-None-Match: *", b"Content-Encoding: gzip",
    b"Content-Encoding: gzip\r\nContent-Encoding: br", b"Content-Encoding: ,",
    b"Authorization: Bearer CANARY-A\r\nAuthorization: Bearer CANARY-B", b"Authorization:",
    b"authorization: Bearer \xf0\x9f\xab\xa8", b"AUTHORIZATION: Bearer CANARY", b"X-Api-Key: \xed\xa0\x80",
    b"X-Request-Id: CANARY not plain", b"X-Request-Id: " + b"i" * 5_000, b"Cookie: CANARY=1; CANARY=2",
    b"Keep-Alive: max=0", b"Transfer-Encoding : chunked", b"Proxy-Authorization: Basic CANARY",
    b"X-Forwarded-For: CANARY", b"Max-Forwards: 0", b"Content-Type: \x00", b"Accept: CANARY",
    b"X-H: 1\r\n" * 300 + b"X-I: 1", b"\x00", b"\xff\xff\xff\xff", b"GET / HTTP/1.1",
)  # fmt: skip
_LENGTHS = (
    b"-1", b"+5", b"0x10", b"1e1", b"5, 5", b"5,6", b"", b" ", b"99999999999999999999", b"4294967296", b"67108865",
    b"1_0", b"5\x00", b"05", b"\xd9\xa3", b"CANARY", b"0", b"7", b"18446744073709551617",
)  # fmt: skip
_CODINGS = (
    b"chunked, identity", b"identity", b"gzip, chunked", b"chunked, chunked", b"xchunked",
    b"chunked\r\nTransfer-Encoding: x", b"\x0bchunked", b"chunked;q=1", b"", b"CHUNKED", b"chunked, CANARY",
    b"trailers, chunked", b"\"chunked\"", b"cow",
)  # fmt: skip
_CHUNKS = (
    b"5\r\nhello\r\n0\r\n\r\n", b"5\r\nhelloX0\r\n\r\n", b"g\r\nhello\r\n0\r\n\r\n", b"-5\r\nhello\r\n0\r\n\r\n",
    b"0x5\r\nhello\r\n", b"5;CANARY=" + b"e" * 30_000 + b"\r\nhello\r\n0\r\n\r\n", b"ffffffffffffffff\r\nhello\r\n",
    b"fffffffffffffffff1\r\nhello\r\n", b"5\nhello\n0\n\n", b"5 \r\nhello\r\n0\r\n\r\n", b" 5\r\nhello\r\n0\r\n\r\n",
    b"\r\n0\r\n\r\n", b"0\r\nX-CANARY: 1\r\n\r\n", b"0\r\nContent-Length: 5\r\nAuthorization: CANARY\r\n\r\n",
    b"5\r\nhel", b"5\r\nhello\r\n", b"5\r\nhello\r\n0\r\n", b"0\r\n\r\n\r\n",
    b"00000000000000000005\r\nhello\r\n0\r\n\r\n", b"5;a;b;c=\"\r\nhello\r\n0\r\n\r\n",
    b"1\r\nA\r\n" * 3_000 + b"0\r\n\r\n", b"5\r\n\r\n", b"0" * 30_000 + b"\r\n\r\n",
    b"0\r\n" + b"X: 1\r\n" * 500 + b"\r\n", b"0\r\n" + b"X" * 40_000 + b": 1\r\n\r\n", b"0;\xff\r\n\r\n",
)  # fmt: skip
_BINARY = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) * 2, b"SSH-2.0-CANARY\r\n", b"\x00" * 5_000,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x12\x04\x00" * 4, b"\x05\x01\x00", b"EHLO CANARY\r\n",
    b"\r\n" * 2_000, b"\n\n\n", b"*1\r\n$4\r\nPING\r\n", b"{}", b"GET\r\n\r\n", b"\xff" * 40_000, b"A" * 70_000,
    b"HTTP/1.1 200 OK\r\n\r\n",
)  # fmt: skip
_SCHEMES = (
    b"http://", b"https://", b"HTTP://", b"ws://", b"http:", b"http:/", b"//", b"///", b"file://", b"data:", b"",
)  # fmt: skip
_HOSTS = (
    b"fuzz", b"xn--a", b"xn--", b"XN--0", b"xn--a-", b"a.xn--b", b"xn--" + b"z" * 17, b"xn--80ak6aa92e.com", b"a..b",
    b"\xc3\x9f.de", b"\xff", b"1.2.3.4", b"256.256.256.256", b"0x7f.1", b"[::1]", b"[::1%25eth0]", b"[fe80::1%x]", b"[",
    b"[v1.x]", b"[]", b"[::g]", b"::1", b"a_b", b"-a-", b"a" * 64 + b".b", b"a" * 300, b".", b"..", b"a.", b"", b"*",
    b"%41", b"%zz", b"%00", b"a%2fb", b"a\\b", b"a|b", b"a<b", b'a"b', b"a{b", b"CANARY.example",
)  # fmt: skip
_USERS = (b"", b"", b"", b"@", b"u@", b"u:CANARY@", b"u:p:q@", b":@", b"xn--a@", b"%zz@", b"u@v@")
_PORTS = (b"", b"", b"", b":", b":0", b":80", b":65535", b":65536", b":99999", b":-1", b":CANARY", b":8 0", b":80:80")
_PATHS = (CHAT.encode(), b"/health", b"/metrics", b"", b"?CANARY=1", b"#CANARY", b"/", b"//", b"/v1/models/m", b"/..")


def shape(weight: int) -> Callable[[Shape], Shape]:
    def add(make: Shape) -> Shape:
        SHAPES.append((weight, make))
        return make

    return add


def wire_input(seed: int, number: int) -> Input:
    """Input ``number``."""
    rng = Random(f"{seed}/wire/{number}")
    make = rng.choices([make for _, make in SHAPES], [weight for weight, _ in SHAPES])[0]
    return make(rng, number)


def _made(number: int, shape: str, *pieces: bytes, **more: object) -> Input:
    method = "HEAD" if pieces and pieces[0].startswith(b"HEAD ") else "POST"
    return Input(number, shape, pieces, method=method, wire=True, **more)  # type: ignore[arg-type]


def _name(number: int) -> str:
    """Not one that a changed byte makes another input's."""
    return f"wire-{NAME}{number}"


def _head(number: int, *lines: bytes) -> bytes:
    first = b"POST " + CHAT.encode() + b" HTTP/1.1"
    return b"\r\n".join([first, b"Host: fuzz", b"X-Request-Id: " + _name(number).encode(), *lines, b"", b""])


@shape(20)
def request_line(rng: Random, number: int) -> Input:
    parts = [rng.choice(_METHODS[:4]), rng.choice((CHAT.encode(), b"/health")), b"HTTP/1.1"]
    for _ in range(rng.choice((1, 1, 2))):
        which = rng.randrange(3)
        parts[which] = rng.choice((_METHODS, _TARGETS, _VERSIONS)[which])
    line = rng.choice((b" ", b" ", b" ", b"  ", b"\t")).join(parts)
    head = b"\r\n".join([line, b"Host: fuzz", b"X-Request-Id: " + _name(number).encode()])
    return _made(number, "request-line", head + b"\r\nContent-Length: 0\r\n\r\n")


@shape(12)
def absolute(rng: Random, number: int) -> Input:
    """Targets with a scheme or a host: what is no name, no address or no port must be answered too."""
    host = rng.choice(_USERS) + rng.choice(_HOSTS) + rng.choice(_PORTS)
    target = rng.choice(_SCHEMES) + host + rng.choice(_PATHS)
    method = b"CONNECT" if rng.random() < 0.1 else rng.choice((b"GET", b"GET", b"POST", b"OPTIONS"))
    named = rng.choice((b"fuzz", b"fuzz", host))
    lines = [b"%b %b HTTP/1.1" % (method, target), b"Host: " + named, b"X-Request-Id: " + _name(number).encode()]
    return _made(number, "absolute", b"\r\n".join([*lines, b"", b""]))


@shape(25)
def headers(rng: Random, number: int) -> Input:
    lines = [rng.choice(_HEADERS) for _ in range(rng.choice((1, 1, 2, 3)))]
    lines.insert(rng.randrange(len(lines) + 1), b"Content-Length: %d" % len(_BODY))
    return _made(number, "headers", _head(number, *lines) + _BODY)


@shape(10)
def lengths(rng: Random, number: int) -> Input:
    lines = [b"Content-Length: " + rng.choice(_LENGTHS) for _ in range(rng.choice((1, 1, 2)))]
    return _made(number, "lengths", _head(number, *lines) + _BODY)


@shape(12)
def codings(rng: Random, number: int) -> Input:
    """Both lengths, odd codings: what two servers could read as two different requests."""
    lines = [b"Transfer-Encoding: " + rng.choice(_CODINGS)]
    if rng.random() < 0.6:
        length = rng.choice((b"%d" % len(_BODY), rng.choice(_LENGTHS)))
        lines.insert(rng.randrange(2), b"Content-Length: " + length)
    inner = b"%x\r\n%b\r\n0\r\n\r\n" % (len(_BODY), _BODY)
    smuggled = request(_name(number), "GET", "/v1/models/CANARY", length=False)
    rest = rng.choice((inner, _BODY, inner + smuggled, b"0\r\n\r\n" + smuggled, _BODY + smuggled))
    return _made(number, "codings", _head(number, *lines) + rest)


@shape(12)
def chunks(rng: Random, number: int) -> Input:
    head = _head(number, b"Transfer-Encoding: chunked")
    body = rng.choice(_CHUNKS)
    if rng.random() < 0.4:
        cut = rng.randrange(1, len(_BODY))
        body = b"%x\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (cut, _BODY[:cut], len(_BODY) - cut, _BODY[cut:])
        body = _flip(rng, body)
    return _made(number, "chunks", head + body)


@shape(10)
def pipeline(rng: Random, number: int) -> Input:
    parts = []
    for _ in range(rng.randrange(2, 9)):
        kind = rng.randrange(6)
        if kind < 2:
            parts.append(request(_name(number), "POST", CHAT, _BODY))
        elif kind == 2:
            parts.append(request(_name(number), "GET", "/health", length=False))
        elif kind == 3:
            parts.append(request(_name(number), "POST", CHAT, _flip(rng, _BODY)))
        elif kind == 4:
            parts.append(request(_name(number), "GET", "/nowhere", length=False))
        else:
            parts.append(b"\r\n")
    replies = sum(part != b"\r\n" for part in parts)
    if rng.random() < 0.3:
        parts[rng.randrange(len(parts))] = rng.choice(_BINARY)[:400]
        replies = 1
    return _made(number, "pipeline", b"".join(parts), replies=max(replies, 1))


@shape(10)
def cut_short(rng: Random, number: int) -> Input:
    """A client that leaves in the middle, in one of three ways."""
    whole = request(_name(number), "POST", CHAT, _BODY, [("Content-Type", "application/json")])
    sent = whole[: rng.randrange(1, len(whole) + 1)]
    return _made(number, "cut-short", sent, leave=rng.choice(("close", "abort", "half")))


@shape(2)
def silent(rng: Random, number: int) -> Input:
    """A body that stops before its end, on a connection that stays: the proxy must end it."""
    head = _head(number, b"Content-Length: %d" % len(_BODY))
    return _made(number, "silent", head + _BODY[: rng.randrange(len(_BODY))])


@shape(3)
def slow(rng: Random, number: int) -> Input:
    whole = request(_name(number), "POST", CHAT, _BODY)
    marks = sorted({0, len(whole), *(rng.randrange(len(whole)) for _ in range(rng.randrange(2, 12)))})
    return _made(number, "slow", *(whole[a:b] for a, b in pairwise(marks)))


@shape(6)
def binary(rng: Random, number: int) -> Input:
    data = rng.choice(_BINARY) if rng.random() < 0.6 else rng.randbytes(rng.randrange(1, 600))
    leave = rng.choice(("close", "abort", "half")) if b"\r\n\r\n" not in data else None
    return _made(number, "binary", data, leave=leave)


@shape(10)
def flipped(rng: Random, number: int) -> Input:
    """An ordinary request with some bytes changed anywhere."""
    whole = request(
        _name(number), "POST", CHAT, _BODY, [("Content-Type", "application/json"), ("Authorization", "Bearer CANARY")]
    )
    for _ in range(rng.randrange(1, 6)):
        whole = _flip(rng, whole)
    complete = b"\r\n\r\n" in whole
    return _made(number, "flipped", whole, leave=None if complete else "close")


def _flip(rng: Random, raw: bytes) -> bytes:
    place = rng.randrange(len(raw))
    kind = rng.randrange(4)
    if kind == 0:
        return raw[:place] + bytes([rng.randrange(256)]) + raw[place + 1 :]
    if kind == 1:
        return raw[:place] + raw[place + 1 :]
    if kind == 2:
        return raw[:place] + rng.choice((b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b",")) + raw[place:]
    end = min(len(raw), place + rng.randrange(1, 40))
    return raw[:end] + raw[place:]
