"""The tokenizer that TokTier ships, loaded once a process."""

from __future__ import annotations

import functools
import gc

from proxy.config import Model, Server
from proxy.loading import assemble
from proxy.registry import Loaded
from tests.support.tokenizer_files import CACHE
from toktier.quarantine import Quarantine
from toktier.sessions import SessionStore
from toktier.tokenizer import FrozenTokenizer, embedded


@functools.cache
def qwen3() -> FrozenTokenizer:
    """The tokenizer that TokTier ships. As in a proxy that has loaded it, the cyclic collector does not look at it."""
    loaded = embedded(cache_dir=CACHE)
    gc.collect()
    gc.freeze()
    return loaded


def load_qwen3(
    name: str, model: Model, _server: Server, store: SessionStore, quarantine: Quarantine | None = None
) -> Loaded:
    """As `proxy.loading.Loader.load` for the embedded tokenizer, without loading it again."""
    return assemble(name, model, qwen3(), store, quarantine=quarantine)
