"""The library account: what is done to a session, what each engine's process answers, and what a run makes of it."""

from __future__ import annotations

import hashlib
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.support.tokenizer_files import CACHE, small_spec, write
from toktier import measured
from toktier.shortcuts import Shortcuts
from tools.bench import encoders, repair, texts
from tools.bench.encoder_process import Changed, Encoder
from tools.bench.records import OURS, Record
from tools.bench.worker import Unmeasured


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer folder that loads in a moment."""
    return write(tmp_path_factory.mktemp("bench") / "small", small_spec())


def plan(small: Path, **other: Any) -> repair.Plan:
    return repair.Plan(sizes=[3_000], rounds=1, tokenizer=small, environments=small.parent, build=False, **other)


@pytest.mark.parametrize("size", [2_000, 10_000, 50_000])
def test_a_chat_is_as_long_as_it_should_be_and_waits_for_an_answer(size: int) -> None:
    text = texts.chat(1, size)
    assert len(text) == size
    assert text.endswith(texts.TURN_END + texts.PROMPT)
    assert text.startswith("<|im_start|>system\n")
    assert text.count("<|im_start|>") - 1 == text.count("<|im_end|>") > 1
    assert text == texts.chat(1, size) != texts.chat(2, size)


@pytest.mark.parametrize("case", repair.CASES)
def test_changes_fit_the_text_that_the_ones_before_have_made(case: str) -> None:
    text = texts.chat(1, 20_000)
    for change in islice(repair.changes(case, text, 3), 4):
        assert 0 <= change.start <= change.end <= len(text)
        before, text = text, text[: change.start] + change.new + text[change.end :]
        if case.startswith("append"):
            assert text.startswith(before)
            assert len(text) - len(before) == int(case.split()[1].replace(",", ""))
        elif case == "middle edit":
            assert len(text) == len(before) != text
            assert 6_000 < change.start < change.end < 14_000
        elif case == "truncate":
            assert before.startswith(text)
            assert len(before) - len(text) == 1_400
        else:
            assert text.endswith(texts.PROMPT)
            assert change.timed == ("<think>" not in text)
            assert not change.timed or 4_000 < len(before) - change.start < 6_000


def test_a_run_has_a_row_for_each_engine_and_says_which_are_absent(small: Path) -> None:
    names = [OURS, "hf-full", "fastokens-full, segment cache", "gigatoken-full, warm"]
    rows = repair.run(plan(small, engines=names), CACHE)
    assert {(row.account, row.case, row.size) for row in rows} == {("library", case, 3_000) for case in repair.CASES}
    for row in rows:
        if row.engine == "gigatoken-full, warm":
            assert (row.n, row.note) == (0, "its environment is not there, and --no-build was given")
            continue
        assert row.n == {"hf-full": 1}.get(row.engine, 10)
        assert row.note == "", row
        assert 0 < row.p50_us <= row.p99_us
        assert row.served > 3_000
        assert row.scanned > row.served / 2 or row.engine == OURS
    ours = {row.case: row for row in rows if row.engine == OURS}
    assert ours["append 100"].scanned < 1_500


class FakeEncoder:
    """Answers with the digest of what its text is, or with what `wrong` says."""

    wrong: ClassVar[dict[str, str]] = {}

    def __init__(self, name: str, *_: object, **__: object) -> None:
        if self.wrong.get(name) == "absent":
            raise Unmeasured("no network")
        self.name, self.note = name, ""
        self._base = self._text = ""

    def __enter__(self) -> FakeEncoder:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def base(self, text: str) -> None:
        self._base = self._text = text

    def reset(self) -> None:
        self._text = self._base

    def change(self, steps: list[tuple[int, int, str]]) -> list[Changed]:
        if self.wrong.get(self.name) == "fails":
            raise Unmeasured("PanicException")
        for start, end, new in steps:
            self._text = self._text[:start] + new + self._text[end:]
        return [Changed(1_000_000, None if self.name == "toktier-0.3.0" else len(new)) for _, _, new in steps]

    def ids(self) -> str:
        return self.wrong.get(self.name, "") + hashlib.blake2b(self._text.encode(), digest_size=8).hexdigest()


def test_ids_are_compared_and_only_ours_must_be_right(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "Encoder", FakeEncoder)
    few = plan(small, cases=["append 1,400"], engines=[OURS, "hf-full", "gigatoken-full, warm", "toktier-0.3.0"])
    monkeypatch.setattr(FakeEncoder, "wrong", {"gigatoken-full, warm": "other", "toktier-0.3.0": "fails"})
    notes = {row.engine: (row.n, row.note) for row in repair.run(few, CACHE)}
    assert notes == {
        OURS: (10, ""),
        "hf-full": (1, ""),
        "gigatoken-full, warm": (10, "other IDs than the reference"),
        "toktier-0.3.0": (0, "PanicException"),
    }
    monkeypatch.setattr(FakeEncoder, "wrong", {OURS: "other"})
    with pytest.raises(AssertionError, match="not the reference's IDs"):
        repair.run(few, CACHE)
    monkeypatch.setattr(FakeEncoder, "wrong", {OURS: "fails"})
    with pytest.raises(AssertionError, match="PanicException"):
        repair.run(few, CACHE)


def test_a_process_says_what_went_wrong(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = small / "tokenizer.json"
    with Encoder("fastokens-full", file, small, CACHE) as encoder:
        encoder.base("one two")
        assert [one.scanned for one in encoder.change([(7, 7, " three"), (0, 3, "é")])] == [13, 11]
        first = encoder.ids()
        encoder.reset()
        encoder.change([(7, 7, " three"), (0, 3, "e")])
        assert encoder.ids() != first
        encoder._process.kill()
        with pytest.raises(Unmeasured, match=r"ended|not within"):
            encoder.change([(0, 0, "x")])
    with pytest.raises(Unmeasured, match="KeyError"):
        Encoder("no such engine", file, small, CACHE)
    with pytest.raises(Unmeasured, match="its environment is not there"):
        Encoder("toktier-0.3.0", file, small, CACHE, environments_at=small.parent, build=False)


def test_ids_of_any_kind_have_the_same_bytes() -> None:
    wanted = np.array([1, 2, 70_000], "<u4").tobytes()
    for ids in ([1, 2, 70_000], (1, 2, 70_000), np.array([1, 2, 70_000], np.int64), wanted, bytearray(wanted)):
        assert encoders.packed(ids) == wanted


def test_our_engine_encodes_short_texts_anew_as_the_tier_does(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKTIER_BENCH_CACHE", str(CACHE))
    monkeypatch.setattr(measured, "measure", lambda _encoder: Shortcuts(1_000, 8_192, measured=True))
    engine = encoders.Own(str(small))
    text = "one two three " * 100
    engine.base(text[:700])
    for start, end, new, scanned in (
        (700, 700, " four", 705),
        (10, 14, "five", 705),
        (600, 705, "", 600),
        (400, 600, "six", 403),
        (0, 403, "", 0),
        (0, 0, text[:900], 900),
        (900, 900, text[:200], None),
    ):
        _, found = engine.change(start, end, new)
        assert found == scanned if scanned is not None else found < 900
        engine.ids()  # which compares them with a full encode
    assert engine._rope.text() == text[:900] + text[:200]


def test_an_engine_without_sessions_gets_the_whole_text() -> None:
    seen: list[str] = []

    def encode(text: str) -> list[int]:
        seen.append(text)
        return [len(text)]

    engine = encoders.Full(encode, "1")
    assert encoders.answer(engine, {"do": "base"}, "abc") == {}
    ((took, scanned),) = encoders.answer(engine, {"do": "change", "steps": [[1, 2, 3]]}, "xyz")["changed"]
    assert took >= 0
    assert scanned == 5
    assert encoders.answer(engine, {"do": "ids"}, "")["count"] == 1
    encoders.answer(engine, {"do": "reset"}, "")
    encoders.answer(engine, {"do": "change", "steps": [[3, 3, 1], [0, 1, 0]]}, "!")
    assert seen == ["abc", "axyzc", "abc!", "bc!"]


def test_what_is_beyond_the_limits() -> None:
    def row(engine: str, size: int, p50: float, case: str = "append 1,400") -> Record:
        return Record("library", case, engine, size, 9, p50, p50, p50)

    good = [
        row(OURS, 100_000, 50),
        row(OURS, 1_000_000, 55),
        row("toktier-0.3.0", 1_000_000, 8_000),
        row("fastokens-full, segment cache", 1_000_000, 1_100),
        row("fastokens-full, segment cache", 100_000, 51),
        row(OURS, 1_000_000, 150, "middle edit"),
    ]
    assert repair.over_limit(good) == []
    bad = [
        row(OURS, 100_000, 50),
        row(OURS, 1_000_000, 65),
        row("toktier-0.3.0", 1_000_000, 6_000),
        row("fastokens-full, segment cache", 1_000_000, 300),
        row("gigatoken-full, warm", 100_000, 40),
        row(OURS, 1_000_000, 300, "middle edit"),
    ]
    assert len(repair.over_limit(bad)) == 6
