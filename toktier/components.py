"""Which part of a ``tokenizer.json`` the installed `tokenizers` does not know: its own message gives a column only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

_MODULES = {
    "normalizer": normalizers,
    "pre_tokenizer": pre_tokenizers,
    "post_processor": processors,
    "decoder": decoders,
    "model": models,
}
_PARTS = ("normalizers", "pretokenizers", "processors", "decoders")


def unknown_component(spec: Mapping[str, Any]) -> str | None:
    """The first component of a type that `tokenizers` has no class for, in words with its place; None where all are
    known."""
    for name, module in _MODULES.items():
        known = {entry for entry in dir(module) if isinstance(getattr(module, entry), type)}
        for kind, place in _types(spec.get(name), name):
            if kind not in known:
                return f"unknown {name} {kind!r}, at {place}"
    return None


def _types(component: Any, place: str) -> Iterator[tuple[str, str]]:
    if not isinstance(component, Mapping):
        return
    kind = component.get("type")
    if isinstance(kind, str):
        yield kind, place
    for key in _PARTS:
        parts = component.get(key)
        for number, part in enumerate(parts if isinstance(parts, list) else ()):
            yield from _types(part, f"{place}[{number}]")
