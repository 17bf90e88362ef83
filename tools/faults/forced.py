"""A whole-text engine forced on a tier: its IDs go upstream in place of the tier's own, right or wrong.

Engines, by name:
- ``kept``: fastokens, one instance for all texts, as a server would use it;
- ``fresh``: fastokens, every text in a process of its own.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from proxy.probe import PROBE_TENANT
from toktier import files
from toktier.ids import Ids
from toktier.tier import ModelTier, Prepared
from tools.faults import fresh

ENGINES = ("kept", "fresh")
Encode = Callable[[str], Ids]


class ForcedTier(ModelTier):
    """The tier of ``inner`` with the IDs of ``encode``. Requests whose IDs differ from the right ones are noted."""

    def __init__(self, inner: ModelTier, encode: Encode, file: Path) -> None:
        self.__dict__.update(inner.__dict__)
        self._encode = encode
        self._file = file.open("ab", buffering=0)

    def prepare(self, tenant: str, body: Mapping[str, Any], hint: str | None = None, **more: Any) -> Prepared:
        more.pop("ready", None)  # what is sent is what comes out of here
        prepared = super().prepare(tenant, body, hint, **more)
        if tenant == PROBE_TENANT:
            return prepared
        ids = self._encode(prepared.text)
        ids.flags.writeable = False
        if not np.array_equal(ids, prepared.ids):
            note = {"request_id": body.get("user"), "tokens": len(prepared.ids), "sent": len(ids), "at": time.time()}
            self._file.write(orjson.dumps(note) + b"\n")
        return dataclasses.replace(prepared, ids=ids)


def engine(name: str, tier: ModelTier) -> Encode:
    """One of `ENGINES` on the tier's tokenizer file."""
    source = tier.tokenizer.source
    return _kept(source) if name == "kept" else _Fresh(source)


def _kept(source: str) -> Encode:
    import fastokens

    raw = fastokens.Tokenizer.from_json_str(files.read(source).tokenizer.decode())
    # What it keeps of a text may belong to a thread, so one thread encodes them all.
    thread = ThreadPoolExecutor(1, thread_name_prefix="forced")

    def encode(text: str) -> Ids:
        ids = thread.submit(lambda: raw.encode(text, add_special_tokens=False).ids).result()
        return np.array(ids, np.uint32)

    return encode


class _Fresh:
    """A process for each text (`tools.faults.fresh`)."""

    def __init__(self, source: str) -> None:
        self._file = tempfile.NamedTemporaryFile(suffix=".json")  # noqa: SIM115 - it lives as long as this
        self._file.write(files.read(source).tokenizer)
        self._file.flush()
        self._command = [sys.executable, fresh.__file__, self._file.name]

    def __call__(self, text: str) -> Ids:
        done = subprocess.run(self._command, input=text.encode(), stdout=subprocess.PIPE, check=True)
        return np.frombuffer(done.stdout, np.uint32).copy()
