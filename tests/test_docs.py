"""The documents say what the code does."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path as File

import pytest

from proxy import captures
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


def test_the_runbook_finds_the_newest_line_of_a_rotated_log(tmp_path: File) -> None:
    """The shell names FILE before FILE.1, which is older: another process may have its pid by now."""
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    commands = re.findall(r"^.*toktier\.log\*.*tail -1.*$", text, re.MULTILINE)
    for day, name in enumerate(("toktier.log.2", "toktier.log.1", "toktier.log"), 1):
        lines = [{"ts": f"2026-01-0{day}T00:00:00.000000Z", "event": e, "pid": day} for e in ("listening", "mismatch")]
        (tmp_path / name).write_text("".join(json.dumps(one, separators=(",", ":")) + "\n" for one in lines))
    told = []
    for command in commands:
        script = f'kill() {{ echo "$@"; }}\n{command}'
        ran = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
        told.append(ran.stdout)
    assert json.loads(told[0])["pid"] == 3
    assert told[1:] == ["-HUP 3\n"]


def test_the_limits_of_captures_are_told() -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    told = text.partition("## Captures")[2].partition("\n## ")[0]
    assert f"at most {captures.MAX_FILES} files and {captures.MAX_BYTES >> 20} MiB" in told
    assert f"over {captures.MAX_BODY_BYTES >> 20} MiB" in told
