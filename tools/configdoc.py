"""Writes the table of settings in docs/configuration.md from the classes in proxy/config.py.

python -m tools.configdoc          # rewrites the part between the markers
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from proxy.config import Settings
from proxy.config_sources import fields
from proxy.reload import NEEDS_RESTART

PAGE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"
BEGIN, END = "<!-- settings: written by tools/configdoc.py -->", "<!-- end of settings -->"


def table() -> str:
    """The Markdown table of every setting: name, default, whether a reload applies it, meaning."""
    rows = ["| setting | default | reload | meaning |", "|---|---|---|---|"]
    for place, model, name in fields(Settings):
        dotted = ".".join(place).replace("<name>", "NAME")
        reload = "restart" if dotted in NEEDS_RESTART else "yes"
        rows.append(f"| `{dotted}` | {default(model, name)} | {reload} | {model.model_fields[name].description} |")
    return "\n".join(rows)


def default(model: type[BaseModel], name: str) -> str:
    """A setting's default as a configuration file would have it."""
    value = model.model_fields[name].default
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int | float):
        return f"`{value}`"
    if isinstance(value, tuple):
        return "`[]`"
    if isinstance(value, dict):
        return "`{}`"
    return f'`"{value}"`'


def page(text: str) -> str:
    """The page with its table renewed. Raises ValueError when a marker is missing."""
    head, found, rest = text.partition(BEGIN)
    _, found_end, tail = rest.partition(END)
    if not found or not found_end:
        raise ValueError(f"{PAGE.name} lacks the markers")
    return f"{head}{BEGIN}\n{table()}\n{END}{tail}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
