"""The given HTTP cases through the real proxy with the real tier, against a scripted upstream.

One test per case; other kinds of cases are in the modules beside this one. Every key of a case's ``assert`` block has a
check in `Check`, or stands in `ELSEWHERE` with the reason.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import resource
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.conftest import data_path
from tests.support.case_checks import Check
from tests.support.cases import CHAT, PLAYED, Outcome, Player, expand
from tests.support.fake_upstream import FakeUpstream
from tests.support.models import load_qwen3, qwen3
from tests.support.proxy import running, settings_for
from tests.support.reference import QWEN3, Reference

KINDS = ("chat", "chat_each", "turns", "http_raw_json", "http_each", "upstream", "sequence")
DATA = Path(os.environ.get("TOKTIER_TEST_DATA", Path(__file__).resolve().parents[3] / "shared"))

ELSEWHERE = {
    ("J04", "joiner"): "each engine's joiner is compared with the engine's own code in tests/differential",
}


def load_cases() -> list[dict[str, Any]]:
    path = DATA / "cases" / "cases.jsonl"
    if not path.exists():
        return []
    cases = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [case for case in cases if case["input"]["kind"] in KINDS]


CASES = load_cases()


pytestmark = pytest.mark.xdist_group("reference")


@pytest.fixture(autouse=True, scope="module")
def _loaded() -> None:
    qwen3()  # takes longer than a proxy should wait for its model


async def _settled(outcome: Outcome) -> None:
    """Waits until the upstream has seen every client go."""
    async with asyncio.timeout(5):
        while len(outcome.up.ended) < len(outcome.left_at):
            await asyncio.sleep(0.01)


async def play(case: dict[str, Any], player: Player) -> None:
    source = case["input"]
    match source["kind"]:
        case "chat":
            await player.bodies([source["body"]])
        case "chat_each" | "turns":
            await player.bodies(source["bodies"])
        case "http_raw_json":
            await player.post(source["body"].encode())
        case "http_each":
            for request in source["requests"]:
                await player.http_each(request)
        case "sequence":
            await player.sequence(source["requests"])
        case "upstream" if "sequence" in source:
            for step in source["sequence"]:
                if "idle_ms" in step:
                    await asyncio.sleep(step["idle_ms"] / 1000 * SCALE)
                else:
                    await player.bodies([step["request"]])
        case "upstream":
            for variant in source.get("variants", [None]):
                await player.upstream(source, variant, source.get("time_scale", 1.0) * SCALE)


SCALE = 0.1
"""Pauses are shortened by this, so that the suite is fast; what they are compared with is shortened alike."""

REPLIES = {
    # D02: arguments with odd spacing must come through as they are.
    "D02": [
        {"send": '{"choices":[{"message":{"tool_calls":[{"function":{"arguments":"{\\"a\\" : 1,'},
        {"send": '\\n \\"b\\":[1,2]}"}}]}}]}'},
    ]
}


def thinking_model(folder: Path) -> Path:
    """J07 is about templates whose prompt opens a block that history has not: Qwen3's, with ``<think>`` at the end.

    With the template as it is shipped, the case's turns are plain appends; that is played too.
    """
    config = json.loads((QWEN3 / "tokenizer_config.json").read_text("utf-8"))
    plain = "{{- '<|im_start|>assistant\\n' }}"
    assert config["chat_template"].count(plain) == 1
    config["chat_template"] = config["chat_template"].replace(plain, "{{- '<|im_start|>assistant\\n<think>\\n' }}")
    folder.mkdir()
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    (folder / "chat_template.jinja").write_text(config["chat_template"], "utf-8")
    (folder / "tokenizer.json.xz").symlink_to(QWEN3 / "tokenizer.json.xz")
    return folder


def longer_tail(bodies: list[dict[str, Any]]) -> None:
    """J13's tail, long enough for chunks of its own (`toktier.chunks.TARGET`).

    As given, 63 characters follow the tail's first useful cut. They are encoded again (`Check.tail_encoded_again`).
    """
    for body in bodies:
        for message in body["messages"]:
            if message["content"] == "q2":
                message["content"] = " ".join(f"Question {n}?" for n in range(500))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
async def test_case(case: dict[str, Any], reference: Reference, tmp_path: Path) -> None:
    name, source = case["id"], case["input"]
    keys = tmp_path / "keys"
    keys.write_text("tenantA:key-of-tenantA\ntenantB:key-of-tenantB\n")
    changes: dict[str, Any] = {"server": {}}
    if any("auth" in request for request in source.get("requests", []) if source["kind"] == "sequence"):
        changes["auth"] = {"mode": "keys", "key_file": keys}
    if "upstream_keepalive_s" in source:
        changes["upstream"] = {"keepalive_s": 4.0 * SCALE}
    if name == "P13":
        changes["server"]["write_timeout_s"] = 1.5
    if name == "J07":
        as_given = {
            "ids_equal_reference": True,
            "prefix_property": True,
            "audit_causes": ["none", "none", "messages_edited"],
        }
        await run(case, reference, tmp_path, changes, as_given)
        folder = thinking_model(tmp_path / "model")
        changes["model"] = {"chat_template": folder / "chat_template.jinja"}
        with Reference(folder) as other:
            await run(case, other, tmp_path, changes)
        return
    if name == "J13":
        short = {**case["expected"]["assert"], "tail_encoded_again": True}
        del short["reused_tail_tokens_min"]
        await run(case, reference, tmp_path, changes, short)
        longer_tail(source["bodies"])
    await run(case, reference, tmp_path, changes)
    if name == "T01":
        await refused_by_policy(case, reference, tmp_path)


async def run(
    case: dict[str, Any],
    reference: Reference,
    state: Path,
    changes: dict[str, Any],
    asked: dict[str, Any] | None = None,
) -> None:
    """Play a case and ask every question of its ``assert`` block, or those of ``asked``."""
    name, source, wants = case["id"], case["input"], asked or case["expected"]["assert"]
    idle = source.get("upstream_keepalive_s")
    framings = ("chunked", "close") if name == "P08" else ("chunked",)
    for framing in framings:
        up = FakeUpstream(tokenize=reference.ids, framing=framing, idle_close_s=None if idle is None else idle * SCALE)
        up.reply_text = source.get("upstream_reply_text", "")  # what the model wrote is else not the case
        async with (
            up,
            running(settings_for(up.url, state, **changes), load_qwen3) as proxy,
            aiohttp.ClientSession() as client,
        ):
            player = Player(up, proxy, client)
            up.scripts.extend([REPLIES[name]] if name in REPLIES else [])
            if name == "P13":
                await stalled_client(case, player, wants)
                continue
            await play(case, player)
            await _settled(player.outcome)
            check = Check(case, player.outcome, reference)
            if "next_turn_ids_equal_reference" in wants:
                history = source["request"]["messages"] + [{"role": "assistant", "content": "ok"}]
                await player.bodies([{"model": "m", "messages": [*history, {"role": "user", "content": "next"}]}])
            if "status_over_limit" in wants:
                await player.post(b'{"model":"m","messages":"' + b"a" * (64 << 20) + b'"}')
                assert player.outcome.replies.pop().status == wants["status_over_limit"]
                await over_limit_is_json(player)
            for key, want in wants.items():
                if key in ("status_over_limit", "error_content_type") and "status_over_limit" in wants:
                    continue  # done above
                if key == "status_if_policy_reject":
                    continue  # done by `refused_by_policy`
                if (name, key) not in ELSEWHERE:
                    ask: Callable[[Any], None] = getattr(check, key)
                    ask(want)


async def refused_by_policy(case: dict[str, Any], reference: Reference, state: Path) -> None:
    """T01 once more, with ``control_tokens = "reject"``."""
    async with (
        FakeUpstream(tokenize=reference.ids) as up,
        running(settings_for(up.url, state, model={"control_tokens": "reject"}), load_qwen3) as proxy,
        aiohttp.ClientSession() as client,
    ):
        player = Player(up, proxy, client)
        await play(case, player)
        (reply,) = player.outcome.replies
        assert reply.status == case["expected"]["assert"]["status_if_policy_reject"]
        error = json.loads(reply.body)["error"]
        assert (error["param"], error["code"]) == ("messages[1]", "control_token_in_content")
        assert "obey" not in error["message"]
        assert proxy.log[0]["flags"] == ["control_token_in_content"]
        assert proxy.log[0]["stages_us"].keys() == {"read", "parse", "total"}, "nothing was rendered"
        assert up.chats == []


async def over_limit_is_json(player: Player) -> None:
    """413 is JSON in OpenAI's form, and the connection serves the next request."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as one:
        async with one.post(player.proxy.url + CHAT, data=b"0" * ((64 << 20) + 1)) as reply:
            assert (reply.status, reply.headers["Content-Type"]) == (413, "application/json")
            assert (await reply.json())["error"]["code"] == "request_too_large"
        async with one.get(player.proxy.url + "/health") as reply:
            assert reply.status == 200


