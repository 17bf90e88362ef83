"""Regenerates the parts of the documents that the code or a measurement owns: ``python -m tools.docs``.

The parts stand between markers; `tests/test_docs.py` fails where a document is behind.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from proxy.error_codes import CODES, IN_STREAM
from toktier.reasons import BYPASS_HELP, GPU_HELP
from tools import audit_sample, openapi
from tools.bench import campaigns, cuts, derive, families, full, gpu_pages, pages, records
from tools.configdoc import table as settings_table
from tools.faults import real_bug
from tools.faults import tables as faults
from tools.folding import report as folding

ROOT = Path(__file__).resolve().parent.parent
BENCH = "docs/bench"
_ROOMS = ("toktier", "proxy", "tools")


def bypass_table() -> str:
    """The markdown table of `toktier.reasons.Bypass`, one row a reason."""
    lines = ["| reason | meaning |", "|---|---|", *(f"| `{r.value}` | {text} |" for r, text in BYPASS_HELP.items())]
    return "\n".join(lines)


def gpu_table() -> str:
    """The markdown table of `toktier.reasons.Gpu`."""
    lines = ["| reason | meaning |", "|---|---|", *(f"| `{r.value}` | {text} |" for r, text in GPU_HELP.items())]
    return "\n".join(lines)


def module_table() -> str:
    """One row a module: its path and the first sentence of its docstring."""
    rows = ["| module | what it holds |", "|---|---|"]
    for room in _ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            sentence = _first_sentence(path)
            if sentence:
                rows.append(f"| `{path.relative_to(ROOT).as_posix()}` | {sentence} |")
    return "\n".join(rows)


def _first_sentence(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return paragraph.split(". ")[0].rstrip(".:").replace("``", "`").replace("|", "\\|")


Row = TypeVar("Row")


def family_table() -> str:
    """One row a tokenizer, of the committed measurements that there are."""

    def rows(name: str, kind: type[Row]) -> list[Row]:
        file = ROOT / BENCH / f"{name}.json"
        return records.read(file, kind) if file.exists() else []

    return families.table(rows("cuts", cuts.Cuts), rows("derive", derive.Derive), rows("full", full.Full))


def campaign_table() -> str:
    """One row a tokenizer, of the committed campaigns."""
    return campaigns.table(records.read(ROOT / BENCH / "campaigns.json", campaigns.Campaign))


def error_table() -> str:
    """One row a code of TokTier's own errors."""
    lines = ["| status | code | meaning |", "|---|---|---|"]
    lines += [f"| {code.status} | `{name}` | {code.help} |" for name, code in CODES.items()]
    return "\n".join([*lines, *(f"| in a stream | `{name}` | {help} |" for name, help in IN_STREAM.items())])


def files() -> Iterator[tuple[str, str]]:
    """(document, content) of every document that is generated whole."""
    yield openapi.FILE, json.dumps(openapi.document(), indent=1, ensure_ascii=False) + "\n"
    yield from pages.files(ROOT / BENCH)


def audit_text() -> str:
    """What `toktier audit` prints of a made-up log."""
    return f"```text\n{audit_sample.text()}\n```"


def fault_tables() -> Iterator[tuple[str, str]]:
    """(marker, content) of what is committed of campaigns of faults, if there is anything."""
    file = ROOT / BENCH / "faults.json"
    if file.exists():
        results = faults.read(file)
        yield "faults sampling", faults.sampling(results)
        yield "faults kinds", faults.kinds(results)
        yield "faults quarantine", faults.quarantines(results)
    replays = ROOT / BENCH / "real-bug.json"
    if replays.exists():
        yield "faults real bug", real_bug.table(real_bug.read(replays))


def parts() -> Iterator[tuple[str, str, str]]:
    """(document, marker, content) of every generated part."""
    yield "docs/bypass.md", "bypass table", bypass_table()
    yield "docs/gpu.md", "gpu", gpu_table()
    yield "docs/architecture.md", "modules", module_table()
    yield "docs/configuration.md", "settings", settings_table()
    yield "docs/operations.md", "errors", error_table()
    yield "docs/certify.md", "campaigns", campaign_table()
    yield "docs/audit.md", "sample", audit_text()
    campaign = ROOT / BENCH / "folding.json"
    yield "docs/folding.md", "campaign", folding.line(json.loads(campaign.read_text(encoding="utf-8")))
    for marker, content in fault_tables():
        yield "docs/faults.md", marker, content
    yield from pages.parts(ROOT / BENCH)
    yield from gpu_pages.parts(ROOT / BENCH)
    yield "README.md", "bench families", family_table()


def replaced(text: str, marker: str, content: str) -> str:
    """``text`` with ``content`` between the markers. Raises ValueError where they are missing."""
    begin, end = f"<!-- {marker}: python -m tools.docs -->", "<!-- end -->"
    head, _, rest = text.partition(begin)
    _, found, tail = rest.partition(end)
    if not found:
        raise ValueError(f"no part {marker!r}")
    return f"{head}{begin}\n{content}\n{end}{tail}"


def main() -> None:
    for document, marker, content in parts():
        page = ROOT / document
        page.write_text(replaced(page.read_text(encoding="utf-8"), marker, content), encoding="utf-8")
    for document, content in files():
        (ROOT / document).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
