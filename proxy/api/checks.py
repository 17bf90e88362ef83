"""What a chat request must be whatever becomes of it: encodable text, IDs within the vocabulary."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from proxy.errors import ApiError
from proxy.jsonspan import Parsed
from toktier.surrogates import find_surrogate

_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_ESCAPED_ESCAPE = re.compile(rb"\\u00(?:5[cC]|75|3\d|[46][1-6])")
"""A character of an escape, itself escaped: the JSON in a tool call's ``arguments`` is read a second time."""

ID_LISTS = ("stop_token_ids", "allowed_token_ids", "logprob_token_ids")
"""Members that list token IDs. vLLM 0.32 refuses those beyond the vocabulary in all three (``sampling_params.py``)."""


def refuse_surrogates(parsed: Parsed) -> None:
    """400 for a lone surrogate anywhere in the body: no tokenizer can encode it.

    A UTF-8 body can only bring one as an escape, so most bodies are done with one search. What is shared with an
    earlier body was looked at then.
    """
    if not any(_may_hold_surrogate(parsed.raw[start:end]) for start, end in parsed.fresh()):
        return
    found = find_surrogate(parsed.outline)
    if found is not None:
        path, offset = found
        raise ApiError(
            400,
            f"{path} has a lone surrogate at character {offset}; it is not valid Unicode text.",
            param=path,
            code="invalid_unicode",
        )


def _may_hold_surrogate(raw: bytes) -> bool:
    if (b"\\ud" in raw or b"\\uD" in raw) and _ESCAPED_SURROGATE.search(raw) is not None:
        return True
    return b"\\u00" in raw and _ESCAPED_ESCAPE.search(raw) is not None


def refuse_ids_out_of_range(body: Mapping[str, Any], vocab_size: int) -> None:
    """400 for a token ID in one of `ID_LISTS` or in ``logit_bias`` that the model does not have.

    What is no integer is left to the engine.
    """
    for name in ID_LISTS:
        value = body.get(name)
        if isinstance(value, list) and any(type(i) is int and not 0 <= i < vocab_size for i in value):
            raise _out_of_range(name, vocab_size)
    bias = body.get("logit_bias")
    if isinstance(bias, dict) and not all(_in_range(key, vocab_size) for key in bias):
        raise _out_of_range("logit_bias", vocab_size)


def _in_range(key: str, vocab_size: int) -> bool:
    try:
        return 0 <= int(key) < vocab_size
    except ValueError:
        return True


def _out_of_range(name: str, vocab_size: int) -> ApiError:
    return ApiError(
        400, f"{name} has a token ID outside 0..{vocab_size - 1}.", param=name, code="token_id_out_of_range"
    )
