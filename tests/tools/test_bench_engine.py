"""The engine account, with an engine that counts: the three ways send the same prompts, and go on differently."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest

from tests.support.tokenizer_files import CACHE, small_spec, write
from toktier.tokenizer import EMBEDDED
from tools.bench import engine
from tools.bench.records import OURS
from tools.traffic import Engine, reference_ids
from tools.traffic.engine import CHAT


class Counting(Engine):
    """It counts the IDs of text as well, and says how long a prompt may be."""

    longest = 20_000
    wrong = 0

    def answer(self, method: str, path: str, headers: Mapping[str, str], raw: bytes) -> tuple[int, str, list[bytes]]:
        if path == "/v1/models":
            return 200, "application/json", [orjson.dumps({"data": [{"id": "tiny", "max_model_len": self.longest}]})]
        if path == CHAT:
            body = orjson.loads(raw)
            if "kv_transfer_params" not in body:
                ids = [*self.tokenize(body), *range(self.wrong)]
                raw = orjson.dumps(body | {"kv_transfer_params": {"prompt_token_ids": ids}})
        return super().answer(method, path, headers, raw)


@contextmanager
def serving(fake: Engine) -> Iterator[str]:
    """The engine on a loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(fake.start(), loop).result(10)
    try:
        yield fake.url
    finally:
        asyncio.run_coroutine_threadsafe(fake.stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.mark.slow
def test_all_ways_have_a_row_and_long_sessions_a_note(tmp_path: Path) -> None:
    config = json.loads((EMBEDDED / "tokenizer_config.json").read_text("utf-8"))
    small = write(tmp_path / "small", small_spec(), tokenizer_config={"chat_template": config["chat_template"]})
    plan = engine.Plan([3_000, 100_000], 3, small, {"server": {"cache_dir": str(CACHE)}})
    fake = Counting(reference_ids(small), models=("tiny",))
    with serving(fake) as url, engine.vllm(url) as given:
        assert given == url
        rows = engine.run(plan, url)
        found = {(row.engine, row.size): row for row in rows}
        for way in engine.WAYS:
            row = found[way, 3_000]
            assert (row.n, row.account, row.note) == (3, "engine", "")
            assert row.served > 3_000
            assert found[way, 100_000].n == 0
            assert found[way, 100_000].note == "longer than the engine's context of 20,000"
        assert 0 < found[OURS, 3_000].scanned < found[engine.TEXT, 3_000].scanned
        fake.wrong = 1
        with pytest.raises(AssertionError, match="a prompt of another length"):
            engine.run(engine.Plan([3_000], 2, small, plan.tables), url)
