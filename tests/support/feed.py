"""Requests as bytes through `proxy.ingest` into a tier, each checked against a full parse, render and encode."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np

from proxy.ingest import Ingest
from proxy.jsonspan import Parsed
from toktier.json_pieces import JsonLimits
from toktier.known import Source
from toktier.tier import ModelTier, Prepared

LIMITS = JsonLimits()


def written(body: Any) -> bytes:
    """As most clients write it; a lone surrogate as an escape."""
    try:
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(body, separators=(",", ":")).encode()


def _whole(parsed: Parsed, source: Source | None) -> dict[str, Any]:
    """The outline, with the messages that it shares as the other body has them."""
    messages = list(parsed.outline["messages"])
    for run in parsed.shared:
        assert source is not None
        assert source.before is not None
        assert messages[run.at : run.at + run.size] == [None] * run.size
        other = json.loads(source.before.body.raw)["messages"]
        messages[run.at : run.at + run.size] = other[run.old : run.old + run.size]
    return {**parsed.outline, "messages": messages}


class Feed:
    """One tenant's requests. ``shared`` counts messages that were not read because an earlier request has them,
    ``renders`` why the template rendered a whole request, None where it did not."""

    def __init__(self, tier: ModelTier, tenant: str = "t", *, check: bool = True) -> None:
        self.tier, self.tenant = tier, tenant
        self.check = check
        self.shared = self.messages = self.beside = 0
        self.renders: Counter[str | None] = Counter()

    def ask(self, body: dict[str, Any] | bytes, hint: str | None = None, *, wait: bool = True) -> Prepared:
        raw = body if isinstance(body, bytes) else written(body)
        ingest = Ingest(raw, LIMITS, self.tier.store, self.tenant, hint)
        parsed = ingest.beside()
        self.beside += parsed is not None
        parsed = parsed or ingest.whole()
        self.shared += sum(run.size for run in parsed.shared)
        self.messages += len(parsed.outline["messages"])
        source = ingest.source(parsed)
        if self.check:
            assert repr(_whole(parsed, source)) == repr(json.loads(raw))
        prepared = self.tier.prepare(self.tenant, parsed.outline, hint, wait=wait, source=source)
        self.renders[None if prepared.full_render is None else prepared.full_render.value] += 1
        if self.check:
            self._check(prepared, json.loads(raw))
        return prepared

    def _check(self, prepared: Prepared, body: dict[str, Any]) -> None:
        tier = self.tier
        text = tier.template.render(tier.profile.normalise(body, tier.template, tier.settings))
        assert prepared.text == text
        assert prepared.chars == len(text)
        own = tier.tokenizer.reference.encode(text)
        assert np.array_equal(prepared.ids, own)
        assert json.loads(b"".join(prepared.json())) == own.tolist()
        assert not prepared.ids.flags.writeable
