"""Lemma 4 for normalizers that map each character on its own: Lowercase, StripAccents, Nmt, ByteLevel, and the parts
of BertNormalizer.

The engine runs over the characters of the segment, filters them or puts a string for each, and looks at none beside
it: Lowercase takes ``char::to_lowercase``, which knows no final sigma. So M(x y) = M(x) M(y) for all x and y, which is
(1), and what a seam shows is the last character of M(a) and the first of M(b). A character that is deleted stands at
no seam; one that is deleted elsewhere changes nothing beside it.

The map is asked of the engine for many code points in one text, with a separator s between them, M(s) = s. If the
answer holds s as often as the question does, no character there gives an s, so the parts between them are what M gives
for each; otherwise each is asked for alone.

BertNormalizer is clean_text, then handle_chinese_chars, then strip_accents (NFD, then non-spacing marks deleted), then
lowercase, each part asked of an instance that does nothing else. ``strip_accents`` null means what ``lowercase`` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from tokenizers import normalizers

from toktier.certificate.charmap import CharMap
from toktier.certificate.classes import CODE_POINTS, SURROGATES, Flips, Probe, all_code_points
from toktier.certificate.forms import form_step
from toktier.certificate.step import Step, each
from toktier.errors import Refusal

Normalize = Callable[[str], str]

CHAR_BY_CHAR = ("Lowercase", "StripAccents", "Nmt")
_SEPARATORS = "!|~\u3042"
_BLOCK = 1024
_ADDED = "characters judged as what they become, deleted ones nowhere"


def char_by_char(kind: str, probe: Probe, place: str) -> Step:
    """The step of one of `CHAR_BY_CHAR`."""
    mapping = _held(kind, getattr(normalizers, kind)().normalize_str, probe, place)
    return each(kind, f"{kind}: {_ADDED}", mapping)


def byte_level(place: str) -> Step:
    """ByteLevel as a normalizer: each byte of a character's UTF-8 becomes a character.

    Those are asked of the engine, on text that holds every byte that UTF-8 has.
    """
    normalize = normalizers.ByteLevel().normalize_str
    sample = "".join(map(chr, (*range(0x801), *range(0x1000, CODE_POINTS, 0x1000))))
    sample = "".join(c for c in sample if ord(c) not in SURROGATES)
    shown, raw = normalize(sample), sample.encode()
    if len(shown) != len(raw):
        raise Refusal("ByteLevel that is not one character a byte", place)
    table = np.zeros(256, np.uint32)
    table[list(raw)] = list(map(ord, shown))
    every = all_code_points()
    points = np.frombuffer(every.encode("utf-32-le"), "<u4").astype(np.uint32)
    lengths = np.select([points < 0x80, points < 0x800, points < 0x10000], [1, 2, 3], 4).astype(np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    mapping = CharMap(points, starts, table[np.frombuffer(every.encode(), np.uint8)])
    return each("ByteLevel", "ByteLevel: bytes judged as the characters that stand for them", mapping)


def bert_steps(spec: Mapping[str, Any], probe: Probe, place: str) -> Iterator[Step]:
    """The parts of a BertNormalizer that are on, in the engine's order."""
    lowercase = spec.get("lowercase", True)
    strip = spec.get("strip_accents")
    if spec.get("clean_text", True):
        yield _bert_part("clean_text", probe, place)
    if spec.get("handle_chinese_chars", True):
        yield _bert_part("handle_chinese_chars", probe, place)
    if lowercase if strip is None else strip:
        yield form_step("NFD", probe, place)
        yield each("marks deleted", f"marks deleted: {_ADDED}", _marks_deleted(probe, place))
    if lowercase:
        yield _bert_part("lowercase", probe, place)


def _bert_part(option: str, probe: Probe, place: str) -> Step:
    mapping = _held(f"Bert {option}", _bert_only(option), probe, place)
    return each(option, f"{option}: {_ADDED}", mapping)


def _bert_only(option: str) -> Normalize:
    options = ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")
    return normalizers.BertNormalizer(**{o: o == option for o in options}).normalize_str


def _marks_deleted(probe: Probe, place: str) -> CharMap:
    """What strip_accents does behind its NFD: a character that it leaves nothing of is deleted.

    Raises `Refusal` where that, behind the engine's NFD, is not what the engine does to some character.
    """
    name = "normalizer Bert marks"

    def ask() -> dict[str, Flips]:
        whole = asked(_bert_only("strip_accents"), all_code_points())
        decompose = normalizers.NFD().normalize_str
        gone = {c for c, text in whole.items() if text == ""}
        for c, text in whole.items():
            if "".join(d for d in decompose(chr(c)) if ord(d) not in gone) != text:
                raise Refusal("strip_accents that is not NFD and a deletion", place)
        return {name: CharMap.of(dict.fromkeys(gone, "")).packed()}

    return CharMap.unpacked(probe.cached(name, ask))


def _held(kind: str, normalize: Normalize, probe: Probe, place: str) -> CharMap:
    name = f"normalizer {kind}"
    return CharMap.unpacked(
        probe.cached(name, lambda: {name: CharMap.of(asked(normalize, all_code_points())).packed()})
    )


def asked(normalize: Normalize, chars: str) -> dict[int, str]:
    """What becomes of each of ``chars``, sorted and all different, that changes."""
    changed: dict[int, str] = {}
    separator = next((s for s in _SEPARATORS if normalize(s) == s), None)
    for start in range(0, len(chars), _BLOCK):
        block = chars[start : start + _BLOCK]
        parts: list[str] = []
        if separator is not None and separator not in block:
            text = separator.join(block)
            answer = normalize(text)
            if answer == text:
                continue
            parts = answer.split(separator)
        if len(parts) != len(block):
            parts = [normalize(c) for c in block]
        changed |= {ord(c): text for c, text in zip(block, parts, strict=True) if text != c}
    return changed
