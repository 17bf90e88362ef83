"""What the ``assert`` block of a given HTTP case may ask: a method of `Check` for each key.

IDs are compared with transformers' own rendering and encoding, in another process.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import tokenizers

from proxy.jsonspan import parse
from proxy.observers import SseObserver
from tests.support.cases import Outcome
from tests.support.models import qwen3
from tests.support.reference import Reference


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
