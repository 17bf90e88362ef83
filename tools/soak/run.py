"""One soak from the start of the proxy to the report."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from proxy.embedded_checker import Checker
from toktier.tokenizer import EMBEDDED
from tools.soak import verdict
from tools.soak.clients import LARGEST_BODY, Clients, summary
from tools.soak.engines import Upstream
from tools.soak.log import Log
from tools.soak.verdict import Ends
from tools.soak.watch import Seen, alive, children, look
from tools.traffic import Client, Served, Session, config

KEYS = ("alice", "bob", "carol")
MOST_BEHIND = 200
"""Checks that may wait: the load is as fast as one shadow worker can follow."""
TICK_S = 0.2
KEEPALIVE_S = 60.0
"""Of idle connections to the proxy: longer than the clients keep them, or a request may meet the end of its own."""
IDLE_S = 6.0
"""After so many seconds without a request the proxy's connections to the engine are closed."""
LOOK_S = 2.0
TTL_S = 90.0
"""Of a session, during the load."""
SAMPLE = 0.05
"""How many of the received requests are compared with transformers, in another process."""
WORKER = "shadow"
"""What a shadow worker's command line has."""


@dataclass(frozen=True)
class Plan:
    """``every_s``: about how often the engine is restarted and a worker killed."""

    seconds: float
    sessions: int
    seed: int
    every_s: float = 20.0
    rate: float = 12.0
    """Requests a second at most; about what one shadow worker can follow on two cores."""
    nice: int | None = None
    """Priority that shadow workers are given, where this user may: theirs is the lowest, and a machine that others use
    leaves them nothing. None: theirs."""


