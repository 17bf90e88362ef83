"""Log lines as nobody should write them: every field of every event may hold anything."""

from __future__ import annotations

import random
from typing import Any

import orjson
from hypothesis import strategies as st

from tools import audit_sample

MARKUP = "<script>alert(1)</script>"
TEXTS = (
    MARKUP,
    '"><img src=x onerror=alert(1)>',
    "</title></svg></style><iframe src='http://x'>",
    "{{ 7 * 7 }}{% for x in y %}",
    "[red]not markup[/] [link=http://x]",
    "\x1b[31m\x07\x00\r\n\t",
    "\u202eright to left\u2066",
    "x" * 5000,
    "",
    "append",
    "Qwen/Qwen3-8B",
    "2026-11-30T10:00:00Z",
    "9999-12-31T23:59:59.999999-23:59",
    "0001-01-01T00:00:00+23:59",
)
EVENTS = (
    "request",
    "shadow_check",
    "shadow_dropped",
    "parity_check",
    "parity_skipped",
    "mismatch",
    "quarantined",
    "quarantine_read",
    "quarantine_unreadable",
    "quarantine_lifted",
    "shadow_worker",
    "log_dropped",
    "something_else",
)

_SCALARS = [None, True, False, 0, -1, 7, 2**53, 2**53 + 1, 2**63, 2**64, 10**400, 0.5, -1e308, *TEXTS]
_NESTED = [
    [],
    {},
    _SCALARS,
    [[[_SCALARS]]],
    {text: text for text in TEXTS},
    {text: {text: [text]} for text in TEXTS},
    {"read": -1, "parse": 2**53, "render": 10**400, "match": MARKUP, "total": None, "ttfb": True},
]
values = st.sampled_from(_SCALARS) | st.sampled_from(_NESTED) | st.integers() | st.text(max_size=12)

_REAL = [one for one in audit_sample.lines(requests=60) if one["event"] != "request"]
_REAL += [audit_sample.request(random.Random(seed), audit_sample.START_US + seed) for seed in range(20)]
_FIELDS = sorted({key for one in _REAL for key in one} - {"schema"})


@st.composite
def lines(draw: st.DrawFn) -> bytes:
    """A line: a real one with some fields replaced, any JSON, or any bytes."""
    kind = draw(st.sampled_from(("altered", "altered", "altered", "json", "bytes")))
    if kind == "bytes":
        return draw(st.binary(max_size=60))
    if kind == "json":
        return _json(draw(values))
    line: dict[str, Any] = dict(draw(st.sampled_from(_REAL)))
    line["event"] = draw(st.sampled_from((line["event"], *EVENTS)))
    for field in draw(st.lists(st.sampled_from(_FIELDS), max_size=6)):
        line[field] = draw(values)
    if draw(st.booleans()):
        line.pop(draw(st.sampled_from(sorted(line))))
    return _json(line)


def _json(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # a number beyond 64 bits, a lone surrogate
        import json

        return json.dumps(value).encode()
