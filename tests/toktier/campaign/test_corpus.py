from __future__ import annotations

import re
from pathlib import Path

import pytest

from toktier.campaign import corpus
from toktier.errors import UnusableFile


def test_the_built_in_texts_are_prose_in_many_scripts_and_this_package() -> None:
    texts = corpus.built_in()
    assert texts[0] == corpus.PROSE
    assert any("class Rope" in text for text in texts)
    for start in (0x4E00, 0x3040, 0xAC00, 0x0400, 0x0620, 0x0900, 0x0E00):
        assert any(start <= ord(c) < start + 0x100 or start <= ord(c) < start + 0x2000 for c in corpus.PROSE)
    assert "A\u030a" in corpus.PROSE
    assert "\r\n" in corpus.PROSE


def test_own_texts_are_read_up_to_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.txt"
    path.write_text("ab\u20ac\u20ac", "utf-8")
    assert corpus.read([path]) == ("ab\u20ac\u20ac",)
    for limit, rest in ((2, "ab"), (3, "ab"), (4, "ab"), (5, "ab\u20ac"), (7, "ab\u20ac"), (8, "ab\u20ac\u20ac")):
        monkeypatch.setattr(corpus, "LIMIT", limit)
        assert corpus.read([path]) == (rest,)


@pytest.mark.parametrize(
    ("content", "message"), [(b"a\xff", "not UTF-8 (byte 1)"), (b"", "is empty"), (None, "cannot be read")]
)
def test_a_file_that_is_no_text_is_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "t.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UnusableFile, match=re.escape(message)):
        corpus.read([path])
