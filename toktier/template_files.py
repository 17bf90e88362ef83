"""What a model's files say of its chat template: the sources by name, and the special tokens that they may print.

Invariant: of the sources, ``chat_template.jinja`` counts as ``default``, with ``additional_chat_templates/NAME.jinja``
beside it; else ``tokenizer_config.json``'s ``chat_template`` (a string, a list of ``{name, template}``, or a mapping).
``chat_template.json`` belongs to multimodal processors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from toktier.errors import UnusableFile

NAMED_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""The standard names (transformers' ``PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES``)."""

_CLASSES_WITHOUT_DEFAULTS = frozenset({"PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend"})
"""Tokenizer classes that invent no special token. The others may, where ``tokenizer_config.json`` is silent."""


def _decode(raw: bytes, name: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnusableFile(f"{name} is not UTF-8 (byte {error.start}); save it as UTF-8") from error


def own_templates(files: Mapping[str, bytes], config: Mapping[str, Any]) -> tuple[dict[str, str], str]:
    """The sources by name, and where they stand, for messages. Raises `UnusableFile`."""
    templates: dict[str, str] = {}
    if "chat_template.jinja" in files:
        templates["default"] = _decode(files["chat_template.jinja"], "chat_template.jinja")
    for name in files:
        folder, _, base = name.rpartition("/")
        if folder == "additional_chat_templates" and base.endswith(".jinja"):
            templates[base.removesuffix(".jinja")] = _decode(files[name], name)
    if templates:
        return templates, "chat_template.jinja" if "default" in templates else "additional_chat_templates"
    return _config_templates(config.get("chat_template")), "tokenizer_config.json chat_template"


def _config_templates(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, Mapping):
        named = dict(value)
    elif isinstance(value, Sequence) and all(
        isinstance(one, Mapping) and {"name", "template"} <= one.keys() for one in value
    ):
        named = {one["name"]: one["template"] for one in value}
    else:
        named = {"": value}
    if not all(isinstance(name, str) and name and isinstance(source, str) for name, source in named.items()):
        raise UnusableFile(
            "tokenizer_config.json chat_template is neither a string, nor a list of {name, template}, nor a mapping"
        )
    return named


def legacy_processor_template(raw: bytes) -> str:
    """The source in a ``chat_template.json``. Raises `UnusableFile`."""
    try:
        value = json.loads(_decode(raw, "chat_template.json"))["chat_template"]
    except (ValueError, KeyError, TypeError):
        value = None
    if not isinstance(value, str):
        raise UnusableFile('chat_template.json has no string under "chat_template"')
    return value


def special_tokens(files: Mapping[str, bytes], config: Mapping[str, Any]) -> tuple[dict[str, str], frozenset[str]]:
    """The special tokens by name, and the standard names on which the files are silent (a class default may exist).

    As transformers' ``from_pretrained`` gathers them: the standard names, any other ``*_token`` with a token for a
    value, and the names of a mapping ``extra_special_tokens``. The legacy ``special_tokens_map.json`` overrides, but
    only where ``tokenizer_config.json`` has no ``added_tokens_decoder``. Raises `UnusableFile`.
    """
    merged: dict[str, Any] = dict(config)
    if "special_tokens_map.json" in files and "added_tokens_decoder" not in config:
        try:
            merged.update(json.loads(_decode(files["special_tokens_map.json"], "special_tokens_map.json")))
        except ValueError as error:
            raise UnusableFile("special_tokens_map.json is not JSON") from error
    found: dict[str, str] = {}
    for name, value in merged.items():
        if name in NAMED_SPECIAL_TOKENS or name.endswith("_token"):
            token = _token(value)
            if token is not None:
                found[name] = token
            elif value is not None and name in NAMED_SPECIAL_TOKENS:
                raise UnusableFile(f"tokenizer_config.json {name} is neither a string, an added token, nor null")
    extra = merged.get("extra_special_tokens")
    if isinstance(extra, Mapping):
        found.update((name, token) for name, value in extra.items() if (token := _token(value)) is not None)
    tokenizer_class = config.get("tokenizer_class")
    if isinstance(tokenizer_class, str) and tokenizer_class in _CLASSES_WITHOUT_DEFAULTS:
        return found, frozenset()
    return found, frozenset(NAMED_SPECIAL_TOKENS) - merged.keys()


def _token(value: object) -> str | None:
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None
