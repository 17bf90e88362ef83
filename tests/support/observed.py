"""A stream of a chat reply, and what is seen of one."""

from __future__ import annotations

from proxy.observers import SseObserver

STREAM = (
    b": comment\n\n"
    b'data: {"choices":[{"index":0,"delta":{"content":"\xe4\xbd\xa0"},"finish_reason":null}]}\r\n\r\n'
    b'event: x\nid: 7\nretry: 10\ndata:{"a":1}\n\n'
    b'data: {"b":\ndata: 2}\r\r'
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":41,"completion_tokens":2}}\n\n'
    b"data: [DONE]\n\n"
)


def observed(pieces: list[bytes]) -> SseObserver:
    """After these pieces have come."""
    observer = SseObserver()
    for piece in pieces:
        observer.feed(piece)
    return observer
