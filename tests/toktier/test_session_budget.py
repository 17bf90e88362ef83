"""The memory budget under thousands of sessions, with many of them in use: pinned ones stay, the rest makes room."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.support.small_bpe import small_encoder, truth
from toktier.fingerprint import Group, fingerprint
from toktier.sessions import SessionBusy, SessionStore

BUDGET = 2_000_000
TENANTS = 8
ENCODER = small_encoder()
GROUPS = [Group(f"tenant {number}", "m", b"") for number in range(TENANTS)]


def messages(seed: int, turns: int) -> list[dict[str, str]]:
    rng = random.Random(seed)
    return [{"role": "user", "content": f"{seed} {turn} " + "word " * rng.randint(1, 40)} for turn in range(turns)]


def text(of: list[dict[str, str]]) -> str:
    return "".join(f"<user> {one['content']} \n" for one in of)


def ask(store: SessionStore, seed: int, turns: int, stack: ExitStack | None = None) -> None:
    """One request of session ``seed``; with ``stack`` it stays under way until that is closed."""
    own = messages(seed, turns)
    manager = store.lease(fingerprint(GROUPS[seed % TENANTS], own), ENCODER)
    lease = manager.__enter__() if stack is None else stack.enter_context(manager)
    lease.rope.set(text(own))
    if seed % 50 == 0:
        assert lease.rope.ids.tolist() == truth(text(own))
    lease.commit(bytes(len(own)))
    if stack is None:
        manager.__exit__(None, None, None)


def test_thousands_of_sessions_stay_within_the_budget() -> None:
    store = SessionStore(BUDGET, 0.5)
    highest = 0
    for seed in range(2000):
        ask(store, seed, 1 + seed % 4)
        highest = max(highest, store.nbytes)
    assert highest <= BUDGET
    assert 0 < len(store) < 2000
    assert store.nbytes > BUDGET // 2, "the budget is used"


def test_sessions_in_use_stay_and_the_rest_makes_room() -> None:
    store = SessionStore(BUDGET, 1.0)
    with ExitStack() as stack:
        for seed in range(100):
            ask(store, seed, 1)
        for seed in range(100):
            ask(store, seed, 2, stack)  # these go on, and stay under way
        pinned = store.nbytes
        assert len(store) == 100
        for seed in range(100, 1100):
            ask(store, seed, 2)
        assert store.nbytes <= BUDGET
        assert pinned < BUDGET
        before = len(store)
        for seed in range(100):
            own = fingerprint(GROUPS[seed % TENANTS], messages(seed, 2))
            with pytest.raises(SessionBusy), store.lease(own, ENCODER, wait=False):
                pytest.fail("a session in use was dropped")
        assert before > 100
    for seed in range(1100, 1200):
        ask(store, seed, 4)
    assert store.nbytes <= BUDGET


def test_the_budget_holds_under_threads_and_leaves_nothing_behind() -> None:
    store = SessionStore(BUDGET, 0.5)

    def work(worker: int) -> int:
        rng = random.Random(worker)
        highest = 0
        for _ in range(150):
            seed = rng.randrange(400)
            ask(store, seed, rng.randint(1, 5))
            highest = max(highest, store.nbytes)
        return highest

    with ThreadPoolExecutor(8) as pool:
        highest = max(pool.map(work, range(8)))
    # Each thread may have one session in use that is over the budget until its next request.
    assert highest <= BUDGET + 8 * 20_000
    store.clear()
    assert (len(store), store.nbytes) == (0, 0)
