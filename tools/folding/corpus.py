"""The chat templates that can be found on this machine, by name."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from toktier.files import read
from toktier.tokenizer import EMBEDDED

_PACKAGES = {"vllm": "transformers_utils/chat_templates", "trl": "chat_templates", "llama_cpp": "vendor"}
"""Packages that bring templates along, and where in them."""

ENGINE_CACHE = Path.home() / ".cache" / "toktier-engine" / "venv"
"""The environment of the tests with a real engine, if it was ever made."""


def corpus(folders: Iterable[Path] = ()) -> dict[str, str]:
    """Source by name; one name for each distinct source. ``folders``: further ones, searched for ``*.jinja``."""
    found: dict[str, str] = {}
    known: set[str] = set()
    for name, source in [*_embedded(), *_test_data(), *_installed(), *_in_folders(folders)]:
        digest = hashlib.sha256(source.encode()).hexdigest()
        if digest not in known:
            known.add(digest)
            found[name if name not in found else f"{name}-{digest[:6]}"] = source
    return found


def _embedded() -> Iterator[tuple[str, str]]:
    config = json.loads(read(EMBEDDED).small["tokenizer_config.json"])
    if isinstance(config.get("chat_template"), str):
        yield "embedded", config["chat_template"]


def _test_data() -> Iterator[tuple[str, str]]:
    data = Path(os.environ.get("TOKTIER_TEST_DATA", "../shared")) / "tokenizers"
    for path in sorted(data.glob("*/tokenizer_config.json")):
        template = json.loads(path.read_text("utf-8")).get("chat_template")
        if isinstance(template, str):
            yield path.parent.name, template


def _installed() -> Iterator[tuple[str, str]]:
    for package, inner in _PACKAGES.items():
        places = [Path(place) for place in _search(package)]
        places += sorted(ENGINE_CACHE.glob(f"lib/python3*/site-packages/{package}"))
        for place in places:
            yield from _in_folders([place / inner])


def _search(package: str) -> list[str]:
    spec = find_spec(package)
    return [] if spec is None else list(spec.submodule_search_locations or ())


def _in_folders(folders: Iterable[Path]) -> Iterator[tuple[str, str]]:
    for folder in folders:
        for path in sorted(folder.rglob("*.jinja")):
            with path.open(encoding="utf-8", newline="") as file:
                yield path.stem, file.read()
