"""From a tokenizer's files to its reference engine, and no further: no certificate, no window engine, nothing cached.

This is all that a shadow worker needs of a tokenizer, and the part of a load on which everything else is judged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import structlog
from tokenizers import Tokenizer

from toktier import files as sources
from toktier.components import unknown_component
from toktier.engines.base import Reference
from toktier.engines.reference import ReferenceEngine
from toktier.engines.tiktoken_engine import TiktokenEngine
from toktier.engines.versions import fastokens_version
from toktier.errors import Refusal, UnusableFile, is_failure
from toktier.ids import EMPTY
from toktier.postprocessor import SpecialTokens, special_tokens
from toktier.rank_files import Ranks, ranks_of

_TABLES = ("vocab", "merges")

_log = structlog.get_logger("toktier.tokenizer")


def engine_versions() -> tuple[str, str]:
    """What a digest holds beside the files: an upgrade of either engine makes it another tokenizer."""
    return f"tokenizers {ReferenceEngine.version}", f"fastokens {fastokens_version()}"


def reference_of(read: sources.TokenizerFiles) -> tuple[Reference, SpecialTokens | None]:
    """The reference engine of files that are read already, and what it puts around a text; nothing else is derived.

    The engine is without the file's post-processor, which is no part of T. Raises `UnusableFile`.
    """
    if read.sidecar is not None:
        return TiktokenEngine(ranks_in(read), read.source), SpecialTokens(EMPTY, EMPTY)
    spec = spec_of(read)
    reference = engine_of(text_of(read), read.model_name)
    special, _ = special_of(without_tables(spec), reference)
    reference.tokenizer.post_processor = None
    return reference, special


def ranks_in(read: sources.TokenizerFiles) -> Ranks:
    """What a rank file and its sidecar say. Raises `UnusableFile`."""
    assert read.sidecar is not None
    sidecar = sources.parse_object(read.sidecar, f"the sidecar of {read.source}")
    return ranks_of(read.tokenizer, sidecar, read.source)


def text_of(read: sources.TokenizerFiles) -> str:
    """The ``tokenizer.json`` as text. Raises `UnusableFile`."""
    try:
        return read.tokenizer.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnusableFile(f"{read.model_name} is not UTF-8; fetch it again") from error


def spec_of(read: sources.TokenizerFiles) -> dict[str, Any]:
    """The parsed ``tokenizer.json`` with ``truncation`` and ``padding`` set to None. Raises `UnusableFile`."""
    spec = sources.parse_object(read.tokenizer, read.model_name)
    model = spec.get("model")
    if not isinstance(model, dict):
        raise UnusableFile(f"{read.model_name} has no model; it is not a tokenizer file")
    if model.get("dropout"):
        raise UnusableFile(f"{read.model_name} has BPE dropout, so its IDs are random; set model.dropout to null")
    blocks = [name for name in ("truncation", "padding") if spec.get(name) is not None]
    if blocks:
        # Engines switch both off for every prompt; a file that was saved with them must not cut or pad ours.
        _log.warning("tokenizer.truncation_disabled", source=read.source, blocks=blocks)
    return {**spec, "truncation": None, "padding": None}


def without_tables(spec: Mapping[str, Any]) -> dict[str, Any]:
    """``spec`` with an empty vocabulary and no merges: nothing but the engines needs them (60 MB for Qwen3)."""
    model = spec["model"]
    return {**spec, "model": {**model, **{name: type(model[name])() for name in _TABLES if name in model}}}


def engine_of(text: str, name: str) -> ReferenceEngine:
    """The engine on a ``tokenizer.json``; ``name`` is its own in the `UnusableFile` that an unfit one raises."""
    try:
        tokenizer = Tokenizer.from_str(text)
    except BaseException as error:  # tokenizers raises plain Exception, or panics
        if not is_failure(error):
            raise
        why = unknown_component(json.loads(text)) or error
        raise UnusableFile(f"{name} is not readable by tokenizers: {why}") from error
    for token in tokenizer.get_added_tokens_decoder().values():
        gone = tokenizer.normalizer and token.normalized and not tokenizer.normalizer.normalize_str(token.content)
        if gone and token.content:
            # tokenizers then looks for the empty text, and beside some other tokens never ends
            raise UnusableFile(
                f"the added token {token.content!r} of {name} is searched for in normalized text, but the normalizer "
                "leaves nothing of it; set its normalized to false"
            )
    return ReferenceEngine(tokenizer)


def special_of(spec: Mapping[str, Any], reference: ReferenceEngine) -> tuple[SpecialTokens | None, Refusal | None]:
    """What stands around T by the post-processor in ``spec``, or why that is not known."""
    try:
        return special_tokens(spec, reference), None
    except Refusal as refusal:
        return None, refusal
