"""The proxy account: the bytes that each way sends, what is compared, and what the rows are made of."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.tokenizer_files import CACHE, small_spec, write
from toktier.tokenizer import EMBEDDED
from tools.bench import passthrough, proxy, standin
from tools.bench.records import OURS, Record
from tools.bench.talk import TURN, Line, Refused, Talk
from tools.traffic import reference_ids

TOO_LONG = "This model's maximum context length is 9 tokens. However, you requested 10."


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = json.loads((EMBEDDED / "tokenizer_config.json").read_text("utf-8"))
    only = {"chat_template": config["chat_template"]}
    return write(tmp_path_factory.mktemp("small"), small_spec(), tokenizer_config=only)


@contextmanager
def answering(answer: Callable[[str, bytes], tuple[int, Any]]) -> Iterator[str]:
    """A server that answers POST with what ``answer`` makes of path and body."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            status, value = answer(self.path, self.rfile.read(int(self.headers["Content-Length"])))
            raw = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_talk_is_valid_and_has_its_size() -> None:
    talk = Talk(1, 10_000, model="x", stream=True)
    body = json.loads(talk.body)
    assert (body["model"], body["stream"], len(body["tools"])) == ("x", True, 3)
    assert talk.chars == 10_000
    roles = [message["role"] for message in body["messages"]]
    assert roles[:2] == ["system", "user"]
    assert set(roles[2:]) == {"assistant", "tool"}
    assert talk.body == Talk(1, 10_000, model="x", stream=True).body != Talk(2, 10_000, model="x", stream=True).body
    before, other = talk.chars, Talk(1, 10_000, model="x", stream=True)
    talk.turn()
    assert talk.chars == before + TURN
    longer = json.loads(talk.body)["messages"]
    assert longer[:-2] == body["messages"]
    other.branch("b")
    other.turn()
    assert json.loads(other.body)["messages"][:-2] == body["messages"]
    assert other.body != talk.body


def test_a_line_raises_what_is_not_200() -> None:
    with answering(lambda path, raw: (200 if path == "/a" else 400, {"bytes": len(raw)})) as url, Line(url) as line:
        for size in (1, 2_000_000):
            took, answer = line.post("/a", b"x" * size)
            assert took > 0
            assert json.loads(answer) == {"bytes": size}
        with pytest.raises(Refused) as raised:
            line.post("/b", b"")
        assert raised.value.status == 400


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"error": {"message": TOO_LONG}}, f': "{TOO_LONG}"'),
        ({"error": {"message": "One. Two.\nThe prompt"}}, ': "One. Two."'),
        ({"error": {"message": "x" * 500}}, f': "{"x" * 200}..."'),
        ({"error": {"message": ["x"]}}, ""),
        ({"error": "x"}, ""),
        (["x"], ""),
    ],
)
def test_what_a_refusal_says_is_quoted_in_short(answer: Any, says: str) -> None:
    assert Refused(400, json.dumps(answer).encode()).says() == says
    assert Refused(502, b"<html>").says() == ""


def _vllm(reference: Callable[[Any], Any], most: int) -> Callable[[str, bytes], tuple[int, Any]]:
    def answer(path: str, raw: bytes) -> tuple[int, Any]:
        body = json.loads(raw)
        assert "cache_salt" not in body or "kv_transfer_params" in body
        ids = body.get("kv_transfer_params", {}).get("prompt_token_ids") or list(reference(body))
        if len(body["messages"]) > most:
            return 400, {"error": {"message": TOO_LONG, "code": 400}}
        return 200, {"tokens" if path == "/tokenize" else "token_ids": ids}

    return answer


@pytest.mark.slow
def test_a_run_sends_what_it_should_and_has_a_row_for_each_way(small: Path) -> None:
    plan = proxy.Plan([4_000, 20_000], (1, 2), 4, small, {"server": {"cache_dir": str(CACHE)}})
    with answering(_vllm(reference_ids(small), 30)) as url:
        rows = proxy.run(plan, url)
    found = {(row.case, row.engine, row.size): row for row in rows}
    for size in (4_000, 20_000):
        for case, n in (("1 session", 4), ("2 sessions", 4)):
            assert {found[f"turn, {case}", way, size].n for way in proxy.WAYS} == {n}
            ours = found[f"turn, {case}", OURS, size]
            assert ours.served > size > ours.scanned > 0
            for name in (OURS, proxy.DOUBLED, proxy.OVER_STREAMED):
                assert found[f"added, {case}", name, size].n == n
    for way in (proxy.VLLM_TEXT, proxy.VLLM_TOKENIZE, proxy.VLLM_IDS):
        row = found["added, 1 session", way, 4_000]
        assert row.n > 0
        assert row.scanned == (0 if way == proxy.VLLM_IDS else row.served)
    long = found["added, 1 session", proxy.VLLM_IDS, 20_000]
    assert (long.n, long.note) == (0, f'vLLM answers 400: "{TOO_LONG}"')