class Soak:
    """Use `run` once."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self._folder = folder
        self._upstream = Upstream(plan.seed, SAMPLE)
        self._looks: list[Seen] = []
        self._warmed: dict[str, str] = {}
        self._killed = 0
        self._reloads = 0
        self._over = asyncio.Event()
        self._permits: asyncio.Queue[None] = asyncio.Queue()
        """A request each: none are given while the checks do not follow."""
        self._rng = Random(f"soak/{plan.seed}")
        self._compared = self._wrong = self._refused = 0

    async def run(self) -> dict[str, Any]:
        """The report; `findings` in it is empty where all is well."""
        engine = self._upstream.engine
        async with engine, self._checker() as checker:
            self._served = Served(self._config(TTL_S), folder=self._folder)
            async with self._served as served:
                self._log = Log(served.log)
                before = await self._warm()
                clients = Clients(
                    served.url, [f"key-of-{name}" for name in KEYS], self.plan.seed, self._gate, pause_s=self._pause()
                )
                await self._load(clients, checker)
                ends = await self._end(before)
            await self._compare(checker, everything=True)
        self._log.read()
        clients.sent.started |= self._warmed
        findings = verdict.find(clients.sent, self._upstream, self._log, self._looks, ends, self._wrong)
        return self._report(clients, ends, findings)

    async def _warm(self) -> Seen:
        """The first requests start what stays: a shadow worker, threads. Then the process as it is at rest."""
        session = Session(f"warm/{self.plan.seed}", chars=5_000)
        async with Client(self._served.url, key=f"key-of-{KEYS[0]}") as client:
            for number in range(4):
                name = f"warm-{number}"
                self._warmed[name] = "warm"
                await client.send(session.step().body, name)
        await self._until(self._all_checked, 120)
        await asyncio.sleep(IDLE_S)
        return look(self._served.pid)

    def _pause(self) -> float:
        """A session's mean pause between two requests."""
        return max(0.5, self.plan.sessions / self.plan.rate)

    def _config(self, ttl_s: float) -> dict[str, Any]:
        keys = self._folder / "keys"
        self._folder.mkdir(parents=True, exist_ok=True)
        keys.write_text("".join(f"{name}:key-of-{name}\n" for name in KEYS))
        return config(
            self._upstream.engine.url,
            auth={"mode": "keys", "key_file": str(keys)},
            server={"max_body_bytes": LARGEST_BODY, "keepalive_s": KEEPALIVE_S},
            sessions={"ttl_s": ttl_s},
            shadow={
                "rate": 1.0,
                "workers": 1,
                "queue_jobs": 4096,
                "queue_bytes": 1 << 29,
                "parity_rate": 0.02,
                "timeout_s": 300.0,  # of a worker that gets what a busy machine leaves
            },
        )

    @contextlib.asynccontextmanager
    async def _checker(self) -> AsyncIterator[Checker]:
        checker = await Checker.start(EMBEDDED)
        try:
            yield checker
        finally:
            await checker.close()

    async def _load(self, clients: Clients, checker: Checker) -> None:
        beside = [
            asyncio.create_task(self._upstream.run(self.plan.every_s, self._over)),
            asyncio.create_task(self._kill_workers()),
            asyncio.create_task(self._reload_often()),
            asyncio.create_task(self._watch(checker)),
        ]
        asyncio.get_running_loop().call_later(self.plan.seconds + 0.1, self._let_all_go)
        try:
            await clients.run(self.plan.sessions, self.plan.seconds)
        finally:
            self._over.set()
            done = await asyncio.gather(*beside, return_exceptions=True)
        for failed in done:
            if isinstance(failed, BaseException):
                raise failed

    def _let_all_go(self) -> None:
        """The time is over: whoever waits to begin a request sees that."""
        for _ in range(self.plan.sessions):
            self._permits.put_nowait(None)

    async def _gate(self) -> None:
        await self._permits.get()

    async def _watch(self, checker: Checker) -> None:
        number = 0
        while not self._over.is_set():
            self._log.read()
            if self._log.behind < MOST_BEHIND:
                for _ in range(max(1, round(self.plan.rate * TICK_S)) - self._permits.qsize()):
                    self._permits.put_nowait(None)
            if number % int(LOOK_S / TICK_S) == 0:
                held = int(await self._metric("toktier_session_bytes"))
                self._looks.append(replace(look(self._served.pid), held=held))
                self._renice()
                await self._compare(checker)
            number += 1
            await asyncio.sleep(TICK_S)

    def _renice(self) -> None:
        if self.plan.nice is not None:
            for pid in self._workers():
                with contextlib.suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, pid, self.plan.nice)

    def _workers(self) -> list[int]:
        return [pid for pid, line in children(self._served.pid).items() if WORKER in line]

    async def _compare(self, checker: Checker, *, everything: bool = False) -> None:
        """Some of the sample against transformers."""
        for body, ids in self._upstream.sample[self._compared : None if everything else self._compared + 1]:
            self._compared += 1
            answer = await checker.ask({"op": "check", "body": body, "ids": list(ids)})
            if "refused" in answer:
                self._refused += 1
            elif answer["first_difference"] is not None:
                self._wrong += 1

    async def _kill_workers(self) -> None:
        """One now and then, if there was a check since the last one: a job is tried on a few workers, no more."""
        done = 0
        while not self._over.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._rng.uniform(0.5, 1.5) * self.plan.every_s):
                    await self._over.wait()
            workers = self._workers()
            checked = sum(self._log.checks.values())
            if workers and checked > done and not self._over.is_set():
                done = checked
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._rng.choice(workers), signal.SIGKILL)
                    self._killed += 1

    async def _end(self, before: Seen) -> Ends:
        """Idle again, sessions expired, then ended by SIGTERM."""
        served = self._served
        await self._until(self._all_checked, 300)
        self._reload(ttl_s=1.0)
        await self._until(self._no_session, 60)
        # Idle connections of both sides are kept for some seconds.
        await self._until(lambda: self._as_idle_as(before), 40)
        after = look(served.pid)  # before a question opens a connection
        sessions = await self._metric("toktier_sessions")
        status = json.loads((await served.ask("/ready"))[1])["status"]
        offspring = list(children(served.pid))
        code = await served.stop()
        await asyncio.sleep(0.5)
        left = [pid for pid in offspring if alive(pid)]
        return Ends(before, after, int(sessions), code, left, await self._audit(), status)

    async def _until(self, condition: Callable[[], Awaitable[bool]], seconds: float) -> None:
        """Waits for it, but no longer: the verdict sees what is missing."""
        for _ in range(int(seconds / 0.5)):
            if await condition():
                return
            await asyncio.sleep(0.5)

    async def _all_checked(self) -> bool:
        self._log.read()
        self._renice()
        return not self._log.prepared - self._log.checked.keys()

    async def _no_session(self) -> bool:
        return await self._metric("toktier_sessions") == 0

    async def _as_idle_as(self, before: Seen) -> bool:
        return look(self._served.pid).fds <= before.fds

    async def _reload_often(self) -> None:
        """The first one soon, so that the thread that reads configurations is there before threads are counted."""
        pause_s = 2.0
        while not self._over.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._over.wait()
            if not self._over.is_set():
                self._reload(TTL_S)
                self._reloads += 1
            pause_s = 3 * self.plan.every_s

    def _reload(self, ttl_s: float) -> None:
        """As an operator does it."""
        self._served.rewrite(self._config(ttl_s))
        self._served.process.send_signal(signal.SIGHUP)

    async def _metric(self, name: str) -> float:
        text = (await self._served.ask("/metrics"))[1]
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith((name + " ", name + "{")))

    async def _audit(self) -> int:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "proxy.cli",
            "audit",
            str(self._served.log),
            "--json",
            stdout=asyncio.subprocess.DEVNULL,
        )
        return await process.wait()

    def _report(self, clients: Clients, ends: Ends, findings: Sequence[str]) -> dict[str, Any]:
        log, looks = self._log, self._looks
        half = looks[len(looks) // 2 :]
        return {
            "seconds": self.plan.seconds,
            "sessions": self.plan.sessions,
            "seed": self.plan.seed,
            "findings": list(findings),
            "requests": {
                "started": len(clients.sent.started),
                "lines": sum(log.requests.values()),
                "by_kind_and_status": summary(clients.sent.statuses),
                "paths": dict(log.paths),
                "bypasses": dict(log.bypasses),
                "full": dict(log.full),
                "failed": len(log.failed),
                "total_us": quantiles(log.total_us),
            },
            "ids": {
                "received": dict(self._upstream.received),
                "checks": dict(log.checks),
                "dropped": dict(log.drops),
                "delay_us": quantiles(log.delay_us),
                "compared_with_transformers": self._compared - self._refused,
                "wrong": self._wrong,
                "to_another_tokenizer": len(self._upstream.foreign),
            },
            "trouble": {
                "engine": dict(self._upstream.restarts),
                "workers_killed": self._killed,
                "reloads": self._reloads,
                "worker_events": dict(log.workers),
            },
            "process": {
                "before": ends.before.json(),
                "after": ends.after.json(),
                "rss_second_half_bytes": [half[0].rss, half[-1].rss] if half else [],
                "rss_and_held_mib": [[one.rss >> 20, one.held >> 20] for one in looks[:: max(1, len(looks) // 30)]],
                "rss_growth_second_half_bytes": round(verdict.growth(looks)),
                "most_fds": max((one.fds for one in looks), default=0),
                "most_threads": max((one.threads for one in looks), default=0),
                "exit_code": ends.exit_code,
                "audit_code": ends.audit_code,
            },
            "events": dict(log.events),
        }


def quantiles(values: Sequence[int]) -> dict[str, int]:
    """P50, P90, P99 and the largest; empty where there is nothing."""
    ordered = sorted(values)
    if not ordered:
        return {}
    at = {name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] for name, share in _SHARES}
    return at | {"max": ordered[-1]}


_SHARES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))


async def soak(plan: Plan, folder: Path | None = None) -> dict[str, Any]:
    """A soak in ``folder``, or in one that is removed afterwards."""
    if folder is not None:
        return await Soak(plan, folder).run()
    with tempfile.TemporaryDirectory(prefix="toktier-soak-") as scratch:
        return await Soak(plan, Path(scratch)).run()
