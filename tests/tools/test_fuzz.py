from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.tokenizer_files import small_qwen3
from tools.fuzz import __main__ as command
from tools.fuzz import runner
from tools.fuzz.client import Client, Outcome, Reply
from tools.fuzz.inputs import Input, name
from tools.fuzz.judge import Judge

ERROR = json.dumps({"error": {"message": "No.", "type": "invalid_request_error", "param": None, "code": "not_found"}})


@pytest.mark.slow
def test_a_running_proxy_stands_a_few_hundred_inputs(tmp_path: Path) -> None:
    report = asyncio.run(runner.run(range(250), seed=20, tokenizer=small_qwen3(tmp_path)))
    assert report["findings"] == []
    assert report["inputs"] == 250 <= report["replies"] + report["ends"]["left"] + report["ends"].get("closed", 0)
    assert {"200", "400", "404"} <= set(report["statuses"])
    assert {"chat", "route", "headers", "pipeline"} <= set(report["shapes"])
    assert {"init", "bypass"} <= set(report["paths"]), "requests get as far as the tier"
    assert report["engine_requests"] > 50


def test_inputs_follow_from_their_number() -> None:
    made = [runner.make(3, number) for number in range(400)]
    assert made == [runner.make(3, number) for number in range(400)]
    assert len({given.pieces for given in made}) > 390
    assert made != [runner.make(4, number) for number in range(400)]
    assert all(isinstance(piece, bytes) for given in made for piece in given.pieces)


def given(number: int = 7, **more: Any) -> Input:
    return Input(number, "chat", (b"POST /CANARY",), **more)


def judged(reply: Reply | None, **outcome: Any) -> list[str]:
    judge = Judge(lambda number: given(number))
    judge.outcome(given(one_line=True), Outcome([reply] if reply is not None else [], **outcome))
    return [finding.what for finding in judge.findings]


@pytest.mark.parametrize(
    ("reply", "outcome", "found"),
    [
        (Reply(404, "Not Found", {}, ERROR.encode()), {}, []),
        (Reply(200, "X", {}, b"CANARY from the engine"), {}, []),
        (Reply(500, "X", {}, b"the engine's"), {}, []),
        (Reply(200, "OK", {}, b'{"status": "ok"}'), {}, []),
        (None, {"end": "hang"}, ["hang", "no_reply"]),
        (None, {"end": "closed"}, ["no_reply"]),
        (None, {"garbage": b"\0"}, ["not_http", "no_reply"]),
        (Reply(200, "X", {}, b"", cut=True), {}, ["cut_reply"]),
        (Reply(404, "Not Found", {}, ERROR.replace("No.", "CANARY").encode()), {}, ["echo"]),
        (Reply(404, "Not Found", {"allow": "CANARY"}, ERROR.encode()), {}, ["echo"]),
        (Reply(404, "Not Found", {}, b"404: Not Found"), {}, ["error_shape"]),
        (Reply(404, "Not Found", {}, b'{"error": {"message": "No."}}'), {}, ["error_shape"]),
        (Reply(404, "Not Found", {}, ERROR.replace("not_found", "new_code").encode()), {}, ["undocumented"]),
        (Reply(400, "Bad Request", {}, ERROR.encode()), {}, ["undocumented"]),
        (
            Reply(500, "Internal Server Error", {}, ERROR.replace("not_found", "internal_error").encode()),
            {},
            ["server_status"],
        ),
        (
            Reply(500, "Internal Server Error", {}, b"<html>Traceback (most recent call last)"),
            {},
            ["traceback", "error_shape", "server_status"],
        ),
    ],
)
def test_the_judge_finds(reply: Reply | None, outcome: dict[str, Any], found: list[str]) -> None:
    assert judged(reply, **outcome) == found


def line(event: str = "request", **more: Any) -> dict[str, Any]:
    fields = {"request_id": name(7), "attempts": 1, "error": None, "bypass": None, "level": "info"}
    return {"event": event, **fields, **more}


@pytest.mark.parametrize(
    ("lines", "reached", "found"),
    [
        ([line()], 1, []),
        ([line(attempts=2)], 2, []),
        ([], 0, ["log_lines", "unlogged"]),
        ([line(), line()], 2, ["log_lines"]),
        ([line(attempts=0)], 1, ["unlogged_upstream", "unlogged_upstream"]),
        ([line(bypass="internal_error")], 1, ["internal_error"]),
        ([line(error="internal_error")], 1, ["internal_error"]),
        ([line(), line("prepare_failed")], 1, ["prepare_failed"]),
        ([line(), line("mismatch")], 1, ["mismatch"]),
        ([line(), line("library", level="error")], 1, ["library"]),
        ([line(), line("library", level="info")], 1, []),
        ([line(session="CANARY")], 1, ["logged"]),
    ],
)
def test_the_judge_finds_in_the_log(lines: list[dict[str, Any]], reached: int, found: list[str]) -> None:
    judge = Judge(lambda number: given(number))
    judge.outcome(given(one_line=True), Outcome([Reply(200, "X", {}, b"")]))
    judge.log(lines, {name(7): reached})
    assert [finding.what for finding in judge.findings] == found


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


async def against(serve: Serve, sent: Input, patience_s: float = 5.0) -> Outcome:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()[:2]
        client = Client(host, port, patience_s)
        outcome = await client.send(sent)
        client.close()
    return outcome


async def test_the_client_reads_what_comes() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(2)
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"2\r\nab\r\n1;x=y\r\nc\r\n0\r\n\r\nHTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nno!")
        writer.close()

    outcome = await against(serve, Input(1, "x", (b"a", b"b"), wire=True, replies=3))
    assert [(reply.status, reply.body, reply.cut) for reply in outcome.replies] == [
        (200, b"abc", False),
        (404, b"no!", False),
    ]
    assert outcome.end == "closed"


async def test_the_client_notices_silence_rubbish_and_half_replies() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    def saying(data: bytes) -> Serve:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(1)
            writer.write(data)
            writer.close()

        return serve

    sent = Input(1, "x", (b"a",), wire=True)
    assert (await against(silent, sent, patience_s=0.1)).end == "hang"
    assert (await against(saying(b"rubbish"), sent)).garbage == b"rubbish"
    assert (await against(saying(b"HTTP/0.9 200 OK\r\n\r\n"), sent)).garbage.startswith(b"HTTP/0.9")
    [reply] = (await against(saying(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"), sent)).replies
    assert reply.cut


def test_the_command_reports_and_ends_with_1_on_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[Any, int]] = []
    findings: list[dict[str, Any]] = []

    async def run(numbers: Any, seed: int, _progress: Any) -> dict[str, Any]:
        asked.append((numbers, seed))
        return {"inputs": 2, "replies": 2, "seconds": 0.1, "findings": findings}

    monkeypatch.setattr(command, "run", run)
    monkeypatch.setattr(sys, "argv", ["fuzz", "--inputs", "2", "--seed", "5", "--json", str(tmp_path / "out.json")])
    assert command.main() == 0
    assert json.loads((tmp_path / "out.json").read_text())["inputs"] == 2
    findings.append({"what": "hang"})
    monkeypatch.setattr(sys, "argv", ["fuzz", "--only", "3", "9"])
    assert command.main() == 1
    assert asked == [(range(2), 5), ([3, 9], 0)]
    assert "findings: {'hang': 1}" in capsys.readouterr().out
