"""The given HTTP cases through the real proxy with the real tier, against a scripted upstream.

One test per case; other kinds of cases are in the modules beside this one. Every key of a case's ``assert`` block has a
check in `Check`, or stands in `ELSEWHERE` with the reason. IDs are compared with transformers' own rendering and
encoding, in another process.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import os
import resource
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import tokenizers

from proxy.jsonspan import parse
from proxy.relay import SseObserver
from tests.conftest import data_path
from tests.support.cases import CHAT, PLAYED, Outcome, Player, expand
from tests.support.fake_upstream import FakeUpstream
from tests.support.models import load_qwen3, qwen3
from tests.support.proxy import running, settings_for
from tests.support.reference import QWEN3, Reference

KINDS = ("chat", "chat_each", "turns", "http_raw_json", "http_each", "upstream", "sequence")
DATA = Path(os.environ.get("TOKTIER_TEST_DATA", Path(__file__).resolve().parents[3] / "shared"))

ELSEWHERE = {
    ("J04", "joiner"): "each engine's joiner is compared with the engine's own code in tests/differential",
    ("D05", "audit_cause"): "replies are not kept (changes.md, 9), so what the model wrote is not told from an edit",
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


class Check:
    """One case's outcome, and the questions that ``assert`` blocks ask about it."""

    def __init__(self, case: dict[str, Any], outcome: Outcome, reference: Reference) -> None:
        self.case, self.o, self.reference = case, outcome, reference

    def client(self, number: int) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.o.bodies[number])
        return body

    def sent_ids(self, seen: Any) -> list[int] | None:
        return (seen.json.get("kv_transfer_params") or {}).get("prompt_token_ids")

    def texts(self) -> list[str]:
        out = []
        for seen in self.o.up.chats:
            ids = self.sent_ids(seen)
            assert ids is not None
            out.append(qwen3().decode(np.array(ids, np.uint32)))
        return out

    # what went upstream

    def ids_equal_reference(self, want: bool) -> None:
        assert want
        assert len(self.o.up.chats) == len(self.o.bodies)
        for seen in self.o.up.chats:
            body = seen.json
            ids = body.pop("kv_transfer_params")["prompt_token_ids"]
            assert ids == self.reference.ids(body)
        assert [line["bypass"] for line in self.o.log] == [None] * len(self.o.bodies)
        assert all(line["prompt_tokens_equal"] for line in self.o.log)

    def sends_token_ids(self, want: bool) -> None:
        assert all((self.sent_ids(seen) is not None) == want for seen in self.o.up.chats)

    def body_forwarded_byte_equal(self, want: bool) -> None:
        for raw, seen in zip(self.o.bodies, self.o.up.chats, strict=True):
            # The tenant's cache_salt is added to bypassed requests too; nothing else is.
            assert (parse(seen.body).edit({"cache_salt"}) == raw) == want
            assert seen.body.startswith(raw[:-1])

    def decoded_contains(self, want: str) -> None:
        assert all(want in text for text in self.texts())

    rendered_contains = decoded_contains

    def rendered_not_contains(self, unwanted: str) -> None:
        assert not any(unwanted in text for text in self.texts())

    def client_ids_forwarded(self, want: bool) -> None:
        assert want is False
        for seen in self.o.up.chats:
            body = seen.json
            assert not {"prompt_token_ids", "input_ids"} & body.keys()
            assert body.pop("kv_transfer_params")["prompt_token_ids"] == self.reference.ids(body)

    def upstream_absent(self, names: list[str]) -> None:
        assert self.o.up.chats
        for seen in self.o.up.chats:
            assert not {name.lower() for name, _ in seen.headers} & {name.lower() for name in names}
            assert isinstance(seen.json, dict)
            assert seen.header("Content-Length") == str(len(seen.body))

    def upstream_salts_distinct(self, want: bool) -> None:
        salts = [seen.json["cache_salt"] for seen in self.o.up.chats]
        assert (len(set(salts)) == len(salts)) == want

    def client_salt_forwarded(self, want: bool) -> None:
        own = [json.loads(raw)["cache_salt"] for raw in self.o.bodies if b"cache_salt" in raw]
        assert own
        assert any(salt in seen.body.decode() for salt in own for seen in self.o.up.chats) == want

    def outbound_hosts(self, want: str) -> None:
        assert want == "configured_only"
        assert {seen.header("Host") for seen in self.o.up.seen} == {f"127.0.0.1:{self.o.up.port}"}
        assert len(self.o.up.chats) == sum(reply.status == 200 for reply in self.o.replies)

    def next_turn_ids_equal_reference(self, want: bool) -> None:
        assert want
        assert self.o.log[-1]["path"] == "append"
        body = self.o.up.chats[-1].json
        assert body.pop("kv_transfer_params")["prompt_token_ids"] == self.reference.ids(body)

    # what the client got

    def status(self, want: Any) -> None:
        wants = want if isinstance(want, list) else [want] * len(self.o.replies)
        got = [reply.status for reply in self.o.replies]
        for one, allowed in zip(got, wants, strict=True):
            assert one in (allowed if isinstance(allowed, list) else [allowed]), got

    def status_in(self, want: Any) -> None:
        for number, reply in enumerate(self.o.replies):
            assert reply.status in (want[str(number)] if isinstance(want, dict) else want)

    def status_not(self, unwanted: int) -> None:
        assert all(reply.status != unwanted for reply in self.o.replies)

    def status_class(self, want: str) -> None:
        assert want == "as_engine"
        assert [reply.status for reply in self.o.replies] == [line["upstream_status"] for line in self.o.log]

    def error_param(self, want: str) -> None:
        assert [json.loads(reply.body)["error"]["param"] for reply in self.o.replies] == [want]

    def error_content_type(self, want: str) -> None:
        refused = [reply for reply in self.o.replies if reply.status == 413]
        assert refused
        for reply in refused:
            assert reply.headers["Content-Type"] == want
            assert json.loads(reply.body)["error"]["code"] == "request_too_large"

    def relayed_byte_equal(self, want: bool) -> None:
        got = [reply.body == sent for reply, sent in zip(self.o.replies, self.o.sent, strict=True)]
        assert got == [want] * len(got)

    arguments_relayed_byte_equal = relayed_byte_equal

    def same_reply_shape(self, want: bool) -> None:
        for seen, reply in zip(self.o.up.chats, self.o.replies, strict=True):
            assert (reply.body == self.o.up.engine(seen)[1]) == want

    def client_sees_token_ids(self, want: bool) -> None:
        events = [line[6:] for line in self.o.replies[0].body.decode().splitlines() if line.startswith("data: {")]
        ids = [choice.get("token_ids") for event in events for choice in json.loads(event)["choices"]]
        assert (ids != [None] * len(ids)) == want

    def client_got_done(self, want: bool) -> None:
        assert self.o.replies[0].body.endswith(b"data: [DONE]\n\n") == want

    def done_sent(self, want: bool) -> None:
        assert any(b"[DONE]" in reply.body for reply in self.o.replies) == want
        for reply, sent in zip(self.o.replies, self.o.sent, strict=True):
            if sent:
                assert reply.body.startswith(sent)
                assert reply.body[len(sent) :].startswith(b"event: error\n")
            else:
                assert reply.status == 502

    def parsed_events(self, want: int) -> None:
        observer = SseObserver()
        observer.feed(self.o.replies[0].body)
        assert observer.events == want

    def canary_hits(self, want: int) -> None:
        texts = [repr(self.o.proxy.events), *(reply.body.decode() for reply in self.o.replies)]
        assert sum(text.count("CANARY") for text in texts) == want
        assert any(b"CANARY" in raw for raw in self.o.bodies)

    # what the audit and the state say

    def audit_flag(self, want: str) -> None:
        for line in self.o.log:
            assert want in line["flags"] or want == f"bypass_{line['bypass']}"

    def audit_has(self, want: str | list[str]) -> None:
        for line in self.o.log:
            found = {
                "tokenizers_version": line["versions"].get("tokenizers") == tokenizers.__version__,
                "first_divergence": line["first_changed"] is not None,
                "lost_reuse_tokens": line["lost_reuse_tokens"] is not None,
            }
            assert all(found[name] for name in ([want] if isinstance(want, str) else want))

    def audit_cause(self, want: str) -> None:
        assert want in [line["cause"] for line in self.o.log]

    def audit_causes(self, want: list[str]) -> None:
        assert [line["cause"] for line in self.o.log] == want

    def turns_seen(self, want: int) -> None:
        assert [line["messages"] for line in self.o.log] == [want] * len(self.o.bodies)

    turns_kept = turns_seen

    def prefix_property(self, want: bool) -> None:
        texts = self.texts()
        pairs = [new.startswith(old) for old, new in itertools.pairwise(texts)]
        assert all(pairs) == want

    def diff(self, want: str | list[str]) -> None:
        wants = want if isinstance(want, list) else [want] * (len(self.o.log) - 1)
        for line, expected in zip(self.o.log[1:], wants, strict=True):
            path, _, place = expected.partition("@")
            assert line["path"] == path
            if place == "tools":
                assert line["cause"] == "tools_changed"
            elif place:
                assert line["first_changed_message"] == int(place)

    def reused_tail_tokens_min(self, want: int) -> None:
        old, new = self.texts()[:2]
        shared = next(i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b)
        assert len(new) - shared - self.o.log[1]["scanned_chars"] >= want

    def tail_encoded_again(self, want: bool) -> None:
        """What is kept ends before the change: everything behind it is scanned, and only a part of what is before."""
        old, new = self.texts()[:2]
        shared = next(i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b)
        assert (len(new) - shared <= self.o.log[1]["scanned_chars"] < len(new)) == want

    def distinct_session_keys(self, want: bool) -> None:
        sessions = [line["session"] for line in self.o.log]
        assert (len(set(sessions)) == len(sessions)) == want
        assert [line["path"] for line in self.o.log] == ["init"] * len(sessions)

    def cross_tenant_proxy_hit(self, want: bool) -> None:
        first, second, third = self.o.log
        assert first["tenant"] != second["tenant"] == third["tenant"]
        assert (second["path"] != "init") == want
        assert third["path"] == "retry"

    def session_mutated(self, want: bool) -> None:
        """What is kept is what it would be had the request not failed: its prompt, or nothing where it had none."""
        assert want is False
        rendered = [line for line in self.o.log if line["path"] not in (None, "bypass")]
        assert len(self.o.proxy.core.store) - self.o.sessions_before == len({line["session"] for line in rendered})
        assert all(line["path"] in ("init", "retry") for line in rendered)

    def passthrough_counted(self, want: bool) -> None:
        metrics = self.o.proxy.core.metrics.registry
        counted = sum(
            metrics.get_sample_value("toktier_bypass_total", {"model": "m", "reason": reason}) or 0
            for reason in {line["bypass"] for line in self.o.log if line["bypass"]}
        )
        with_ids = sum(self.sent_ids(seen) is not None for seen in self.o.up.chats)
        assert (counted + with_ids == len(self.o.bodies)) == want

    def max_attempts(self, want: int) -> None:
        assert max(line["attempts"] for line in self.o.log) <= want

    def total_timeout(self, want: None) -> None:
        upstream = self.o.proxy.core.generation.registry.upstreams["e"]
        assert upstream._pooled.timeout.total is want

    def upstream_closed_within_s(self, want: float) -> None:
        assert len(self.o.up.ended) == len(self.o.left_at) > 0
        assert all(end - left < want for end, left in zip(self.o.up.ended, self.o.left_at, strict=True))


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
    """J13's tail, long enough for a chunk of its own before the text's open end (`toktier.chunks.SEAL_MIN`).

    As given, 63 characters follow the tail's first useful cut. They are encoded again (`Check.tail_encoded_again`).
    """
    for body in bodies:
        for message in body["messages"]:
            if message["content"] == "q2":
                message["content"] = " ".join(f"Question {n}?" for n in range(50))


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
