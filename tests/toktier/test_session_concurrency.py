"""The store with requests at the same time, requests that fail, and all forgotten in between."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.sessions import SYSTEM, Bench, Messages, chat, render, say
from tests.support.small_bpe import small_encoder, truth
from toktier import sessions
from toktier.chunks import ChunkEncoder
from toktier.fingerprint import Fingerprint, Group, fingerprint
from toktier.reasons import Path
from toktier.sessions import SessionBusy, SessionStore


def test_nobody_waits_for_a_session_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "HELD_S", 0.05)
    bench = Bench()
    messages = chat("a", "b")
    bench.ask(messages)
    more = [*messages, say("user", "c")]
    with bench.store.lease(fingerprint(Group("t", "m", b""), more), bench.encoder) as hung:
        assert bench.ask(more)[0] is Path.INIT, "begun anew"
        assert bench.ask([*more, say("assistant", "d")])[0] is Path.APPEND
        before = bench.store.nbytes
        hung.rope.set(render(more))
        hung.commit(bytes(len(more)))
    bench.consistent()
    assert bench.store.nbytes == before, "what comes back late is not kept"


def test_a_request_that_fails_leaves_the_store_as_it_was() -> None:
    bench = Bench()
    messages = chat("a", "b")
    bench.ask(messages)
    before = (dict(bench.store._index._held), bench.store.nbytes)
    for failing in ([*messages, say("user", "\ud800")], [SYSTEM, say("user", "\ud800")]):
        with (
            pytest.raises(Exception, match="surrogate"),
            bench.store.lease(fingerprint(Group("t", "m", b""), failing), bench.encoder) as lease,
        ):
            lease.rope.set(render(failing))
    bench.consistent()
    assert (dict(bench.store._index._held), bench.store.nbytes) == before
    assert bench.ask(messages)[0] is Path.RETRY


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, type("PanicException", (BaseException,), {})])
def test_a_rope_that_may_be_half_changed_is_given_to_nobody(error: type[BaseException]) -> None:
    bench = Bench()
    messages = chat("a", "b")
    bench.ask(messages)
    more, other = [*messages, say("user", "c")], [*messages, say("user", "d")]
    group = Group("t", "m", b"")
    waiting: list[list[int]] = []

    def wait() -> None:
        with bench.store.lease(fingerprint(group, other), bench.encoder) as lease:
            lease.rope.set(render(other))
            waiting.append(lease.rope.ids.tolist())
            lease.commit(bytes(len(other)))

    waiter = threading.Thread(target=wait)

    def fail() -> None:
        with bench.store.lease(fingerprint(group, more), bench.encoder) as lease:
            waiter.start()
            while next(iter(bench.store._all)).pins != 2:
                time.sleep(0.001)
            lease.rope.set(render(more))
            lease.rope._flat.buffer[:] = 7
            raise error

    (session,) = bench.store._all
    with pytest.raises(error):
        fail()
    waiter.join(10)
    assert waiting == [truth(render(other))]
    bench.consistent()
    assert session not in bench.store._all
    assert bench.ask(other)[0] is Path.RETRY


def test_clearing_while_a_request_is_in_flight() -> None:
    bench = Bench()
    messages = chat("a")
    bench.ask(messages)
    more = [*messages, say("user", "b")]
    with bench.store.lease(fingerprint(Group("t", "m", b""), more), bench.encoder) as lease:
        bench.store.clear()
        lease.rope.set(render(more))
        assert lease.rope.ids.tolist() == truth(render(more))
        lease.commit(bytes(len(more)))
    bench.assert_empty()


def test_a_lease_from_before_a_clear_stores_nothing_whatever_it_is() -> None:
    """One that begins a session, one that copies another, one that extends one: none comes back."""
    messages = chat("a", "b")
    begun = [chat("x"), chat("a", "other"), [*messages, say("user", "c")]]
    for wanted in begun:
        bench = Bench()
        bench.ask(messages)
        with bench.store.lease(fingerprint(Group("t", "m", b""), wanted), bench.encoder) as lease:
            lease.rope.set(render(wanted))
            bench.store.clear()
            lease.commit(bytes(len(wanted)))
        bench.assert_empty()
        assert bench.ask(wanted)[0] is Path.INIT
        assert bench.ask(wanted)[0] is Path.RETRY


def test_who_waited_while_all_was_forgotten_gets_nothing_of_it() -> None:
    """The session that it waited for may be the one that went wrong."""
    bench = Bench()
    messages = chat("a")
    bench.ask(messages)
    more = [*messages, say("assistant", "b")]
    inside, done = threading.Event(), threading.Event()

    def hold() -> None:
        with bench.store.lease(fingerprint(Group("t", "m", b""), more), bench.encoder):
            inside.set()
            assert done.wait(5)

    def waits() -> bool:
        return any(session.pins == 2 for session in bench.store._all)

    holder = threading.Thread(target=hold)
    holder.start()
    assert inside.wait(5)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(bench.ask, more)
        while not waits():
            time.sleep(0.001)
        bench.store.clear()
        done.set()
        path, scanned, _ = asked.result(5)
    holder.join()
    assert (path, scanned) == (Path.INIT, len(render(more)))
    assert bench.ask(more)[0] is Path.RETRY


def test_two_continuations_at_the_same_time_are_both_right() -> None:
    """The second waits for the first, finds the session gone on, and works on a copy."""
    bench = Bench()
    base = chat("a")
    *_, name = bench.ask(base)
    inside, done = threading.Event(), threading.Event()
    seen: list[tuple[str, list[int]]] = []

    def run(messages: Messages, wait: bool) -> None:
        wanted = fingerprint(Group("t", "m", b""), messages)
        with bench.store.lease(wanted, bench.encoder) as lease:
            if wait:
                inside.set()
                assert done.wait(5)
            lease.rope.set(render(messages))
            seen.append((lease.session, lease.rope.ids.tolist()))
            lease.commit(bytes(len(messages)))

    one, two = [*base, say("assistant", "b")], [*base, say("assistant", "x")]
    first = threading.Thread(target=run, args=(one, True))
    second = threading.Thread(target=run, args=(two, False))
    first.start()
    assert inside.wait(5)
    second.start()
    done.set()
    first.join()
    second.join()
    assert seen[0] == (name, truth(render(one)))
    assert seen[1][0] != name
    assert seen[1][1] == truth(render(two))
    bench.consistent()


def test_a_caller_that_does_not_want_to_wait_is_told() -> None:
    bench = Bench()
    base = chat("a")
    bench.ask(base)
    wanted = fingerprint(Group("t", "m", b""), [*base, say("assistant", "b")])
    with bench.store.lease(wanted, bench.encoder):
        with pytest.raises(SessionBusy), bench.store.lease(wanted, bench.encoder, wait=False):
            pytest.fail("the session is in use")
        other = fingerprint(Group("t", "other", b""), base)
        with bench.store.lease(other, bench.encoder, wait=False) as lease:
            assert lease.previous is None
    bench.consistent()
    with bench.store.lease(wanted, bench.encoder, wait=False) as lease:
        assert lease.previous == len(base)


def test_stress_with_many_threads_stays_exact_and_leaves_nothing_behind() -> None:
    """Growing, retried, forked and compacted conversations of three tenants under a budget that is always short."""
    store = SessionStore(120_000, 0.6, 60.0)
    encoder: ChunkEncoder = small_encoder()
    paths: dict[Path, int] = dict.fromkeys(Path, 0)
    lock = threading.Lock()
    shared = [chat(f"start {k}") for k in range(4)]

    def request(rng: random.Random, tenant: str, messages: Messages) -> None:
        wanted: Fingerprint = fingerprint(Group(tenant, "m", b""), messages, None, rng.choice([None, "h"]))
        text = render(messages)
        with store.lease(wanted, encoder) as lease:
            lease.rope.set(text)
            ids = lease.rope.ids.copy()
            path = lease.path(len(text))
            lease.commit(lease.marks + bytes(len(messages) - lease.shared))
        assert ids.tolist() == truth(text)
        with lock:
            paths[path] += 1

    def client(seed: int) -> None:
        rng = random.Random(seed)
        tenant = f"t{seed % 3}"
        messages = list(rng.choice(shared))
        for step in range(30):
            match rng.randrange(8):
                case 0:
                    pass
                case 1:
                    messages = messages[: rng.randint(1, len(messages))]
                case 2:
                    messages = [SYSTEM, say("user", f"summary {seed} {step}"), *messages[-2:]]
                case 3:
                    at = rng.randrange(len(messages))
                    messages = [*messages[:at], say("user", f"edit {seed} {step}"), *messages[at + 1 :]]
                case _:
                    messages = [*messages, say("assistant", f"word {rng.randrange(3)} " * rng.randint(1, 40))]
            request(rng, tenant, messages)

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(client, seed) for seed in range(12)]:
            future.result()
    assert all(paths[path] > 0 for path in Path if path not in (Path.BYPASS, Path.GPU)), paths
    assert sum(store.evictions.values()) > 0
    assert store.nbytes <= 120_000
    assert all(session.pins == 0 and session.alive for session in store._all)
    store.clear()
    assert not any([store._all, store._index, store._ends, store._tenants, store._tenant_bytes, store.nbytes])
