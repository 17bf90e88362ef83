"""The post-processor of a tokenizer as what it is for a single text: constant IDs before and after T.

T leaves the post-processor out; ``add_special_tokens=True`` is ``prefix + T(x) + suffix``. What stands in the file is
read into the two constants or refused by name, and then held against the engine on sample texts: the engine counts.

- TemplateProcessing: the pieces of ``single`` around its one ``$A``;
- BertProcessing and RobertaProcessing: ``cls`` before, ``sep`` after;
- ByteLevel: changes offsets only;
- Sequence: one after the other, so the last one stands outermost. (Not so in the engine where something follows a
  template that adds IDs: it is then refused.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from toktier.engines.reference import ReferenceEngine
from toktier.errors import CannotEncode, Refusal, is_failure
from toktier.ids import EMPTY, Ids

_PLACE = "post_processor"
_SAMPLES = ("", " ", "a", "Hello, world!\n", " two words ", "1234 \u00e9 \u4e2d\u6587 \U0001f600", "</s><s>[CLS]")


@dataclass(frozen=True, eq=False)
class SpecialTokens:
    """IDs that stand around T(x) for every x; shapes ``(n,)``, both may be empty."""

    prefix: Ids
    suffix: Ids

    def around(self, ids: Ids) -> Ids:
        """``prefix + ids + suffix``, its own memory."""
        return np.concatenate((self.prefix, ids, self.suffix))


def special_tokens(spec: Mapping[str, Any], reference: ReferenceEngine) -> SpecialTokens:
    """Of the parsed ``tokenizer.json`` ``spec``, checked against the engine made of it.

    Raises `Refusal` with the construct that is no constant, or where the engine puts something else around a text.
    """
    try:
        prefix, suffix = _around(spec.get("post_processor"), _PLACE)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
        raise Refusal("malformed post-processor", _PLACE) from None
    special = SpecialTokens(prefix, suffix)
    for text in _SAMPLES:
        try:
            ids = reference.encode(text)
        except CannotEncode:
            continue  # it has no IDs, with or without special tokens
        if special.around(ids).tolist() != _told(reference, text):
            raise Refusal("post-processor that the engine applies differently", _PLACE)
    return special


def _told(reference: ReferenceEngine, text: str) -> list[int]:
    try:
        return reference.tokenizer.encode(text, add_special_tokens=True).ids
    except BaseException as error:
        if not is_failure(error):
            raise
        raise Refusal("post-processor on which the engine fails", _PLACE) from None


def _around(part: Mapping[str, Any] | None, place: str) -> tuple[Ids, Ids]:
    if part is None:
        return EMPTY, EMPTY
    match part["type"]:
        case "ByteLevel":
            return EMPTY, EMPTY
        case "BertProcessing" | "RobertaProcessing":
            return _ids([part["cls"][1]]), _ids([part["sep"][1]])
        case "TemplateProcessing":
            return _template(part, place)
        case "Sequence":
            prefix, suffix = EMPTY, EMPTY
            for k, inner in enumerate(part["processors"]):
                before, after = _around(inner, f"{place}.processors[{k}]")
                prefix, suffix = np.concatenate((before, prefix)), np.concatenate((suffix, after))
            return prefix, suffix
        case other:
            raise Refusal(f"post-processor {other}", place)


def _template(part: Mapping[str, Any], place: str) -> tuple[Ids, Ids]:
    place = f"{place}.single"
    sides: tuple[list[int], list[int]] = [], []
    texts = 0
    for piece in part["single"]:
        if "Sequence" in piece:
            name = piece["Sequence"]["id"]
            if name != "A":
                raise Refusal(f"template with ${name} for a single text", place)
            texts += 1
        else:
            sides[min(texts, 1)].extend(part["special_tokens"][piece["SpecialToken"]["id"]]["ids"])
    if texts != 1:
        raise Refusal("template with the text more than once" if texts else "template without the text", place)
    return _ids(sides[0]), _ids(sides[1])


def _ids(ids: Sequence[int]) -> Ids:
    return np.array(ids, np.uint32)
