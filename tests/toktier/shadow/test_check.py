"""The comparison: equal what is equal, and for every alteration the right first index, character and piece."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path as File
from typing import Any

import numpy as np
import pytest

from tests.support import shadow
from tests.support.models import CACHE, qwen3
from tests.support.rank_data import write_ranks
from tests.support.shadow import Subject, ids_of, say, with_ids
from toktier.engines.base import Reference
from toktier.errors import CannotEncode
from toktier.reasons import Path
from toktier.shadow.check import Checker, digest_of_ids, digest_of_text
from toktier.shadow.job import Drop, Job, Kind, NotComparable, Piece, Verdict
from toktier.shadow.reference import ReferencePath
from toktier.tokenizer import FrozenTokenizer
from tools import traces

TEXTS = (
    "Fix the bug in parse_date(), please: it returns 2026-11-30T12:34:56.789Z twice.\n\n  def f(x):\n\treturn x\n",
    "the caf\u00e9 \u2013 \u4e2d\u6587\u6ca1\u6709\u7a7a\u683c, \U0001f600\U0001f468\u200d\U0001f469 1234567 " * 3,
    "<|im_end|>\n<|im_start|>system\nno<|im_end|> \u1e9b\u0323 e\u0301" + "=" * 40 + " " * 33 + "x",
)


@pytest.fixture(scope="module")
def qwen() -> Subject:
    return shadow.subject(qwen3(), special=True)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    folder = write_ranks(tmp_path_factory.mktemp("ranks"))
    (folder / "own.jinja").write_text(
        "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}<|start|>"
    )
    return shadow.subject(FrozenTokenizer.load(folder, cache_dir=CACHE), template=folder / "own.jinja", special=True)


@pytest.fixture(scope="module")
def checker() -> Checker:
    return Checker()


@pytest.fixture(params=["qwen", "ranks"])
def either(request: pytest.FixtureRequest) -> Subject:
    made: Subject = request.getfixturevalue(request.param)
    return made


def verdict(checker: Checker, job: Job) -> Verdict:
    found = checker.check(job)
    assert isinstance(found, Verdict), found
    return found


def different(checker: Checker, job: Job) -> Verdict:
    found = verdict(checker, job)
    assert found.kind is not None
    assert not found.equal
    return found


def assert_piece_holds(reference: Reference, text: str, piece: Piece | None, char: int) -> None:
    assert piece is not None
    assert piece.start <= char < piece.start + piece.chars
    # A piece is encoded on its own: its IDs stand behind those of the text before it, and before all others.
    before = reference.encode(text[: piece.start])
    own = reference.encode(text[piece.start : piece.start + piece.chars])
    assert reference.encode(text)[: len(before) + len(own)].tolist() == [*before.tolist(), *own.tolist()]


# equal


def test_real_conversations_are_equal_whatever_path_they_take(checker: Checker, qwen: Subject) -> None:
    paths = set()
    for conversation in traces.generate(24, 5, long=0):
        for step in conversation.steps:
            job = qwen.job(step.body, tenant=conversation.id)
            found = verdict(checker, job)
            assert found.equal
            assert (found.first_id, found.first_char, found.piece) == (None, None, None)
            assert found.chars == found.reference_chars == len(job.text)
            assert found.tokens == found.reference_tokens == len(job.ids) // 4
            assert found.text_digest == found.reference_text_digest == digest_of_text(job.text)
            assert found.ids_digest == found.reference_ids_digest == digest_of_ids(job.ids)
            assert found.stages.keys() == {"load", "normalise", "render", "encode", "compare"}
            paths.add(job.path)
    assert paths == {Path.INIT, Path.APPEND, Path.EDIT, Path.COMPACTION, Path.RETRY}


@pytest.mark.parametrize("text", TEXTS)
def test_special_tokens_and_template_arguments_are_the_same_there(checker: Checker, either: Subject, text: str) -> None:
    for more in ({}, {"add_special_tokens": True}, {"chat_template_kwargs": {"enable_thinking": False}}):
        assert verdict(checker, either.job({**say(text, "yes", text), **more})).equal


def test_sglangs_rules_are_followed_where_they_are_the_models(checker: Checker) -> None:
    sglang = shadow.subject(qwen3(), profile="sglang")
    body = say(TEXTS[0], "yes", "more")
    body["messages"].insert(0, {"role": "system", "content": [{"type": "text", "text": t} for t in ("a", "b")]})
    job = sglang.job(body)
    assert verdict(checker, job).equal
    # vLLM joins the parts of a message in another way
    assert different(checker, replace(job, setup=replace(job.setup, profile="vllm"))).kind is Kind.TEXT


def test_the_clock_is_that_of_the_request(checker: Checker, tmp_path: File) -> None:
    """Of a job that waited past midnight, too."""
    dated = shadow.small(tmp_path, "{% if messages|length > 1 %}{{ strftime_now('%d %b %Y') }}{% endif %}q")
    noon = datetime.now().replace(hour=12) - timedelta(days=3)
    text = f"{noon:%d %b %Y}q"
    job = replace(
        dated.job(say("q")),
        body=json.dumps(say("q", "a")).encode(),
        text=text,
        ids=dated.tier.tokenizer.reference.encode(text).astype("<u4").tobytes(),
        prepared_at=time.monotonic() - (time.time() - noon.timestamp()),
    )
    assert verdict(checker, job).equal
    assert different(checker, replace(job, prepared_at=job.prepared_at + 86400)).kind is Kind.TEXT


# altered IDs


Alteration = Callable[[random.Random, list[int]], list[int]]


def substituted(rng: random.Random, ids: list[int]) -> list[int]:
    k = rng.randrange(len(ids))
    return [*ids[:k], ids[k] ^ 1, *ids[k + 1 :]]


def deleted(rng: random.Random, ids: list[int]) -> list[int]:
    k = rng.randrange(len(ids))
    return ids[:k] + ids[k + 1 :]


def duplicated(rng: random.Random, ids: list[int]) -> list[int]:
    k = rng.randrange(len(ids))
    return [*ids[:k], ids[k], *ids[k:]]


def swapped(rng: random.Random, ids: list[int]) -> list[int]:
    k = rng.choice([k for k in range(len(ids) - 1) if ids[k] != ids[k + 1]])
    return [*ids[:k], ids[k + 1], ids[k], *ids[k + 2 :]]


def cut_short(rng: random.Random, ids: list[int]) -> list[int]:
    return ids[: -rng.randint(1, 5)]


def too_long(rng: random.Random, ids: list[int]) -> list[int]:
    return [*ids, rng.choice(ids)]


ALTERATIONS = [substituted, deleted, duplicated, swapped, cut_short, too_long]


@pytest.mark.parametrize("alter", ALTERATIONS)
def test_altered_ids_are_found_with_their_place(checker: Checker, either: Subject, alter: Alteration) -> None:
    rng = random.Random(alter.__name__)
    reference = either.tier.tokenizer.reference
    for text in TEXTS:
        job = either.job(say(text))
        right = ids_of(job)
        for _ in range(4):
            wrong = alter(rng, right)
            found = different(checker, with_ids(job, wrong))
            pairs = zip(wrong, right, strict=False)
            first = next((k for k, (a, b) in enumerate(pairs) if a != b), min(len(wrong), len(right)))
            assert (found.kind, found.first_id) == (Kind.IDS, first)
            assert (found.tokens, found.reference_tokens) == (len(wrong), len(right))
            assert found.ids_digest != found.reference_ids_digest == digest_of_ids(job.ids)
            assert found.text_digest == found.reference_text_digest
            assert found.first_char is not None
            if first == len(right):
                assert found.first_char == len(job.text)
                assert found.piece is not None
                assert found.piece.start + found.piece.chars == len(job.text)
                continue
            assert_piece_holds(reference, job.text, found.piece, found.first_char)
            assert found.piece is not None
            before = len(reference.encode(job.text[: found.piece.start]))
            own = len(reference.encode(job.text[found.piece.start :][: found.piece.chars]))
            assert before <= first < before + own


def test_pieces_are_counted_from_the_start_literals_among_them(checker: Checker, qwen: Subject) -> None:
    job = qwen.job(say("hello  wide world"))
    assert job.text.startswith("<|im_start|>user\nhello  wide world<|im_end|>\n")
    pieces = ["<|im_start|>", "user", "\n", "hello", " ", " wide", " world", "<|im_end|>", "\n"]
    ids = ids_of(job)
    assert len(ids) >= len(pieces)
    for k, piece in enumerate(pieces):  # all of these are one token each
        found = different(checker, with_ids(job, [*ids[:k], ids[k] ^ 1, *ids[k + 1 :]]))
        start = len("".join(pieces[:k]))
        assert (found.first_id, found.first_char) == (k, start)
        assert found.piece == Piece(k, start, len(piece))


def test_pieces_of_a_rank_file_are_counted_beyond_a_window(checker: Checker, ranks: Subject) -> None:
    words = " ".join(f"w{k % 10}" for k in range(3000))
    job = ranks.job(say(words + " " * 1500 + "<|end|>tail"))
    ids = ids_of(job)
    k = len(ids) - 3
    found = different(checker, with_ids(job, [*ids[:k], ids[k] ^ 1, *ids[k + 1 :]]))
    assert found.piece is not None
    # <|start|> user \n, then "w0", "0" split off as a number: two pieces a word, blanks, the last blank apart
    engine = ranks.tier.tokenizer.reference
    parts = job.text.replace("<|start|>", "\0<|start|>\0").replace("<|end|>", "\0<|end|>\0").split("\0")
    flat: list[str] = []
    for part in parts:
        flat += [part] if part.startswith("<|") else list(split(engine, part))
    starts = np.cumsum([0, *map(len, flat)]).tolist()
    assert flat[found.piece.index] == job.text[found.piece.start :][: found.piece.chars]
    assert starts[found.piece.index] == found.piece.start
    assert found.piece.start <= found.first_char < found.piece.start + found.piece.chars  # type: ignore[operator]


def split(engine: Reference, text: str) -> Iterator[str]:
    """All pieces of a text without literals: asked for a line of words at a time, which this pattern cannot tell."""
    half = text.rfind(" w", 0, len(text) // 2) if len(text) > 400 else -1
    if half > 0:
        yield from split(engine, text[:half])
        yield from split(engine, text[half:])
    elif text:
        yield from engine.pieces(text)


def test_special_tokens_around_the_text_are_no_part_of_it(checker: Checker, tmp_path: File) -> None:
    own = shadow.small(tmp_path)
    first, last = (own.tier.tokenizer.reference.encode(letter).tolist()[0] for letter in "ab")
    spec = json.loads((tmp_path / "tokenizer.json").read_bytes())
    spec["post_processor"] = {"type": "BertProcessing", "sep": ["b", last], "cls": ["a", first]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    subject = shadow.subject(
        FrozenTokenizer.load(tmp_path, cache_dir=CACHE, window=False), template=tmp_path / "own.jinja", special=True
    )
    job = subject.job({**say("hello world"), "add_special_tokens": True})
    right = ids_of(job)
    assert (right[0], right[-1]) == (first, last)
    assert verdict(checker, job).equal
    before = different(checker, with_ids(job, [right[0] + 1, *right[1:]]))
    assert (before.first_id, before.first_char, before.piece) == (0, 0, None)
    inside = different(checker, with_ids(job, [right[0], right[1] ^ 1, *right[2:]]))
    assert (inside.first_id, inside.first_char) == (1, 0)
    assert inside.piece is not None
    assert (inside.piece.index, inside.piece.start) == (0, 0)
    after = different(checker, with_ids(job, [*right[:-1], right[-1] + 1]))
    assert (after.first_id, after.first_char) == (len(right) - 1, len(job.text))
    missing = different(checker, with_ids(job, right[1:-1]))
    assert (missing.first_id, missing.first_char) == (0, 0)


# altered texts


@pytest.mark.parametrize("text", TEXTS)
def test_an_altered_text_is_found_with_its_character_and_piece(checker: Checker, either: Subject, text: str) -> None:
    job = either.job(say(text))
    reference = either.tier.tokenizer.reference
    rng = random.Random(text)
    for _ in range(6):
        at = rng.randrange(len(job.text))
        other = chr(ord("Q") + (job.text[at] == "Q"))
        for wrong in (job.text[:at] + other + job.text[at + 1 :], job.text[:at]):
            found = different(checker, replace(job, text=wrong, ids=reference.encode(wrong).astype("<u4").tobytes()))
            assert (found.kind, found.first_char) == (Kind.TEXT, at)
            assert (found.chars, found.reference_chars) == (len(wrong), len(job.text))
            assert found.text_digest == digest_of_text(wrong)
            assert found.reference_text_digest == digest_of_text(job.text)
            assert found.first_id is not None
            assert_piece_holds(reference, job.text, found.piece, at)
    longer = different(checker, replace(job, text=job.text + "!"))
    assert (longer.kind, longer.first_char, longer.first_id) == (Kind.TEXT, len(job.text), None)
    assert longer.piece is not None


def test_another_requests_answer_is_found(checker: Checker, qwen: Subject) -> None:
    """Right in itself, and sent for the wrong conversation."""
    mine, other = qwen.job(say("one", "two", "three")), qwen.job(say("one", "two", "four"))
    found = different(checker, replace(mine, text=other.text, ids=other.ids))
    assert (found.kind, mine.text[: found.first_char]) == (Kind.TEXT, other.text[: found.first_char])
    assert different(checker, replace(mine, ids=other.ids)).kind is Kind.IDS


def test_a_request_that_claims_another_template_or_tokenizer_is_found(checker: Checker, qwen: Subject) -> None:
    job = qwen.job(say("q"))
    for changes in ({"template_digest": "0" * 64}, {"tokenizer_digest": "0" * 40}):
        found = different(checker, replace(job, **changes))
        assert (found.kind, found.first_id, found.first_char) == (Kind.DIGEST, None, None)
    assert different(checker, replace(job, text="x", template_digest="0")).kind is Kind.TEXT


# what cannot be compared


def test_other_files_than_the_models_are_not_compared_with(tmp_path: File) -> None:
    one = shadow.small(tmp_path)
    job = one.job(say("q"))
    held = Checker()
    assert verdict(held, job).equal
    changes: list[tuple[str, Callable[[File], Any]]] = [
        ("own.jinja", lambda file: file.write_text(shadow.PLAIN + " ")),
        ("own.jinja", lambda file: file.unlink()),
        ("tokenizer.json", lambda file: file.write_bytes(file.read_bytes() + b" ")),
        ("tokenizer.json", lambda file: file.write_bytes(b"{")),
        ("tokenizer.json", lambda file: file.unlink()),
    ]
    for name, change in changes:
        good = (tmp_path / name).read_bytes()
        change(tmp_path / name)
        found = Checker().check(job)
        assert isinstance(found, NotComparable)
        assert found.reason is Drop.FILES_CHANGED
        assert verdict(held, job).equal, "it has the files of the model in memory"
        (tmp_path / name).write_bytes(good)
    assert verdict(Checker(), job).equal


def test_a_body_that_the_worker_cannot_render_is_no_verdict(checker: Checker, tmp_path: File) -> None:
    raising = shadow.small(
        tmp_path, "{% if messages|length > 1 %}{{ raise_exception('no') }}{% endif %}{{ messages[0].content }}"
    )
    job = raising.job(say("q"))
    assert verdict(checker, job).equal
    found = checker.check(replace(job, body=raising.job(say("q")).body.replace(b'"q"}', b'"q"}, {"role": "user"}')))
    assert found == NotComparable(Drop.TEMPLATE_ERROR, found.detail)
    assert "no" not in found.detail.split()


def test_a_text_that_the_reference_gives_up_on_is_no_verdict_unless_the_texts_differ(
    tmp_path: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = shadow.small(tmp_path).job(say("q"))

    def gives_up(*_: Any) -> None:
        raise CannotEncode("tokenizers 0", "PanicException")

    monkeypatch.setattr(ReferencePath, "encode", gives_up)
    assert Checker().check(job) == NotComparable(Drop.CANNOT_ENCODE, "CannotEncode")
    found = different(Checker(), replace(job, text=job.text + "!"))
    assert (found.kind, found.first_char) == (Kind.TEXT, len(job.text))
    assert (found.reference_tokens, found.reference_ids_digest, found.first_id) == (None, None, None)


def test_a_verdict_is_told_before_its_place_is_looked_for(
    checker: Checker, qwen: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = qwen.job(say("hello"))
    wrong = with_ids(job, [*ids_of(job)[:-1], 0])
    told: list[Verdict | None] = []
    final = checker.check(wrong, told.append)
    assert isinstance(final, Verdict)
    assert told[0] is None
    assert told[1] == replace(final, first_char=None, piece=None)
    monkeypatch.setattr("toktier.shadow.locate.of_id", lambda *_: (_ for _ in ()).throw(CannotEncode("e", "x")))
    without = checker.check(wrong)
    assert isinstance(without, Verdict)
    assert replace(without, stages=final.stages) == told[1]


def test_few_models_are_kept(tmp_path: File) -> None:
    checker = Checker()
    jobs = [shadow.small(tmp_path / str(k), shadow.PLAIN + str(k)).job(say("q")) for k in range(6)]
    for job in [*jobs, *jobs]:
        assert verdict(checker, job).equal
        assert len(checker._models) <= 4
