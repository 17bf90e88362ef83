"""From a model's settings to its tier: tokenizer, template, profile. Blocking work of seconds; run it in a thread."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from proxy.config import EMBEDDED_TOKENIZER, Model, Server
from proxy.gpu import Gpus
from proxy.registry import CannotLoad, Loaded
from toktier import files as sources
from toktier.chunks import GpuPath
from toktier.engines.fastokens import FastokensEngine
from toktier.errors import TokTierError
from toktier.heap import give_back
from toktier.parity import Comparison, Outcome, Parity
from toktier.profiles import base
from toktier.profiles.sglang import SglangProfile
from toktier.profiles.vllm import VllmProfile
from toktier.quarantine import Quarantine
from toktier.reasons import Bypass
from toktier.reference_of import engine_versions
from toktier.sessions import SessionStore
from toktier.shadow.job import setup_of
from toktier.template import ChatTemplate
from toktier.template_limit import RenderLimit
from toktier.tier import ModelTier, control_pattern
from toktier.tokenizer import EMBEDDED, FrozenTokenizer

_log = structlog.get_logger("toktier.loading")

PADDING = 4096
"""Engines pad embeddings, so IDs a little over the tokenizer's own are valid there. Where no ``config.json`` says how
many, the bound is the next multiple of this (known paddings: 0 to 1,069)."""


class Loader:
    """Makes tiers, one at a time, in any thread. `close` ends what it started."""

    def __init__(self, gpus: Gpus | None = None) -> None:
        self._gpus = gpus
        self._lock = threading.Lock()
        self._closed = False
        self._comparison: Comparison | None = None

    def load(
        self, name: str, model: Model, server: Server, store: SessionStore, quarantine: Quarantine | None = None
    ) -> Loaded:
        """The tier of a model with a tokenizer, compared with transformers on the way. Raises `CannotLoad`."""
        try:
            read = _read(model)
            with self._compared(read, server.cache_dir) as comparison:
                tokenizer = FrozenTokenizer.from_files(
                    read, cache_dir=server.cache_dir, window=model.window == "auto", measured=True
                )
                parity = comparison.result(tokenizer.reference, tokenizer.special)
        except (TokTierError, OSError) as error:
            raise CannotLoad(Bypass.TOKENIZER_UNAVAILABLE, str(error), final=False) from error
        _report(name, tokenizer, parity)
        if parity.outcome is Outcome.DIFFERENT:
            raise CannotLoad(Bypass.TOKENIZER_MISMATCH, parity.detail, final=True)
        gpu = None if self._gpus is None else self._gpus.engine(tokenizer, read, server.cache_dir, quarantine)
        loaded = assemble(name, model, tokenizer, store, parity, quarantine, gpu)
        _set_aside()
        return self._with_more(name, model, server, store, loaded, quarantine)

    def _with_more(
        self,
        name: str,
        model: Model,
        server: Server,
        store: SessionStore,
        loaded: Loaded,
        quarantine: Quarantine | None = None,
    ) -> Loaded:
        """``loaded`` with `Loaded.again` and `Loaded.checked`."""
        tier = loaded.tier
        assert isinstance(tier, ModelTier)

        def again() -> Loaded | None:
            try:
                digest = _read(model).digest(engine_versions())
                template = ChatTemplate.load(tier.tokenizer, override=model.chat_template)
            except (TokTierError, OSError) as error:
                raise CannotLoad(Bypass.TOKENIZER_UNAVAILABLE, str(error), final=False) from error
            if digest == tier.tokenizer.digest and template is not None and template.digest == tier.template.digest:
                _log.info("tokenizer_read_again", model=name, digest=digest, outcome="unchanged")
                return None
            _log.warning("tokenizer_read_again", model=name, digest=digest, outcome="changed")
            return self.load(name, model, server, store, quarantine)

        def checked() -> Loaded | None:
            tokenizer = tier.tokenizer.checked_again()
            if tokenizer is tier.tokenizer:
                return None
            new = assemble(name, model, tokenizer, store, loaded.parity, quarantine)
            return self._with_more(name, model, server, store, new, quarantine)

        return replace(loaded, again=again, checked=checked)

    def close(self) -> None:
        """End a comparison that is running and remove its files. At worst it waits for one to begin. Thread-safe."""
        with self._lock:
            self._closed = True
            if self._comparison is not None:
                self._comparison.stop()

    @contextmanager
    def _compared(self, read: sources.TokenizerFiles, cache_dir: Path) -> Iterator[Comparison]:
        # It needs only the files and a core of its own, so it goes first and the load runs beside it.
        digest = read.digest(engine_versions())
        with self._lock:  # so that `close` finds whatever was begun
            self._comparison = comparison = Comparison(read, digest, cache_dir=cache_dir)
            if self._closed:
                comparison.stop()
        try:
            with comparison:
                yield comparison
        finally:
            with self._lock:
                self._comparison = None


def _set_aside() -> None:
    """Take what there is now out of the cyclic collector's passes: beside them nothing else runs, the event loop
    neither, and a tokenizer and its template are most of what a process holds. What is unused by now goes first."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    give_back()


