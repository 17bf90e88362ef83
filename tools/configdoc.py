"""The table of settings in docs/configuration.md, from the classes in proxy/config.py."""

from __future__ import annotations

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from proxy.config import Settings
from proxy.config_sources import fields
from proxy.reload import NEEDS_RESTART


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
        return f"`{list(value)}`"
    if isinstance(value, dict):
        return "`{}`"
    return f'`"{value}"`'
