"""The documents say what the code does."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT
from toktier.reasons import BYPASS_HELP, Bypass, Cause, FullEncode, Path
from tools import docs


def rows(document: str) -> list[tuple[str, str]]:
    """Two-column table rows of a document: name in backticks, and text."""
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    return re.findall(r"^\| `([a-z_]+)` \| (.+?) \|$", text, re.MULTILINE)


def test_the_generated_parts_are_up_to_date() -> None:
    for document, marker, content in docs.parts():
        text = (ROOT / document).read_text(encoding="utf-8")
        assert docs.replaced(text, marker, content) == text, f"{document} is behind: python -m tools.docs"


def test_the_generated_documents_are_up_to_date() -> None:
    for document, content in docs.files():
        assert (ROOT / document).read_text(encoding="utf-8") == content, f"{document} is behind: python -m tools.docs"


def test_the_architecture_names_every_module() -> None:
    table = docs.module_table()
    for path in ("toktier/rope.py", "toktier/certificate/regex.py", "proxy/api/chat.py", "tools/demo/__main__.py"):
        assert f"| `{path}` | " in table


def test_every_bypass_reason_is_documented_in_the_codes_words() -> None:
    documented = rows("bypass.md")
    for reason in Bypass:
        assert (reason.value, BYPASS_HELP[reason]) in documented


@pytest.mark.parametrize("enum", [Path, Cause, FullEncode])
def test_every_other_reason_is_documented(enum: type[Path] | type[Cause] | type[FullEncode]) -> None:
    documented = rows("bypass.md")
    assert {member.value for member in enum} <= {name for name, _ in documented}


def test_the_document_names_no_reason_that_the_code_lacks() -> None:
    known = {member.value for enum in (Bypass, Path, Cause, FullEncode) for member in enum}
    assert {name for name, _ in rows("bypass.md")} <= known


def test_every_relative_link_leads_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "SECURITY.md", *(ROOT / "docs").glob("*.md")]
    links = [
        (page, link)
        for page in pages
        for link in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text(encoding="utf-8"))
    ]
    assert len(links) > 20
    for page, link in links:
        assert (page.parent / link).exists(), f"{page.name}: {link}"
