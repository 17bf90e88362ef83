"""Normalizers that map each character on its own: that they do, and that their maps are the engine's."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from tests.support.normalizing import bert, broken, engine, random_texts
from tests.support.tokenizers_data import shared_cache
from toktier.certificate.charmap import CharMap
from toktier.certificate.charmaps import CHAR_BY_CHAR, asked, bert_steps, byte_level, char_by_char
from toktier.certificate.classes import Probe, all_code_points
from toktier.certificate.images import NO_SEAM
from toktier.certificate.normalizer import normalizer_rule


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Probe:
    return Probe(shared_cache(tmp_path_factory))


def strings(mapping: CharMap) -> dict[int, str]:
    """For `str.translate`."""
    units = mapping.units.tobytes().decode("utf-32-le")
    starts = mapping.starts.tolist()
    return {p: units[i:j] for p, i, j in zip(mapping.points.tolist(), starts[:-1], starts[1:], strict=True)}


@pytest.mark.parametrize("kind", CHAR_BY_CHAR)
def test_context_free(kind: str, probe: Probe) -> None:
    """The map, character by character, is what the engine makes of whole texts, final sigma and all."""
    normalize = engine({"type": kind})
    mapping = strings(char_by_char(kind, probe, "normalizer").tail)
    text = "".join([*random_texts(kind, 800), "ΑΣ ΑΣΣ ΣΑ"])
    assert text.translate(mapping) == normalize(text)
    every = all_code_points()
    assert every.translate(mapping) == normalize(every)


def test_byte_level() -> None:
    every = all_code_points()[::7] + "".join(map(chr, range(0x900)))
    step = byte_level("normalizer")
    shown = engine({"type": "ByteLevel"})(every)
    assert shown == every.translate(strings(step.tail))
    assert len(shown) == len(every.encode())


def _translation(table: dict[int, str]) -> Callable[[str], str]:
    return lambda text: text.translate(table)


OPTIONS = [
    dict(zip(("clean_text", "handle_chinese_chars", "strip_accents", "lowercase"), values, strict=True))
    for values in product((True, False), (True, False), (None, True, False), (True, False))
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_bert_is_its_parts_in_order(options: dict[str, bool | None], probe: Probe) -> None:
    spec = bert(**options)
    whole = engine(spec)
    decompose = engine({"type": "NFD"})
    parts = [
        decompose if part.name == "NFD" else _translation(strings(part.tail))
        for part in bert_steps(spec, probe, "normalizer")
    ]
    for text in random_texts(str(options), 300):
        expected = text
        for part in parts:
            expected = part(expected)
        assert whole(text) == expected
    seams, bad = broken(normalizer_rule(spec, probe), spec, random_texts(f"seams {options}", 300))
    assert seams > 300
    assert bad == []


def test_counter_examples(probe: Probe) -> None:
    """facts: İ ends in a mark when it is put in lower case; a character that is deleted stands at no seam."""
    lower = normalizer_rule({"type": "Lowercase"}, probe).sides
    assert (chr(lower.left[ord("İ")]), chr(lower.right[ord("İ")])) == ("\u0307", "i")
    assert chr(lower.left[ord("Σ")]) == "σ"
    stripped = normalizer_rule({"type": "StripAccents"}, probe).sides
    assert stripped.left[0x301] == stripped.right[0x301] == NO_SEAM
    assert stripped.left[ord("é")] == ord("é")
    cleaned = normalizer_rule(bert(), probe).sides
    assert cleaned.left[0] == NO_SEAM
    assert chr(cleaned.left[ord("É")]) == chr(cleaned.right[ord("É")]) == "e"
    assert chr(cleaned.left[ord("中")]) == chr(cleaned.right[ord("中")]) == " "


def test_an_answer_with_other_separators_is_not_believed() -> None:
    """Where a character becomes a separator, or every separator is changed, each is asked for alone."""
    fakes = [
        {"a": "!", "b": "", "c": "c!c"},
        {"a": "x!", "!": "?", "|": "", "~": "~~", "\u3042": "あ?"},
        {"a": "", "b": "ab"},
    ]
    for fake in fakes:
        for chars in ("abcd", "!abcd|~\u3042"):
            expected = {ord(c): text for c, text in fake.items() if c in chars}
            assert asked(_translation(str.maketrans(fake)), chars) == expected
