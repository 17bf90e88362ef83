"""The trust machinery through the real proxy, with the real tier and the real worker process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from proxy.app import RELOAD
from proxy.marks import Marks
from proxy.mismatch import FIELDS
from tests.support.models import load_qwen3
from tests.support.proxy import settings_for
from tests.support.wrong_tier import CANARY, Trial, always_swapped, reference_ids, swapped, trial
from toktier.quarantine import Quarantine


def body(*contents: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": f"{CANARY} {text}"} for i, text in enumerate(contents)]}


def nothing_of_the_prompt(lines: list[dict[str, Any]]) -> None:
    assert CANARY not in json.dumps(lines, default=str)


async def test_right_requests_are_found_right(tmp_path: Path) -> None:
    async with trial(tmp_path, load_qwen3) as t:
        first = await t.ask("one")
        await t.ask("one", "answer", "two " * 2000)
        await t.until("shadow_check", 2)
        checks = t.told("shadow_check")
        assert [(c["result"], c["path"], c["sampled"]) for c in checks] == [
            ("equal", "init", "rate"),
            ("equal", "append", "rate"),
        ]
        assert checks[0]["request_id"] == first["request_id"]
        assert (checks[0]["chars"], checks[0]["tokens"]) == (first["chars"], first["tokens"])
        assert checks[0]["delay_us"] >= checks[0]["check_us"] > 0
        assert t.told("shadow_worker", state="started")
        assert not t.told("mismatch")
        assert not (await t.ready())["degraded"]
        assert await t.metric("toktier_shadow_checks_total", model="m", result="equal") == 2
        assert await t.metric("toktier_shadow_delay_seconds_count") == 2
        nothing_of_the_prompt(t.proxy.events)
    assert t.told("shadow_worker", state="stopped")


async def test_wrong_ids_end_the_trust_until_it_is_lifted(tmp_path: Path) -> None:
    async with trial(tmp_path) as t:
        await t.ask("warm")
        await t.until("shadow_check")
        assert len(t.proxy.core.store) > 0
        t.tier.spoil = swapped
        wrong = await t.ask("one", request_id="the-wrong-one")
        told = await t.until("mismatch")
        assert {
            "source": "shadow",
            "kind": "ids",
            "path": "init",
            "model": "m",
            "upstream": "e",
        }.items() <= told.items()
        assert (told["request_id"], told["session"]) == ("the-wrong-one", wrong["session"])
        assert told["first_id"] == 3
        assert told["tokens"] == told["reference_tokens"] == wrong["tokens"]
        assert told["ids_digest"] != told["reference_ids_digest"]
        assert told["text_digest"] == told["reference_text_digest"]
        assert told["piece_chars"] > 0
        assert set(FIELDS) <= told.keys()
        assert told["prepared_with"] == wrong["tokenizer_digest"]
        assert told["tokenizer_digest"] == (await t.ready())["quarantine"][0]["tokenizer_digest"]
        assert told["certificate"]
        assert "tokenizers" in " ".join(told["versions"])
        assert told["capture"] is None
        assert (await t.until("quarantined"))["quarantine_level"] == "reference"
        assert (await t.until("shadow_check", result="different"))["request_id"] == "the-wrong-one"
        async with asyncio.timeout(20):
            while len(t.proxy.core.store):
                await asyncio.sleep(0.01)
        await reference_encodes(t)
        ready = await t.ready()
        assert (ready["status"], ready["degraded"]) == ("degraded", True)
        assert ready["quarantine"][0]["path"] == "init"
        assert await t.metric("toktier_mismatch_total", model="m", source="shadow") == 1
        assert await t.metric("toktier_quarantined") == 1
        nothing_of_the_prompt(t.proxy.events)
    file = tmp_path / "quarantine.json"
    assert file.stat().st_mode & 0o777 == 0o600
    async with trial(tmp_path) as t:  # another process
        assert t.told("quarantine_read", path="init", quarantine_level="reference")
        t.tier.spoil = swapped
        await reference_encodes(t)
        assert (await t.ready())["degraded"]
        lifted = Quarantine(file).lift()  # as `toktier quarantine lift` does, in yet another
        assert [entry.path for entry in lifted] == ["init"]
        await t.until("quarantine_lifted", path="init")
        assert not (await t.ready())["degraded"]
        t.tier.spoil = None
        assert (await t.ask("after"))["full"] != "quarantined"


async def reference_encodes(t: Trial) -> None:
    """A request that is served in quarantine has the right IDs, and a check agrees."""
    before = len(t.told("shadow_check", result="equal"))
    line = await t.ask("two 你好")
    assert (line["path"], line["full"], line["scanned_chars"]) == ("init", "quarantined", line["chars"])
    assert t.sent_ids() == reference_ids(body("two 你好"))
    await t.until("shadow_check", before + 1, result="equal")


async def test_a_reference_that_is_wrong_too_ends_in_text(tmp_path: Path) -> None:
    async with trial(tmp_path) as t:
        t.tier.spoil = always_swapped
        await t.ask("one")
        await t.until("quarantined", quarantine_level="reference")
        await t.ask("two")
        raised = await t.until("quarantined", quarantine_level="text")
        assert raised["path"] == "init"
        line = await t.ask("three")
        assert (line["path"], line["bypass"], line["tokens"]) == ("bypass", "quarantined", None)
        assert t.sent_ids() is None
        assert await t.metric("toktier_quarantined") == 1


async def test_a_wrong_count_of_the_engine_climbs_the_ladder(tmp_path: Path) -> None:
    def counted(extra: int) -> list[dict[str, Any]]:
        usage = {"prompt_tokens": len(reference_ids(body("one"))) + extra, "completion_tokens": 1}
        choice = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
        return [{"send": json.dumps({"choices": [choice], "usage": usage})}]

    async with trial(tmp_path, shadow={"rate": 0, "first": 1}) as t:
        t.up.scripts.append(counted(2))
        line = await t.ask("one")
        assert line["prompt_tokens_equal"] is False
        told = await t.until("mismatch", source="usage")
        assert (told["kind"], told["tokens"], told["reference_tokens"]) == ("count", line["tokens"], line["tokens"] + 2)
        assert told["reference_ids_digest"] is None
        assert t.told("model_state", state="unprobed")
        await t.until("quarantined", quarantine_level="reference", source="usage")
        assert await t.until("shadow_check", sampled="usage", result="equal")
        await t.proxy.settled()
        t.up.scripts.append(counted(2))
        assert (await t.ask("one"))["full"] == "quarantined"
        await t.until("quarantined", quarantine_level="text", source="usage")
        await t.proxy.settled()
        assert (await t.ask("one"))["bypass"] == "quarantined"
        # The probe has the other paths to look at, and finds them in order.
        assert (await t.ready())["models"]["m"]["state"] == "ok"


async def test_the_word_of_another_engine_counts_for_nothing(tmp_path: Path) -> None:
    async with trial(tmp_path, shadow={"rate": 0, "first": 0, "parity_rate": 1.0}) as t:
        t.proxy.core.generation.registry.models["m"].marks = Marks(fingerprint="probed")
        reply = {"choices": [], "usage": {"prompt_tokens": 1}, "system_fingerprint": "another"}
        t.up.scripts.append([{"send": json.dumps(reply)}])
        assert (await t.ask("one"))["prompt_tokens_equal"] is False
        assert t.told("model_state", state="unprobed")
        await t.proxy.settled()
        await t.ask("two")
        await t.until("parity_check")
        assert len(t.told("parity_check")) == 1, "the first request was not compared either"
        assert not t.told("mismatch")


async def test_every_change_is_checked_where_that_is_wanted(tmp_path: Path) -> None:
    async with trial(tmp_path, shadow={"rate": 0, "first": 0, "after_change": True}) as t:
        await t.ask("one", "answer", "two")
        await t.ask("one", "another answer", "two")
        assert (await t.until("shadow_check"))["sampled"] == "change"
        await t.ask("one", "another answer", "two", "and", "three")
        assert [line["path"] for line in t.told("shadow_check")] == ["edit"]


async def test_a_reply_that_broke_off_counts_for_nothing(tmp_path: Path) -> None:
    async with trial(tmp_path) as t:
        usage = {"choices": [], "usage": {"prompt_tokens": 1}}
        t.up.scripts.append([{"send": f"data: {json.dumps(usage)}\n\n"}, {"close": True}])
        line = await t.ask("one", stream=True)
        assert "incomplete_stream" in line["flags"]
        await t.until("shadow_check")
        assert not t.told("mismatch")


async def test_nothing_is_done_where_only_a_report_is_wanted(tmp_path: Path) -> None:
    async with trial(tmp_path, shadow={"on_mismatch": "report"}) as t:
        await t.ask("kept")
        t.tier.spoil = always_swapped
        await t.ask("one")
        await t.until("mismatch")
        await t.until("shadow_check", result="different")
        assert not t.told("quarantined")
        assert len(t.proxy.core.store) > 0
        assert not (await t.ready())["degraded"]
    assert not (tmp_path / "quarantine.json").exists()


async def test_captures_hold_what_they_may(tmp_path: Path) -> None:
    private = {"cache_salt": "salt-4712", "user": "user-4713", "metadata": {"k": "meta-4714"}}
    for level in ("digests", "full"):
        async with trial(tmp_path / level, shadow={"capture": level}) as t:
            t.tier.spoil = always_swapped
            await t.ask("one", **private)
            told = await t.until("mismatch")
            nothing_of_the_prompt(t.proxy.events)
        file = tmp_path / level / "captures" / told["capture"]
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.parent.stat().st_mode & 0o777 == 0o700
        text = file.read_text("utf-8")
        kept = json.loads(text)
        assert kept["mismatch"]["ids_digest"] == told["ids_digest"]
        assert (CANARY in text) == (level == "full")
        assert not any(secret in text for secret in ("salt-4712", "user-4713", "meta-4714"))
    right = reference_ids(body("one"))
    assert kept["body"]["messages"] == body("one")["messages"]
    assert [i for i, (a, b) in enumerate(zip(kept["ids"], right, strict=True)) if a != b] == [3]
    assert CANARY in kept["text"]


async def test_a_killed_worker_is_replaced_and_its_check_counted(tmp_path: Path) -> None:
    async with trial(tmp_path) as t:
        await t.ask("one")
        await t.until("shadow_check")
        pid = t.told("shadow_worker", state="started")[0]["pid"]
        os.kill(pid, signal.SIGKILL)
        await t.ask("two")
        await t.ask("three")
        await t.until("shadow_worker", state="died", pid=pid)
        async with asyncio.timeout(300):
            while len(t.told("shadow_check")) + len(t.told("shadow_dropped")) < 3:
                await asyncio.sleep(0.01)
        assert t.told("shadow_check", request_id=t.proxy.log[2]["request_id"])
        assert len({line["pid"] for line in t.told("shadow_worker", state="started")}) == 2
        dropped = t.told("shadow_dropped")
        assert {line["reason"] for line in dropped} <= {"worker_died"}
        assert await t.metric("toktier_shadow_dropped_total") == 0
        assert await t.metric("toktier_shadow_dropped_total", model="m", reason="worker_died") == len(dropped)


async def test_what_does_not_fit_the_queue_is_counted(tmp_path: Path) -> None:
    async with trial(tmp_path, shadow={"queue_jobs": 1}) as t:
        for number in range(6):  # the first starts a process, which takes its time
            await t.ask(f"number {number}")
        async with asyncio.timeout(300):
            while len(t.told("shadow_check")) + len(t.told("shadow_dropped")) < 6:
                await asyncio.sleep(0.01)
        full = t.told("shadow_dropped", reason="queue_full")
        assert full
        assert await t.metric("toktier_shadow_dropped_total", model="m", reason="queue_full") == len(full)
        assert await t.metric("toktier_shadow_waiting") == 0


async def test_the_end_of_the_process_leaves_no_check_untold(tmp_path: Path) -> None:
    async with trial(tmp_path) as t:
        for number in range(5):
            await t.ask(f"number {number}")
        t.proxy.core.end_by = 0.0
    assert len(t.told("shadow_check")) + len(t.told("shadow_dropped")) == 5
    assert {line["reason"] for line in t.told("shadow_dropped")} <= {"shutdown"}


async def test_a_reload_keeps_processes_and_quarantine_and_changes_rates(tmp_path: Path) -> None:
    async with trial(tmp_path) as t:
        t.tier.spoil = swapped
        await t.ask("one")
        await t.until("quarantined")
        quiet = settings_for(t.up.url, tmp_path, shadow={"rate": 0, "first": 0})
        await t.proxy.app[RELOAD](quiet)
        await t.proxy.settled()
        assert (await t.ask("two"))["full"] == "quarantined"
        loud = settings_for(t.up.url, tmp_path, model={"shadow_rate": 1.0})
        await t.proxy.app[RELOAD](loud)
        await t.proxy.settled()
        three = await t.ask("three")
        await t.until("shadow_check", request_id=three["request_id"])
        assert len(t.told("shadow_check")) == 2
        assert len(t.told("shadow_worker", state="started")) == 1


async def test_without_a_sample_no_process_is_started(tmp_path: Path) -> None:
    async with trial(tmp_path, shadow={"rate": 0, "first": 0}) as t:
        await t.ask("one")
        await asyncio.sleep(0.1)
        assert not t.told("shadow_worker")


async def test_a_state_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "captures").write_text("")
    (tmp_path / "quarantine.json.lock").mkdir()
    async with trial(tmp_path, shadow={"capture": "full"}) as t:
        t.tier.spoil = swapped
        await t.ask("one")
        assert (await t.until("mismatch"))["capture"] is None
        assert t.told("quarantine_unwritable")
        assert t.told("capture_failed")
        await reference_encodes(t)
        assert (await t.ready())["degraded"]


async def test_a_damaged_file_means_that_nothing_is_trusted(tmp_path: Path) -> None:
    file = tmp_path / "quarantine.json"
    file.write_text("{")
    async with trial(tmp_path) as t:
        assert t.told("quarantine_unreadable")
        assert (await t.ask("one"))["full"] == "quarantined"
        assert (await t.ready())["degraded"]
        Quarantine(file).lift()
        await t.until("quarantine_lifted")
        assert (await t.ask("two"))["full"] != "quarantined"
        assert not (await t.ready())["degraded"]


@pytest.mark.parametrize("spoil", [None, always_swapped])
async def test_the_engines_own_ids_judge(tmp_path: Path, spoil: Any) -> None:
    shadow = {"rate": 0, "first": 0, "parity_rate": 1.0}
    async with trial(tmp_path, shadow=shadow) as t:
        t.tier.spoil = spoil
        line = await t.ask("one", temperature=0, tools=[{"type": "function", "function": {"name": "f"}}])
        told = await t.until("parity_check")
        assert told["result"] == ("equal" if spoil is None else "different")
        assert told["tokens"] == line["tokens"]
        # A difference also makes the engine's own texts be compared again.
        asked = [seen.json for seen in t.up.seen if seen.target == "/tokenize" and "tools" in seen.json][-1]
        assert asked.keys() == {"model", "messages", "tools", "add_generation_prompt"}
        if spoil is None:
            assert not t.told("mismatch")
        else:
            found = await t.until("mismatch", source="tokenize")
            assert (found["kind"], found["first_id"]) == ("ids", 3)
            await t.until("quarantined", source="tokenize", quarantine_level="reference")
            assert t.told("model_state", state="unprobed")
        nothing_of_the_prompt(t.proxy.events)