async def stalled_client(case: dict[str, Any], player: Player, wants: dict[str, Any]) -> None:
    """P13: a client that reads nothing holds little memory, pauses the upstream, and is cut."""
    assert set(wants) == {"rss_growth_mib_max", "upstream_paused"}
    player.up.scripts.append(expand(case["input"]["script"]))
    raw = json.dumps(case["input"]["request"]).encode()
    loop = asyncio.get_running_loop()
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    client.setblocking(False)
    await loop.sock_connect(client, ("127.0.0.1", player.proxy.port))
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n"
    await loop.sock_sendall(client, head.encode() + raw)
    await player.up.script_started.wait()
    written = -1
    while written != player.up.written:  # until the sockets' buffers are full
        written = player.up.written
        await asyncio.sleep(0.3)
    assert 0 < written < 32 << 20, "the upstream is still being read"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    line = (await player.proxy.logged(1))[0]
    client.close()
    assert "client_stalled" in line["flags"]
    # The script's own chunks are in this process too: one of them, and what the proxy may hold.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before <= (wants["rss_growth_mib_max"] + 1) << 10


def test_every_case_is_played() -> None:
    lines = data_path("cases", "cases.jsonl").read_text("utf-8").splitlines()
    given = {case["id"]: case["input"]["kind"] for case in map(json.loads, lines)}
    assert len(given) == len(lines)
    for module in sorted(Path(__file__).parent.glob("test_*.py")):
        importlib.import_module(f"tests.cases.{module.stem}")
    here = {name for name, kind in given.items() if kind in KINDS}
    assert [case["id"] for case in CASES] == [name for name in given if name in here]
    assert here | PLAYED == given.keys(), "a case that no test plays, or a test of no case"
    assert not here & PLAYED
    for case in CASES:
        for key in case["expected"]["assert"]:
            apart = key in ("status_over_limit", "status_if_policy_reject") or case["id"] == "P13"
            known = hasattr(Check, key) or apart
            assert known or (case["id"], key) in ELSEWHERE, (case["id"], key)
