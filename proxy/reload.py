"""What a reload (SIGHUP) may change while requests run, and what needs a restart. Pure: compares two `Settings`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from proxy.config import Settings
from proxy.config_sources import table

NEEDS_RESTART = frozenset(
    {
        # The listening socket and what was made with it. (The contents of the TLS files are read again.)
        "server.host",
        "server.port",
        "server.tls_cert",
        "server.tls_key",
        "server.keepalive_s",
        "server.worker_threads",
        "server.cache_dir",
        "server.stall_exit_s",
        # Another HMAC key would give every tenant another identity under its running requests.
        "auth.state_dir",
        "auth.hmac_key",
        "auth.hmac_key_file",
        # The processes that check run on.
        "shadow.workers",
        "shadow.queue_jobs",
        "shadow.queue_bytes",
        "shadow.timeout_s",
        # The devices are opened once.
        "gpu.mode",
        "gpu.devices",
        "gpu.from_chars",
        "gpu.window_us",
        "gpu.max_bytes",
        "gpu.queue_bytes",
        "gpu.timeout_s",
        # The log writer is made once.
        "log.path",
        "log.queue_lines",
    }
)
"""Settings that keep their old value until a restart. Every other one is applied."""


@dataclass(frozen=True)
class Reload:
    """``settings`` is what holds from now on: the new ones, with the old values of what needs a restart.

    ``applied`` and ``needs_restart`` name settings (``models.qwen3.tokenizer``), never values: they may be secrets.
    """

    settings: Settings
    applied: list[str] = field(default_factory=list)
    needs_restart: list[str] = field(default_factory=list)


def diff(old: Settings, new: Settings) -> Reload:
    """What a reload from ``old`` to ``new`` does."""
    changed = list(_changes(old, new, ""))
    kept: dict[str, dict[str, Any]] = {}
    for name in changed:
        if name in NEEDS_RESTART:
            section, key = name.split(".")
            kept.setdefault(section, {})[key] = getattr(getattr(old, section), key)
    sections = {section: getattr(new, section).model_copy(update=values) for section, values in kept.items()}
    return Reload(
        settings=new.model_copy(update=sections),
        applied=[name for name in changed if name not in NEEDS_RESTART],
        needs_restart=[name for name in changed if name in NEEDS_RESTART],
    )


def _changes(old: BaseModel, new: BaseModel, prefix: str) -> Iterator[str]:
    for name, info in type(new).model_fields.items():
        before, after, here = getattr(old, name), getattr(new, name), f"{prefix}{name}"
        section, named = table(info.annotation)
        if section is None:
            if before != after:
                yield here
        elif not named:
            yield from _changes(before, after, here + ".")
        else:
            for key in sorted({*before, *after}):
                if key not in after:
                    yield f"{here}.{key} (removed)"
                elif key not in before:
                    yield f"{here}.{key} (added)"
                else:
                    yield from _changes(before[key], after[key], f"{here}.{key}.")