def _read(model: Model) -> sources.TokenizerFiles:
    assert model.tokenizer is not None
    source = EMBEDDED if model.tokenizer == EMBEDDED_TOKENIZER else model.tokenizer
    return sources.read(source, revision=model.revision)


def _report(name: str, tokenizer: FrozenTokenizer, parity: Parity) -> None:
    loud = {Outcome.DIFFERENT: _log.error, Outcome.FAILED: _log.warning}
    say = loud.get(parity.outcome, _log.info)
    say(
        "tokenizer_parity",
        model=name,
        digest=tokenizer.digest,
        outcome=parity.outcome.value,
        detail=parity.detail,
        from_cache=parity.from_cache,
    )


def assemble(
    name: str,
    model: Model,
    tokenizer: FrozenTokenizer,
    store: SessionStore,
    parity: Parity | None = None,
    quarantine: Quarantine | None = None,
    gpu: GpuPath | None = None,
) -> Loaded:
    """The tier of a model whose tokenizer is loaded; ``gpu``: its own, if any. Raises `CannotLoad`."""
    profile: base.EngineProfile = SglangProfile() if model.profile == "sglang" else VllmProfile()
    renderer = profile.renderer_of(tokenizer.files, tokenizer.config)
    if renderer != "jinja":
        raise CannotLoad(Bypass.RENDERER_NOT_JINJA, f"the engine renders it with {renderer}", final=True)
    try:
        template = ChatTemplate.load(tokenizer, override=model.chat_template)
    except (TokTierError, OSError) as error:
        raise CannotLoad(Bypass.NO_TEMPLATE, str(error), final=False) from error
    if template is None:
        raise CannotLoad(Bypass.NO_TEMPLATE, "set chat_template to the file the engine was started with", final=True)
    template.limit = RenderLimit(model.template_time_s, model.template_chars)
    settings = base.ProfileSettings(
        default_template_kwargs=model.default_chat_template_kwargs,
        content_format=model.content_format,
        exclude_tools_when_tool_choice_none=model.exclude_tools_when_tool_choice_none,
    )
    size = model.vocab_size or _vocab_size(tokenizer.files, tokenizer.vocab_size)
    control = control_pattern(tokenizer.spec)
    special = tokenizer.special if parity is not None and parity.special else None
    versions = {engine.name: engine.version for engine in (tokenizer.reference, tokenizer.window)}
    tier = ModelTier(name, tokenizer, template, profile, settings, store, size, special, quarantine, gpu)
    setup = setup_of(tier, chat_template=None if model.chat_template is None else str(model.chat_template))
    certificate = None if tokenizer.certificate is None else tokenizer.certificate.digest
    window = tokenizer.window if isinstance(tokenizer.window, FastokensEngine) else None
    return Loaded(
        tier,
        size,
        versions,
        control,
        parity,
        setup=setup,
        trust_digest=tokenizer.digest_of_files,
        certificate=certificate,
        window=window,
    )


def _vocab_size(files: Mapping[str, bytes], tokenizer: int) -> int:
    """The engine's: from ``config.json`` where it is there, else the tokenizer's with room for padding."""
    try:
        config: Any = json.loads(files["config.json"])
        size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
        if isinstance(size, int) and size >= tokenizer:
            return size
    except (KeyError, ValueError, AttributeError):
        pass
    return -(-tokenizer // PADDING) * PADDING
