"""Talking to the real vLLM of `tools.engine` and to a TokTier process in front of it. Plain blocking HTTP."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[2]
READY_S = 300.0  # a loaded machine takes its time to import, load and certify


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """The JSON events of an SSE reply; `[DONE]` must be the last line and is left out."""
        data = [line[6:] for line in self.body.decode().split("\n") if line.startswith("data: ")]
        assert data
        assert data[-1] == "[DONE]", data[-1]
        return [json.loads(line) for line in data[:-1]]


class Client:
    """Each request has its own connection: a server closes idle ones, and nobody here should wonder who did."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        self.url = url
        self.headers = {"content-type": "application/json", **(headers or {})}

    def send(self, method: str, path: str, body: Any = None) -> Reply:
        data = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=300)
        with contextlib.closing(connection):
            connection.request(method, path, data, self.headers)
            reply = connection.getresponse()
            headers = {name.lower(): value for name, value in reply.getheaders()}
            return Reply(reply.status, headers, reply.read())

    def post(self, path: str, body: Any) -> Reply:
        return self.send("POST", path, body)

    def get(self, path: str) -> Reply:
        return self.send("GET", path)


class Engine(Client):
    """The engine's own word on what a request's tokens are."""

    def render(self, body: Mapping[str, Any]) -> list[int]:
        """The IDs that a chat request is served with: the same request model and code as the chat route."""
        plain = {key: value for key, value in body.items() if key not in ("stream", "stream_options")}
        reply = self.post("/v1/chat/completions/render", plain)
        assert reply.status == 200, reply.body
        ids: list[int] = reply.json()["token_ids"]
        return ids

    def tokenize(self, body: Mapping[str, Any]) -> list[int]:
        """`/tokenize` of the same chat. Its request model knows neither `reasoning_content` nor `reasoning_effort`;
        the chat route turns them into what is sent here."""
        kwargs = dict(body.get("chat_template_kwargs") or {})
        if effort := body.get("reasoning_effort"):
            kwargs = {"reasoning_effort": effort, "enable_thinking": effort != "none"} | kwargs
        asked = {key: body[key] for key in ("model", "tools") if key in body}
        messages = [rename_reasoning(message) for message in body["messages"]]
        reply = self.post("/tokenize", asked | {"messages": messages, "chat_template_kwargs": kwargs})
        assert reply.status == 200, reply.body
        ids: list[int] = reply.json()["tokens"]
        return ids

    def metric(self, name: str) -> float:
        """The sum of a counter over its labels."""
        text = self.get("/metrics").body.decode()
        return sum(
            float(value) for value in re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        )


def rename_reasoning(message: Mapping[str, Any]) -> dict[str, Any]:
    renamed = dict(message)
    reasoning = renamed.pop("reasoning_content", None)
    if reasoning is not None and renamed.get("reasoning") is None:
        renamed["reasoning"] = reasoning
    return renamed


class Proxy(Client):
    """A `toktier serve` process."""

    def __init__(self, url: str, log: Path, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(url, headers)
        self.log = log

    def records(self) -> list[dict[str, Any]]:
        """The request lines of its log so far."""
        return [line for line in log_lines(self.log) if line.get("event") == "request"]

    def record(self, request_id: str, timeout_s: float = 5.0) -> dict[str, Any]:
        """The log line of one request, which is written right after the reply's last byte."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for line in reversed(self.records()):
                if line["request_id"] == request_id:
                    return line
            time.sleep(0.01)
        raise AssertionError(f"no log line for request {request_id}")

    def ask(self, body: Any, request_id: str, path: str = "/v1/chat/completions") -> tuple[Reply, dict[str, Any]]:
        """Posts under a request id; the reply and its log line."""
        self.headers["x-request-id"] = request_id
        reply = self.post(path, body)
        return reply, self.record(request_id)


def log_lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        for line in path.read_text(encoding="utf-8").split("\n"):
            with contextlib.suppress(ValueError):
                yield json.loads(line)


@contextlib.contextmanager
def serving(folder: Path, config: str) -> Iterator[Proxy]:
    """`toktier serve` with this TOML on a free port, once its models are probed. SIGTERM must end it.

    Its files are in `folder`; derived certificates lie beside it, so that servers of one test run share them.
    """
    log = folder / "toktier.log"
    head = f'[server]\nport = 0\ncache_dir = "{folder.parent / "toktier-cache"}"\n[log]\npath = "{log}"\n'
    (folder / "toktier.toml").write_text(head + config, encoding="utf-8")
    command = [sys.executable, "-m", "proxy.cli", "serve", "--config", str(folder / "toktier.toml")]
    env = {name: value for name, value in os.environ.items() if not name.startswith("TOKTIER_")}
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=output, stderr=subprocess.STDOUT)
    try:
        proxy = Proxy(wait_listening(process, log, folder / "output"), log)
        wait_probed(proxy, process)
        yield proxy
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            status = process.wait(timeout=40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
    assert status == 0, (folder / "output").read_text(errors="replace")[-3000:]


def wait_listening(process: subprocess.Popen[bytes], log: Path, output: Path) -> str:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and process.poll() is None:
        for line in log_lines(log):
            if line.get("event") == "listening":
                return str(line["urls"][0])
        time.sleep(0.05)
    raise AssertionError(f"toktier does not listen:\n{output.read_text(errors='replace')[-3000:]}")


def wait_probed(proxy: Proxy, process: subprocess.Popen[bytes]) -> None:
    """Until it is known of every model whether IDs may be sent."""
    deadline = time.monotonic() + READY_S
    reply = None
    while time.monotonic() < deadline and process.poll() is None:
        reply = proxy.get("/ready")
        if reply.status == 200 and all(model["state"] in ("ok", "text") for model in reply.json()["models"].values()):
            return
        time.sleep(0.1)
    raise AssertionError(f"toktier is not ready: {reply and reply.body!r}")
