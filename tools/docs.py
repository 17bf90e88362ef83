"""Regenerate the tables in the documents that the code owns: ``python -m tools.docs``."""

from __future__ import annotations

from pathlib import Path as FilePath

from toktier.reasons import BYPASS_HELP

BEGIN, END = "<!-- bypass table: python -m tools.docs -->", "<!-- end -->"


def bypass_table() -> str:
    """The markdown table of `toktier.reasons.Bypass`, one row a reason."""
    lines = ["| reason | meaning |", "|---|---|", *(f"| `{r.value}` | {text} |" for r, text in BYPASS_HELP.items())]
    return "\n".join(lines)


def main() -> None:
    page = FilePath(__file__).resolve().parent.parent / "docs" / "bypass.md"
    text = page.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN, 1)
    page.write_text(head + BEGIN + "\n" + bypass_table() + "\n" + END + rest.split(END, 1)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
