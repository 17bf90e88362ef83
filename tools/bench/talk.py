"""The clients of the proxy and engine accounts: an agent's session as bytes to send, and a connection that times it."""

from __future__ import annotations

import functools
import http.client
import json
import random
import re
import time
from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import urlsplit

from tools.bench.texts import corpus

TURN = 1_400
"""Characters that a turn adds: a call and its result."""
_POOL = 1_000_000
_TOOLS = ("bash", "read", "edit")
_QUOTED = 200
"""Characters of a server's message that are shown."""


class Talk:
    """A session that grows by turns; the same for the same seed. ``body`` is its request.

    It begins with ``chars`` characters in its messages: a system prompt, a question, then calls with their results.
    ``members`` are further members of the body.
    """

    def __init__(self, seed: int | str, chars: int, **members: Any) -> None:
        self._random = random.Random(f"talk {seed}")
        self._pool = _pool()
        self.chars = 0
        self._calls = 0
        body: dict[str, Any] = {"model": "m", "tools": [_tool(name) for name in _TOOLS], **members}
        self._tail = b"]," + json.dumps(body).encode()[1:]
        self._messages = bytearray(b'{"messages":[')
        system, question = min(1_000, chars // 4), min(500, chars // 4)
        turns, rest = divmod(chars - system - question, TURN)
        self._add({"role": "system", "content": self._text(system)}, first=True)
        self._add({"role": "user", "content": self._text(question + rest)})
        for _ in range(turns):
            self._turn()
        self.body = self._whole()

    def branch(self, name: str) -> None:
        """Go on otherwise than sessions with the same seed do."""
        self._random = random.Random(f"branch {name}")

    def turn(self) -> None:
        """A call and its result more."""
        self._turn()
        self.body = self._whole()

    def _whole(self) -> bytes:
        return b"".join((self._messages, self._tail))

    def _turn(self) -> None:
        said, command = TURN // 5, TURN // 14
        self._calls += 1
        function = {"name": self._random.choice(_TOOLS), "arguments": json.dumps({"text": self._text(command)})}
        call = {"id": f"call_{self._calls}", "type": "function", "function": function}
        self._add({"role": "assistant", "content": self._text(said), "tool_calls": [call]})
        result = self._text(TURN - said - command)
        self._add({"role": "tool", "tool_call_id": call["id"], "content": result})
        self.chars += command

    def _add(self, message: dict[str, Any], first: bool = False) -> None:
        self._messages += b"" if first else b","
        self._messages += json.dumps(message, ensure_ascii=False).encode()
        self.chars += len(message["content"])

    def _text(self, chars: int) -> str:
        start = self._random.randrange(len(self._pool) - chars)
        return self._pool[start : start + chars]


@functools.cache
def _pool() -> str:
    return corpus(0, _POOL)


def _tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"text": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "description": f"The tool {name}", "parameters": parameters}}


class Line:
    """One connection, kept open. A ``with`` block; blocking."""

    def __init__(self, url: str, timeout_s: float = 600.0) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=timeout_s)

    def __enter__(self) -> Self:
        self._connection.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def post(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        """Nanoseconds from the first byte sent to the last one received, and the reply. Raises `Refused`."""
        head = {"Content-Type": "application/json", **(headers or {})}
        start = time.perf_counter_ns()
        self._connection.request("POST", path, body, head)
        reply = self._connection.getresponse()
        answer = reply.read()
        took = time.perf_counter_ns() - start
        if reply.status != 200:
            raise Refused(reply.status, answer)
        return took, answer

    def first_byte(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Nanoseconds to the first event of a streamed reply, and the whole reply. Raises `Refused`."""
        start = time.perf_counter_ns()
        self._connection.request("POST", path, body, {"Content-Type": "application/json"})
        reply = self._connection.getresponse()
        first = reply.read1()
        took = time.perf_counter_ns() - start
        answer = first + reply.read()
        if reply.status != 200:
            raise Refused(reply.status, answer)
        return took, answer

    def get(self, path: str) -> bytes:
        """The reply. Raises `Refused`."""
        self._connection.request("GET", path)
        reply = self._connection.getresponse()
        answer = reply.read()
        if reply.status != 200:
            raise Refused(reply.status, answer)
        return answer


class Refused(Exception):
    """A server did not answer 200."""

    def __init__(self, status: int, answer: bytes) -> None:
        super().__init__(f"{status}: {answer[:200]!r}")
        self.status = status
        self._answer = answer

    def says(self) -> str:
        """The message of an OpenAI error, quoted after a colon; empty where there is none. The first sentences of it:
        what a server says of a request may go on with the prompt."""
        try:
            message = json.loads(self._answer)["error"]["message"]
        except (ValueError, KeyError, TypeError):
            return ""
        if not isinstance(message, str):
            return ""
        short = re.split(r"(?<=[.!?])\s|[\r\n]", message.strip())[:2]
        told = " ".join(short)
        return f': "{told[:_QUOTED].rstrip()}{"..." if len(told) > _QUOTED else ""}"'