def test_differences_are_taken_turn_by_turn() -> None:
    ms = 1_000_000
    times = {
        OURS: [10 * ms, 20 * ms, 30 * ms],
        proxy.PASS: [9 * ms, 18 * ms, 29 * ms],
        proxy.TEXT: [7 * ms, 17 * ms, 25 * ms],
        proxy.STREAMED: [11 * ms, 16 * ms, 26 * ms],
    }
    rows = {(row.case, row.engine): row for row in proxy.rows_of(times, 100, 8, 5_000, 300)}
    assert rows["turn, 8 sessions", OURS].p50_us == 20_000
    assert rows["added, 8 sessions", OURS].p50_us == 1_000
    assert rows["added, 8 sessions", proxy.DOUBLED].p50_us == 2_000
    assert rows["added, 8 sessions", proxy.OVER_STREAMED].p50_us == 4_000
    told = {engine: (row.served, row.scanned) for (case, engine), row in rows.items() if case.startswith("turn")}
    assert told == {OURS: (5_000, 300), proxy.PASS: (5_000, 0), proxy.TEXT: (5_000, 0), proxy.STREAMED: (5_000, 0)}
    assert rows["added, 8 sessions", OURS].served == 0


def test_targets_are_judged_over_both_pass_throughs() -> None:
    def row(engine: str, size: int, p50: float) -> Record:
        return Record("proxy", "added, 1 session", engine, size, 9, p50, p50, p50)

    streamed, render = proxy.OVER_STREAMED, row(proxy.VLLM_TEXT, 1_000_000, 900_000.0)
    assert proxy.over_limit([row(OURS, 1_000_000, 590.0), row(streamed, 1_000_000, 595.0), render]) == []
    assert len(proxy.over_limit([row(OURS, 1_000_000, 610.0), row(OURS, 4_000_000, 2_600.0)])) == 2
    assert len(proxy.over_limit([row(OURS, 1_000_000, 500.0), row(proxy.VLLM_TEXT, 1_000_000, 200_000.0)])) == 1
    rows = [row(OURS, 1_000_000, 589.0), row(OURS, 4_000_000, -4_930.0), row(streamed, 4_000_000, 3_630.0)]
    rows += [row(streamed, 1_000_000, 1_540.0), row(proxy.VLLM_TEXT, 1_000_000, 700_000.0)]
    assert proxy.over_limit(rows) == [
        "added at 1,000,000 over pass-through, streamed: 1.54 ms, not 0.6",
        "added at 4,000,000 over pass-through, streamed: 3.63 ms, not 2.5",
        "vLLM's render at 1,000,000: 455 times what is added over pass-through, streamed, not 500",
    ]
    told = proxy.verdict(rows).splitlines()
    assert told[0].startswith("- Targets over *pass-through*: 0.59 ms at 1,000,000 (at most 0.6: met); -4.93 ms at ")
    assert told[1].count("**missed**") == 3
    assert "455 times" in told[1]
    assert proxy.verdict([]) == ""


async def test_the_stand_in_counts_and_the_pass_through_pads(small: Path) -> None:
    import asyncio

    async with (
        proxy.process("tools.bench.standin", str(small)) as upstream,
        proxy.process("tools.bench.passthrough", upstream) as passing,
    ):

        def ask() -> None:
            body = Talk(1, 300_000).body
            with Line(passing) as line, Line(upstream) as straight:
                for headers, more in (
                    ({}, 0),
                    ({passthrough.PAD: "700000"}, 700_000),
                    ({passthrough.PAD: "7", passthrough.STREAMED: "1"}, 7),
                ):
                    _, answer = line.post("/v1/chat/completions", body, headers)
                    assert json.loads(answer)["received"] == len(body) + more
                    assert straight.get(standin.LAST) == body + b"1" * more
                assert json.loads(straight.get("/version"))["version"]

        await asyncio.to_thread(ask)


async def test_a_process_that_does_not_start_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="did not start"):
        async with proxy.process("tools.bench.standin", "/absent"):
            pass
