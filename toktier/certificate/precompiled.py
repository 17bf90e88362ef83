"""Lemma 4 for Precompiled: SentencePiece's charsmap as the engine applies it.

The engine goes through the extended grapheme clusters of the text (UAX 29). A cluster g of less than six bytes becomes
the replacement of the shortest key that is a prefix of g, if there is one; all of g is gone then. Otherwise each
character c of g becomes r(c): the replacement of the shortest key that is a prefix of c, or c itself.

Let S be the characters c that the engine's clusters, asked for, break before and after "a", and that do not join to
themselves (for characters of four bytes that is not asked). So c is no Extend, ZWJ, SpacingMark or Prepend, and no
Hangul L, V or T. Between two characters of S there is a break, whatever stands around them, but for CR LF (GB3), which
is ``apart``, and two regional indicators (GB12); the other rules join to what S leaves out, or (GB9c, GB11) reach back
through it. Any cluster with a regional indicator and more is six bytes long, so it is taken one by one, as if
it were broken. Since a break is decided by what is left of it and one character on its right, (1) holds for a, b in S.

``tail[a]``: a ends its cluster. What may precede it there is CR, if a is LF; Prepend characters (GB9b); or a cluster
that is six bytes long with a (Hangul L: GB6; emoji and ZWJ: GB11; Indic conjuncts: GB9c). No key begins with a Prepend
character, or the normalizer is refused, so a cluster that begins with one is taken one by one. Hence a becomes r(a);
for LF only if CR LF becomes something with the same end.

``head[b]``: whatever b's cluster is, the keys that matter begin with b. If b is a key, that is the shortest, and b
becomes r(b) either way. If no key begins with b, b stays. Otherwise b is active: with the next character in S the
cluster is b alone (but for CR), and in any case it begins with b or with what replaces a key that begins with b.
A b with an r(b) of one character is a lead, if it is not CR: a c with a head is in S.

r is asked of the engine. The keys are read from the file; `_check_clusters` asks whether the engine uses them as told.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from tokenizers import normalizers

from toktier.certificate.charmap import CharMap
from toktier.certificate.charmaps import Normalize, asked
from toktier.certificate.charsmap import Keys, build_charsmap, decoded, read_keys
from toktier.certificate.classes import (
    CODE_POINTS,
    SURROGATES,
    Flips,
    Mask,
    Probe,
    all_code_points,
    flips_of,
    flips_of_points,
    members,
)
from toktier.certificate.images import mask_of
from toktier.certificate.step import UNKNOWN, Kinds, Step
from toktier.errors import Refusal

_BLOCK = 1024
_NAME = "Precompiled"
_BREAKS, _PREPEND = f"normalizer {_NAME} breaks", f"normalizer {_NAME} prepend"


def precompiled_step(spec: Mapping[str, Any], probe: Probe, place: str) -> Step:
    """The step of a Precompiled. Raises `Refusal` where the charsmap or the engine is not as assumed."""
    raw = decoded(spec.get("precompiled_charsmap"), place)
    name = f"normalizer {_NAME} {hashlib.sha256(raw).hexdigest()}"
    breaks = mask_of(probe.cached(_BREAKS, lambda: _ask_clusters(place)))
    prepend = probe.cached(_PREPEND, lambda: _ask_clusters(place))
    normalize = normalizers.Precompiled(raw).normalize_str

    def cached(what: str) -> Flips:
        return probe.cached(f"{name} {what}", lambda: _ask_charsmap(name, raw, normalize, breaks, prepend, place))

    r, kinds = CharMap.unpacked(cached("map")), Kinds.unpacked(cached("kinds"))
    active = kinds.active()
    cr, lf = ord("\r"), ord("\n")
    no_left, no_right = ~breaks, ~breaks
    no_left[lf] |= normalize("\r\n")[-1:] != normalize("\n")[-1:]
    no_right[cr] |= active[cr]
    lead = breaks & r.single()
    lead[cr] = False
    pair = np.zeros((2, CODE_POINTS), np.bool_)
    pair[0, cr] = pair[1, lf] = True
    return Step(
        _NAME,
        (f"{_NAME}: both characters and the next one are grapheme clusters of their own",),
        r.without(no_left),
        r.without(no_right),
        lead,
        kinds=kinds if active.any() else None,
        boundary=breaks if active.any() else None,
        apart=((pair[0], pair[1]),),
    )


def _ask_charsmap(
    name: str, raw: bytes, normalize: Normalize, breaks: Mask, prepend: Flips, place: str
) -> dict[str, Flips]:
    """r over S, and the kinds. Raises `Refusal` where the engine does not do what the keys say."""
    keys = read_keys(raw, place)
    joined = np.intersect1d(keys.first, members(prepend))
    if len(joined):
        raise Refusal(f"charsmap that replaces U+{joined[0]:04X}, which joins to any character after it", place)
    mapping = asked(normalize, _text(breaks))
    alone = ~keys.longer & (keys.first >= 0)
    told = {c: keys.replacement(v) for c, v in zip(keys.first[alone].tolist(), keys.value[alone].tolist(), strict=True)}
    if mapping != {c: text for c, text in told.items() if breaks[c] and text != chr(c)}:
        raise Refusal("charsmap that the engine reads otherwise", place)
    return {
        f"{name} map": CharMap.of(mapping).packed(),
        f"{name} kinds": _longer(keys, told, breaks).packed(),
    }


def _longer(keys: Keys, told: Mapping[int, str], breaks: Mask) -> Kinds:
    """The characters of S that are no keys, and those that they may begin with where a key begins with them."""
    heads: dict[int, set[int]] = {}
    rows = keys.longer & (keys.first >= 0)
    for c, value in zip(keys.first[rows].tolist(), keys.value[rows].tolist(), strict=True):
        if breaks[c] and c not in told:
            text = keys.replacement(value)
            heads.setdefault(c, {c}).add(ord(text[0]) if text else UNKNOWN)
    return Kinds.of_sets(heads, {c: c for c in heads})


def _ask_clusters(place: str) -> dict[str, Flips]:
    """S, and the characters that join to "a" after them.

    Asked by a charsmap that replaces every cluster below six bytes by one character, whatever it begins with, so that
    lengths tell: a text of "a" and each c in turn is as long as it was if no c joins to an "a"; "c c U+0301" is two
    characters if U+0301 joins to a c that stands alone, and three if the cluster is longer, or U+0301 stands alone.
    Only where a block is not of that length its characters are asked for one by one.
    """
    _check_clusters(place)
    starts = (*range(1, 0x80), *range(0xC2, 0xF5))
    normalize = normalizers.Precompiled(build_charsmap({bytes((c,)): "X" for c in starts})).normalize_str

    def good(chars: str, form: str, length: int) -> Mask:
        """The characters c whose ``form`` is ``length`` characters behind "a"."""
        kept = np.ones(CODE_POINTS, np.bool_)
        for start in range(0, len(chars), _BLOCK):
            block = chars[start : start + _BLOCK]
            parts = block if form == "c" else [form.replace("c", c) for c in block]
            if len(normalize("a" + "a".join(parts) + "a")) != len(block) * (length + 1) + 1:
                for c, part in zip(block, parts, strict=True):
                    kept[ord(c)] = len(normalize(f"a{part}a")) == length + 2
        return kept

    every = np.ones(CODE_POINTS, np.bool_)
    every[SURROGATES.start : SURROGATES.stop] = False
    breaks = every & good(all_code_points(), "c", 1)
    joined = every & ~breaks
    breaks &= good(_text(breaks, 0, 0x800), "cc", 2) & good(_text(breaks, 0x800, 0x10000), "cc\u0301", 2)
    prepend = [ord(c) for c in _text(joined) if len(normalize(c + "a")) == 1]
    return {_BREAKS: flips_of(breaks), _PREPEND: flips_of_points(prepend)}


def _text(chars: Mask, start: int = 0, stop: int = CODE_POINTS) -> str:
    """The members of a set from ``start`` up to ``stop``."""
    return (start + np.flatnonzero(chars[start:stop])).astype("<u4").tobytes().decode("utf-32-le")


def _check_clusters(place: str) -> None:
    """Whether the engine goes by clusters, by the limit of six bytes, and by the shortest key."""
    keys = {"a": "A", "bc": "X", "e\u0301": "Y", "e\u0301\u0302": "Z", "\u0600": "P"}
    normalize = normalizers.Precompiled(build_charsmap({k.encode(): v for k, v in keys.items()})).normalize_str
    expected = {
        "bc": "bc",
        "e\u0301": "Y",
        "e\u0301\u0302": "Y",
        "a\u0301\u0302": "A",
        "a\u0301\u0302\u0303": "A\u0301\u0302\u0303",
        "\u0600b": "P",
        "\u0600\u0600b": "P",
        "\r\n": "\r\n",
    }
    if any(normalize(text) != result for text, result in expected.items()):
        raise Refusal("Precompiled that does not go by the shortest key of clusters below six bytes", place)
