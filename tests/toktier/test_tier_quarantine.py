"""The tier under a quarantine: the reference alone, no session, no IDs on the second rung; and right all the while."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path as File
from typing import Any

import numpy as np
import pytest

from tests.support.models import qwen3
from tests.support.tiers import LONG, ask, body, maker, say
from toktier.errors import CannotEncode, Unrenderable
from toktier.postprocessor import SpecialTokens
from toktier.quarantine import Level, Quarantine, Source
from toktier.reasons import Bypass, Cause, FullEncode, Path
from toktier.rope import Rope
from toktier.tier import ModelTier


@pytest.fixture(scope="module")
def make() -> Callable[..., ModelTier]:
    return maker()


@pytest.fixture
def quarantine(tmp_path: File) -> Quarantine:
    return Quarantine(tmp_path / "quarantine.json")


def distrust(quarantine: Quarantine, path: Path, *, at_reference: bool = False) -> None:
    digest = qwen3().digest_of_files
    quarantine.add(digest, path, Source.SHADOW, model="m", request_id="r", at_reference=at_reference)


def test_a_path_in_quarantine_is_encoded_whole_by_the_reference_and_leaves_no_session(
    make: Callable[..., ModelTier], quarantine: Quarantine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = make(quarantine=quarantine)
    messages = [say("system", LONG), say("user", "q")]
    ask(tier, body(*messages))
    more = [*messages, say("assistant", "a"), say("user", "r")]
    assert ask(tier, body(*more)).path is Path.APPEND
    kept = (len(tier.store), tier.store.nbytes)

    distrust(quarantine, Path.APPEND)
    with monkeypatch.context() as patch:
        patch.setattr(Rope, "follow", lambda *_: pytest.fail("the rope is not to be used"))
        patch.setattr(Rope, "ids", property(lambda _: pytest.fail("nor to be read")))
        again = [*more, say("assistant", "b <|im_end|>"), say("user", "s")]
        for _ in range(2):
            served = ask(tier, body(*again))
            assert (served.path, served.full, served.cause) == (Path.APPEND, FullEncode.QUARANTINED, Cause.NONE)
            assert (served.scanned, served.common, served.first_changed) == (served.chars, 0, 0)
            assert (served.first_changed_message, served.lost_reuse_tokens, served.control_tokens) == (4, 0, 1)
    assert (len(tier.store), tier.store.nbytes) == kept

    # other paths go on, and so does this one when it is trusted again
    assert ask(tier, body(*more)).path is Path.RETRY
    assert ask(tier, body(say("user", "new"))).full is FullEncode.NO_SESSION
    quarantine.lift()
    trusted = ask(tier, body(*again))
    assert (trusted.path, trusted.full) == (Path.APPEND, None)


def test_an_upgrade_of_an_engine_ends_no_quarantine(make: Callable[..., ModelTier], quarantine: Quarantine) -> None:
    distrust(quarantine, Path.INIT)
    tier = make(quarantine=quarantine)
    tier.tokenizer = replace(tier.tokenizer, digest="that of other versions")
    assert ask(tier, body(say("user", "q"))).full is FullEncode.QUARANTINED


def test_ids_in_quarantine_are_wrong_no_more_even_if_the_window_engine_and_the_session_are(
    make: Callable[..., ModelTier], quarantine: Quarantine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = make(quarantine=quarantine)
    right = Rope.follow

    def wrong(rope: Rope, common: int, parts: list[str]) -> object:
        splice = right(rope, common, parts)
        rope._flat.buffer[rope._flat.begin] ^= 1
        return splice

    monkeypatch.setattr(Rope, "follow", wrong)
    request = body(say("user", "q"))
    with pytest.raises(AssertionError):
        ask(tier, request)
    distrust(quarantine, Path.INIT)
    distrust(quarantine, Path.RETRY)
    tier.store.clear()
    assert ask(tier, request).path is Path.INIT
    assert ask(tier, request).path is Path.INIT
    assert len(tier.store) == 0


def test_special_tokens_and_bounds_hold_in_quarantine_too(
    make: Callable[..., ModelTier], quarantine: Quarantine
) -> None:
    distrust(quarantine, Path.INIT)
    special = SpecialTokens(np.array([151643], np.uint32), np.array([151645], np.uint32))
    asked = make(special=special, quarantine=quarantine).prepare("t", body(say("user", "q"), add_special_tokens=True))
    plain = ask(make(), body(say("user", "q")))
    assert asked.ids.tolist() == [151643, *plain.ids.tolist(), 151645]
    assert asked.full is FullEncode.QUARANTINED
    assert not asked.ids.flags.writeable
    with pytest.raises(Unrenderable) as refused:
        make(vocab_size=151_000, quarantine=quarantine).prepare("t", body(say("user", "q")))
    assert refused.value.bypass is Bypass.TOKENIZER_MISMATCH


def test_the_second_rung_sends_no_ids(make: Callable[..., ModelTier], quarantine: Quarantine) -> None:
    tier = make(quarantine=quarantine)
    distrust(quarantine, Path.INIT)
    distrust(quarantine, Path.INIT, at_reference=True)
    assert quarantine.level(qwen3().digest_of_files, Path.INIT) is Level.TEXT
    with pytest.raises(Unrenderable) as refused:
        tier.prepare("t", body(say("user", "q")))
    assert (refused.value.bypass, refused.value.detail) == (Bypass.QUARANTINED, "init")
    assert len(tier.store) == 0


def test_a_text_that_the_reference_gives_up_on_goes_as_text_in_quarantine_too(
    make: Callable[..., ModelTier], quarantine: Quarantine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gives_up(*_: Any) -> None:
        raise CannotEncode("tokenizers 0", "PanicException")

    distrust(quarantine, Path.INIT)
    monkeypatch.setattr(type(qwen3().reference), "encode", gives_up)
    with pytest.raises(Unrenderable) as caught:
        make(quarantine=quarantine).prepare("t", body(say("user", "q")))
    assert caught.value.bypass is Bypass.CANNOT_ENCODE


def test_whatever_comes_into_quarantine_and_goes_ids_are_right_and_nothing_that_was_forgotten_comes_back(
    make: Callable[..., ModelTier], quarantine: Quarantine
) -> None:
    """Conversations side by side, while paths come into quarantine, are lifted, and all sessions are forgotten."""
    tier = make(quarantine=quarantine)
    rng = random.Random(4)
    served: Counter[str] = Counter()
    stop = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            match rng.randrange(4):
                case 0:
                    quarantine.lift()
                case 1:
                    tier.store.clear()
                case _:
                    distrust(quarantine, rng.choice([Path.INIT, Path.APPEND, Path.EDIT, Path.RETRY]))
            time.sleep(0.002)

    def client(number: int) -> None:
        messages = [say("system", LONG[:3000])]
        own = random.Random(number)
        for turn in range(25):
            messages = [*messages, say("user", f"{number} {turn} {LONG[: own.randrange(600)]}")]
            if own.random() < 0.2:
                messages = [messages[0], say("user", f"edited {turn}"), *messages[2:]]
            made = ask(tier, body(*messages), tenant=str(number % 2))
            served[made.full or "repaired"] += 1

    disturber = threading.Thread(target=disturb)
    disturber.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(client, range(4)))
    finally:
        stop.set()
        disturber.join()
    assert served.keys() >= {FullEncode.QUARANTINED, FullEncode.NO_SESSION, "repaired"}
    assert all(session.alive for session in tier.store._all)
    tier.store.clear()
    assert (len(tier.store), tier.store.nbytes) == (0, 0)
