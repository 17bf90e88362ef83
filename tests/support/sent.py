"""What a request left behind when its IDs went upstream, for tests of what is done with that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from proxy.sent import Sent
from toktier.reasons import Path

_SENT = Sent(
    request_id="r",
    model="m",
    upstream="e",
    path=Path.APPEND,
    full=None,
    session="s",
    chars=6,
    tokens=10,
    trust_digest="trusted",
    tokenizer_digest="used",
    template_digest="c",
    versions={"tokenizers": "1"},
    certificate="proof",
    setup=None,
    content=None,
    question=None,
)


def sent(**changes: Any) -> Sent:
    """An append whose text and IDs were not kept, with ``changes`` to its fields."""
    return replace(_SENT, **changes)
