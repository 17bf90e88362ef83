"""The reference path of one model, made of its files: normalise, render, encode, whole, and nothing kept.

It is the slow and obvious way from a body to its IDs. What it has in common with `toktier.tier` is what defines the
right answer (an engine's rules, the template, the reference engine) and no more: no rope, no cut, no window engine, no
certificate, no cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from toktier import files as sources
from toktier.engines.base import Reference
from toktier.errors import TokTierError, Unrenderable, UnusableFile
from toktier.heap import give_back
from toktier.ids import EMPTY, Ids
from toktier.postprocessor import SpecialTokens
from toktier.profiles.base import EngineProfile
from toktier.profiles.sglang import SglangProfile
from toktier.profiles.vllm import VllmProfile
from toktier.reasons import Bypass
from toktier.reference_of import engine_versions, reference_of
from toktier.shadow.job import Setup
from toktier.template import ChatTemplate
from toktier.template_environment import Clock


class FilesChanged(TokTierError):
    """The files that a setup names are not those that its model was loaded from, or cannot be read."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A request's text, and what its engine puts around the IDs."""

    text: str
    around: SpecialTokens


class ReferencePath:
    """One model. Not thread-safe: the clock is the one of the request at hand."""

    def __init__(self, setup: Setup) -> None:
        """Reads and digests the files. Raises `FilesChanged`."""
        self._settings = setup.settings
        self._profile: EngineProfile = SglangProfile() if setup.profile == "sglang" else VllmProfile()
        self._now = datetime.now()
        sidecar = None if setup.sidecar is None else Path(setup.sidecar)
        try:
            read = sources.read(setup.source, revision=setup.revision, sidecar=sidecar)
            _expect("tokenizer", read.digest(engine_versions()), setup.tokenizer_digest)
            template = _template(read, setup.chat_template, lambda: self._now)
            _expect("chat template", template.digest, setup.template_digest)
            self.engine: Reference
            self.engine, self._special = reference_of(read)
        except (UnusableFile, OSError) as error:
            raise FilesChanged(type(error).__name__) from error
        self._template = template
        give_back()

    def render(self, body: Mapping[str, Any], at: float, lap: Callable[[str], None] = lambda _: None) -> Rendered:
        """The text of ``body`` (parsed by `json.loads`) as it was at ``at``, of `time.monotonic` on this machine.

        ``lap`` is told when a stage has ended. Raises `Unrenderable`.
        """
        self._now = datetime.fromtimestamp(time.time() - (time.monotonic() - at))
        around = SpecialTokens(EMPTY, EMPTY)
        if self._profile.adds_special_tokens(body):
            if self._special is None:
                raise Unrenderable(Bypass.ADD_SPECIAL_TOKENS, "add_special_tokens")
            around = self._special
        request = self._profile.normalise(body, self._template, self._settings)
        lap("normalise")
        text = self._template.render(request)
        lap("render")
        return Rendered(text, around)

    def encode(self, rendered: Rendered) -> Ids:
        """Its IDs, with what stands around them. Raises `CannotEncode` and `InvalidText`."""
        return rendered.around.around(self.engine.encode(rendered.text))


def _template(read: sources.TokenizerFiles, override: str | None, clock: Clock) -> ChatTemplate:
    config = read.json("tokenizer_config.json")
    others = {name: content for name, content in read.small.items() if name != "tokenizer_config.json"}
    template = ChatTemplate.load((others, config), override=override, clock=clock)
    if template is None:
        raise FilesChanged("there is no chat template")
    return template


def _expect(what: str, found: str, wanted: str) -> None:
    if found != wanted:
        raise FilesChanged(f"the {what} has another digest")
