"""Versions of engines, asked without loading them."""

from __future__ import annotations

import importlib.metadata


def fastokens_version() -> str:
    """The version of the installed fastokens; empty if there is none."""
    try:
        return importlib.metadata.version("fastokens")
    except importlib.metadata.PackageNotFoundError:
        return ""
