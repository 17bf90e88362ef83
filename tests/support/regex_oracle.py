"""A slow, obvious backtracking matcher over `toktier.certificate.regex` trees, and a generator of small patterns.

The oracle for "read as the engine reads it": its matches must be the engine's.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache

import numpy as np
import tiktoken
from tokenizers import Regex, pre_tokenizers

from toktier.certificate.classes import ONIGURUMA, RegexEngine
from toktier.certificate.regex import LAZY, POSSESSIVE, Alt, Atom, Atomic, Look, Node, Repeat
from toktier.rank_files import BYTE_RANKS


@cache
def _held(engine: RegexEngine, atom: str, alphabet: str) -> str:
    return "".join(map(chr, np.flatnonzero(engine.matched(atom, alphabet))))


class Oracle:
    """Leftmost-first matches of a tree over texts of ``alphabet``; what an atom holds is asked of the engine."""

    def __init__(self, node: Node, alphabet: str, engine: RegexEngine = ONIGURUMA) -> None:
        self.node = node
        self.alphabet = alphabet
        self._engine = engine

    def matches(self, text: str) -> list[tuple[int, int]]:
        found, at = [], 0
        while at < len(text):
            end = next(self._ends(self.node, text, at), at)
            if end > at:
                found.append((at, end))
            at = max(end, at + 1)
        return found

    def _holds(self, atom: Atom, char: str) -> bool:
        return char in _held(self._engine, atom.text, self.alphabet)

    def _ends(self, node: Node, text: str, at: int) -> Iterator[int]:
        """Where the node can end when it starts at ``at``, in the order in which a backtracking engine tries them."""
        if isinstance(node, Atom):
            if at < len(text) and self._holds(node, text[at]):
                yield at + 1
        elif isinstance(node, Look):
            inside = at < len(text) and any(self._holds(a, text[at]) for a in node.atoms)
            if inside != node.negative:
                yield at
        elif isinstance(node, Alt):
            for branch in node.branches:
                yield from self._ends(branch, text, at)
        elif isinstance(node, Atomic):
            for end in self._ends(node.body, text, at):
                yield end
                return
        elif isinstance(node, Repeat):
            ends = self._repeat(node, text, at, 0)
            if node.kind == POSSESSIVE:
                for end in ends:
                    yield end
                    return
            else:
                yield from ends
        else:
            yield from self._items(node.items, text, at)

    def _items(self, items: tuple[Node, ...], text: str, at: int) -> Iterator[int]:
        if not items:
            yield at
            return
        for end in self._ends(items[0], text, at):
            yield from self._items(items[1:], text, end)

    def _repeat(self, node: Repeat, text: str, at: int, count: int) -> Iterator[int]:
        if node.kind == LAZY and count >= node.low:
            yield at
        if node.high is None or count < node.high:
            for end in self._ends(node.body, text, at):
                if end > at or count < node.low:
                    yield from self._repeat(node, text, end, count + 1)
                else:  # an empty iteration leaves the loop
                    yield at
        if node.kind != LAZY and count >= node.low:
            yield at


def nullable(node: Node) -> bool:
    if isinstance(node, Atom):
        return False
    if isinstance(node, Look):
        return True
    if isinstance(node, Alt):
        return any(map(nullable, node.branches))
    if isinstance(node, Repeat):
        return node.low == 0 or nullable(node.body)
    return nullable(node.body) if isinstance(node, Atomic) else all(map(nullable, node.items))


def repeats_empty(node: Node) -> bool:
    """Whether some loop has a body that can match the empty string."""
    if isinstance(node, Atom | Look):
        return False
    if isinstance(node, Repeat):
        return ((node.high is None or node.high > 1) and nullable(node.body)) or repeats_empty(node.body)
    if isinstance(node, Atomic):
        return repeats_empty(node.body)
    return any(map(repeats_empty, node.branches if isinstance(node, Alt) else node.items))


def engine_matches(pattern: str, text: str) -> list[tuple[int, int]]:
    """The engine's matches: Removed with invert keeps exactly those."""
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    return [span for _, span in split.pre_tokenize_str(text)]


def tiktoken_matches(pattern: str, text: str) -> list[str]:
    """tiktoken's matches, in a vocabulary of every part of the text: each match is one token."""
    parts = {text[i:j].encode() for i in range(len(text)) for j in range(i + 1, len(text) + 1)}
    ranks = BYTE_RANKS | {part: 256 + k for k, part in enumerate(sorted(p for p in parts if len(p) > 1))}
    encoding = tiktoken.Encoding("test", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    ids = encoding.encode(text, disallowed_special=())
    return [token.decode() for token in encoding.decode_tokens_bytes(ids)]


def random_pattern(rng: random.Random, depth: int = 3) -> str:
    """A pattern over a, b, c with every construct that `parse` takes; it may be nullable."""
    return "|".join(_sequence(rng, depth) for _ in range(rng.choice((1, 1, 2, 3))))


def _sequence(rng: random.Random, depth: int) -> str:
    return "".join(_item(rng, depth) for _ in range(rng.choice((1, 1, 2, 2, 3))))


def _item(rng: random.Random, depth: int) -> str:
    roll = rng.random()
    if roll < 0.13:
        return rng.choice(("(?!{})", "(?={})")).format(_atom(rng))
    if roll < 0.17 and depth:
        return f"(?i){_sequence(rng, depth - 1)}" if rng.random() < 0.2 else _atom(rng)
    if roll < 0.4 and depth:
        body = rng.choice(("({})", "(?:{})", "(?:{})", "(?>{})", "(?i:{})")).format(random_pattern(rng, depth - 1))
    else:
        body = _atom(rng)
    return body + rng.choice(_QUANTIFIERS)


def _atom(rng: random.Random) -> str:
    return rng.choice(("a", "b", "c", "a", "b", "c", "[ab]", "[bc]", "[^a]", r"[a-c&&[^b]]", r"\x{61}", "."))


_QUANTIFIERS = (
    *[""] * 8,
    "*",
    "+",
    "?",
    "*?",
    "+?",
    "??",
    "*+",
    "++",
    "?+",
    "{2}",
    "{1,2}",
    "{2,}",
    "{,2}",
    "{1,2}?",
    "{2}?",
    "{1}+",
)
