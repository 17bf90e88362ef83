"""Ropes against the reference's full encode: real tokenizers, hostile text, random changes.

Invariants checked after each change: the IDs are the reference's, every seam is a certified cut of the text as it now
is, the first changed index is exact, the text is the text. And in total, that most changes were repairs: a rope that
encodes in full each time would pass all the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tests.support.hostile import MARKS, Hostile
from tests.support.tokenizers_data import each, real
from toktier.chunks import TARGET
from toktier.rope import Rope, Splice

ROPES = 25
CHANGES = 8


@dataclass
class Account:
    changes: int = 0
    repairs: int = 0
    served: int = 0
    scanned: int = 0
    large: int = 0


def change(rope: Rope, text: str, source: Hostile) -> tuple[Splice, str]:
    """One random change of the rope and of the plain text beside it."""
    rng = source.rng
    new = source.text(rng.choice((0, 1, 2, 5, 40, 300, 1500)))
    start = rng.randint(0, len(text))
    end = min(len(text), start + rng.choice((0, 1, 2, 7, 60, 900)))
    kind = (
        "append"
        if not text
        else rng.choice(("append", "append", "edit", "set", "truncate", "replace", "compact", "prune", "seam", "seam"))
    )
    if kind == "append":
        return rope.append(new), text + new
    if kind == "truncate":
        keep = max(0, len(text) - rng.choice((1, 3, 50, 2500)))
        return rope.truncate(keep), text[:keep]
    if kind == "edit":
        # one character for another: the smallest change, at places where it can undo a composition or a literal
        start = min(start, max(0, len(text) - 1))
        end = min(len(text), start + 1)
        new = source.text(1)
    elif kind == "seam":
        # beside or on a seam between chunks, where a mark may compose with what stands there
        start = max(0, min(len(text), rng.choice(seams(rope)) + rng.choice((-1, 0, 1, 1, 1))))
        end = min(len(text), start + rng.choice((0, 1)))
        new = rng.choice((rng.choice(MARKS), rng.choice(MARKS), "", source.text(1)))
    elif kind == "compact":
        end = rng.randint(start, len(text))
    changed = text[:start] + new + text[end:]
    if kind == "prune":
        # a second change in the same request, as when a client prunes its history and goes on
        at = rng.randint(0, len(changed))
        changed = changed[:at] + changed[at + rng.choice((0, 1, 30)) :] + source.text(20)
    splice = rope.set(changed) if kind in ("set", "compact", "prune") else rope.replace(start, end, new)
    return splice, changed


def seams(rope: Rope) -> list[int]:
    return [0, *rope.seams()]


def shared(old: np.ndarray, new: np.ndarray) -> int:
    size = min(len(old), len(new))
    differ = np.flatnonzero(old[:size] != new[:size])
    return int(differ[0]) if len(differ) else size


@pytest.mark.parametrize("name", each(["qwen3", "llama3_1", "gpt_oss", "deepseek_v3", "gemma3", "llama2"]))
def test_ropes_equal_the_full_encode(name: str) -> None:
    tokenizer = real(name)
    assert tokenizer.certificate is not None
    literals = [token["content"] for token in tokenizer.spec["added_tokens"]]
    account = Account()
    for k in range(ROPES):
        source = Hostile(f"rope {k}", literals)
        size = source.rng.randint(20_000, 200_000) if k % 10 == 0 else int(20 * 1000 ** source.rng.random() ** 0.5)
        text = source.text(size)
        rope = Rope(tokenizer.encoder)
        rope.set(text)
        old = tokenizer.reference.encode(text)
        assert np.array_equal(rope.ids, old), f"rope {k} as set"
        # A full encode by the reference takes a second at 200K characters: long texts get fewer changes.
        for step in range(CHANGES if size < 20_000 else 3):
            long_enough = len(text) > 2 * TARGET
            splice, text = change(rope, text, source)
            new = tokenizer.reference.encode(text)
            place = f"rope {k}, change {step}"
            assert np.array_equal(rope.ids, new), place
            assert splice.first_changed == shared(old, new), place
            assert rope.chars == len(text), place
            assert all(tokenizer.certificate.is_cut(text, seam) for seam in seams(rope)[1:]), place
            old = new
            account.large += len(text) > 20_000
            if long_enough:
                account.changes += 1
                account.repairs += splice.full is None
                account.served += len(text)
                account.scanned += splice.scanned
        assert rope.text() == text, f"rope {k}"
    print(account)
    assert account.large >= 6
    assert account.changes > 60, account
    assert account.repairs > 0.9 * account.changes
    assert account.scanned < 0.3 * account.served
