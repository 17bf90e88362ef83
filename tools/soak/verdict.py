"""What a soak found: one sentence for everything that must not be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from tools.soak.clients import Sent
from tools.soak.engines import Down, Upstream
from tools.soak.log import Log
from tools.soak.watch import Seen, slope

GROWTH = 0.04
"""Largest growth of the memory over the second half of the load, as a part of it."""
GROWTH_BYTES = 12 << 20
"""What may be grown whatever the size: allocators keep some."""
SLACK_S = 0.5
"""Around an outage of the engine: clocks of two processes, requests that were on their way."""


@dataclass(frozen=True)
class Ends:
    """The process before the load, at its end (idle again, sessions expired), and how it ended."""

    before: Seen
    after: Seen
    sessions: int
    """Kept at the end, after their time to live."""
    exit_code: int
    left: Sequence[int]
    """Processes that outlived it."""
    audit_code: int
    ready: str
    """What /ready said at the end."""


def growth(looks: Sequence[Seen]) -> float:
    """Bytes by which the memory besides that of sessions grew over the second half of the looks, by the straight line
    through them. What sessions have held once stays with the allocator, so it is the most up to each look that counts.
    """
    most = accumulate((one.held for one in looks), max)
    beside = [(one.at, float(one.rss - held)) for one, held in zip(looks, most, strict=True)]
    half = beside[len(beside) // 2 :]
    if len(half) < 2:
        return 0.0
    return slope(half) * (half[-1][0] - half[0][0])


def provoked(begin: float, end: float, downs: Sequence[Down]) -> bool:
    """Whether an engine was down, or changed, while the request ran."""
    return any(begin <= down.end + SLACK_S and down.start - SLACK_S <= end for down in downs)


def find(sent: Sent, upstream: Upstream, log: Log, looks: Sequence[Seen], ends: Ends, wrong_ids: int) -> list[str]:
    """Everything that must not be; empty where all is well. ``wrong_ids``: of the sample that was compared."""
    return [
        *_ids(sent, upstream, log, wrong_ids),
        *_lines(sent, log),
        *_failures(upstream, log),
        *_left(looks, ends),
    ]


def _ids(sent: Sent, upstream: Upstream, log: Log, wrong_ids: int) -> Iterator[str]:
    if wrong_ids:
        yield f"{wrong_ids} requests of the sample had IDs that transformers does not come to"
    if log.checks["different"]:
        yield f"{log.checks['different']} shadow checks found other IDs"
    if upstream.foreign:
        yield f"{len(upstream.foreign)} requests with IDs reached an engine with another tokenizer"
    unlike = [name for name, count in log.tokens.items() if upstream.tokens.get(name, count) != count]
    if unlike:
        yield f"{len(unlike)} requests reached the engine with another number of IDs than the log says"
    told = [name for name, count in sent.prompt_tokens.items() if upstream.tokens.get(name, count) != count]
    if told:
        yield f"{len(told)} clients were told another number of prompt tokens than the engine received"
    if log.drops:
        yield "checks were dropped: " + ", ".join(f"{count} {reason}" for reason, count in log.drops.items())
    missing = log.prepared - log.checked.keys()
    if missing:
        yield f"{len(missing)} requests with IDs were never checked"
    twice = [name for name, count in log.checked.items() if count > 1]
    if twice:
        yield f"{len(twice)} requests were checked more than once"
    if not log.checks["equal"] or not upstream.sample:
        yield "nothing was checked"


def _lines(sent: Sent, log: Log) -> Iterator[str]:
    kinds = sent.started
    without = [name for name in kinds if not log.requests[name] and kinds[name] != "leaves_in_request"]
    if without:
        yield f"{len(without)} requests have no line in the log ({', '.join(sorted({kinds[n] for n in without}))})"
    several = [name for name, count in log.requests.items() if count > 1]
    if several:
        yield f"{len(several)} requests have more than one line in the log"
    strange = log.requests.keys() - kinds.keys()
    if strange:
        yield f"{len(strange)} lines of the log belong to no request"
    if log.events["log_dropped"]:
        yield "lines of the log were dropped"
    if sent.wrong:
        yield f"{len(sent.wrong)} refusals were not as they must be ({', '.join(sorted(set(sent.wrong))[:5])})"


def _failures(upstream: Upstream, log: Log) -> Iterator[str]:
    own = [one for one in log.failed if not provoked(one[3], one[4], upstream.downs)]
    if own:
        examples = ", ".join(f"{status} {'+'.join(flags) or '-'}" for _, status, flags, _, _ in own[:5])
        yield f"{len(own)} requests failed while the engine was up ({examples})"
    if log.serious:
        expected = {"model_state"}  # an engine with another tokenizer is an error, and was put there
        found = {name: count for name, count in log.serious.items() if name not in expected}
        if found:
            yield "errors in the log: " + ", ".join(f"{count} {name}" for name, count in found.items())
    if log.events["library"] or log.events["server_error"]:
        yield f"{log.events['library'] + log.events['server_error']} complaints of the HTTP library"


def _left(looks: Sequence[Seen], ends: Ends) -> Iterator[str]:
    grown = growth(looks)
    if looks and grown > max(GROWTH * looks[-1].rss, GROWTH_BYTES):
        yield f"the memory grew by {grown / (1 << 20):.1f} MiB in the second half"
    if ends.sessions:
        yield f"{ends.sessions} sessions are left after their time"
    before, after = ends.before, ends.after
    if after.fds > before.fds:
        yield f"{after.fds - before.fds} descriptors more than before the load ({after.sockets} sockets)"
    early = max((one.threads for one in looks[: max(1, len(looks) // 4)]), default=before.threads)
    if after.threads > early:
        yield f"{after.threads} threads at the end, {early} at most in the first quarter"
    if after.children > before.children:
        yield f"{after.children - before.children} child processes more than before the load"
    if ends.left:
        yield f"{len(ends.left)} processes outlived the proxy"
    if ends.exit_code:
        yield f"the proxy ended with exit code {ends.exit_code}"
    if ends.audit_code:
        yield f"toktier audit ended with exit code {ends.audit_code}"
    if ends.ready != "ready":
        yield f"at the end the proxy was {ends.ready}"
