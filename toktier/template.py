"""Chat templates: found as transformers finds them, rendered as transformers renders them.

The prompt of a chat request is a function of (normalised messages, tools, keyword arguments), written in Jinja2 by
the model's authors. Which template counts, and the environment it runs in, follow transformers 5.x
(``tokenization_utils_base.py`` and ``utils/chat_template_utils.py``); `toktier.profiles` makes the arguments.

Invariants:

1. Precedence, for a request with or without tools: the operator's override; ``chat_template.jinja`` as ``default``
   with ``additional_chat_templates/NAME.jinja`` beside it; ``tokenizer_config.json``'s ``chat_template`` (a string,
   a list of ``{name, template}``, or a mapping). Of several, ``tool_use`` is taken when tools are given, else
   ``default``. ``chat_template.json`` belongs to multimodal processors, which vLLM asks first when there are no tools.
2. The environment is the immutable sandbox with ``trim_blocks`` and ``lstrip_blocks``, loop controls, the
   ``generation`` tag (its body is kept), ``tojson`` without HTML escaping, ``raise_exception`` and ``strftime_now``.
3. The template sees the named special tokens, then the request's arguments, which win.
4. A rendered object is never changed by a template (the sandbox is immutable), so callers may share sub-objects.
"""

from __future__ import annotations

import hashlib
import json
import json.encoder
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn, Protocol

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from toktier.errors import TakesLong, TemplateFailure, Unrenderable, UnusableFile
from toktier.reasons import Bypass
from toktier.sandbox import Sandbox
from toktier.template_limit import OverLimit, RenderLimit, guarded, render
from toktier.template_shape import TemplateShape, shape_of

NAMED_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""The standard names (transformers' ``PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES``)."""

_CLOCK_MARGIN = timedelta(seconds=30)
"""How far the engine's clock, at the time when it would have rendered, may be from ours."""

_CLASSES_WITHOUT_DEFAULTS = frozenset({"PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend"})
"""Tokenizer classes that invent no special token. The others may, where ``tokenizer_config.json`` is silent."""

_LARGE = 20_000
"""Values that `json.dumps` writes in a few milliseconds."""

Clock = Callable[[], datetime]


@dataclass(slots=True)
class RenderRequest:
    """What a template is given. ``messages`` has one entry per message on the wire unless the profile says otherwise.

    ``kwargs`` is everything else that reaches the template, ``add_generation_prompt`` included. ``wire_index`` maps
    each message to its index on the wire; None when that is the identity. ``by_wire``: what was made of each message on
    the wire by itself, where something was made of them together; None where that is ``messages``. ``rules``: by which
    (`toktier.known.Made`).
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    wire_index: list[int] | None = None
    by_wire: list[dict[str, Any]] | None = None
    rules: tuple[object, ...] = ()


class HasTemplateFiles(Protocol):
    """The part of a frozen tokenizer that templates need."""

    @property
    def files(self) -> Mapping[str, bytes]: ...

    @property
    def config(self) -> Mapping[str, Any]: ...


class _GenerationTag(jinja2.ext.Extension):
    """``{% generation %}body{% endgeneration %}``: marks the assistant's tokens for training; here only its body."""

    tags = {"generation"}  # noqa: RUF012 - Jinja reads this as a class attribute

    def parse(self, parser: Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_keep")
        # A call block, as in transformers: the body gets a scope of its own, so `set` inside does not leak out.
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _keep(self, caller: Any) -> Any:
        return caller()


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _plain_json() -> Callable[[Any], str]:
    """``json.dumps(value, ensure_ascii=False)`` with an encoder that is made once. It looks for no cycles: JSON has
    none, and the immutable sandbox lets a template make none but of namespaces, which are no JSON."""
    plain = json.JSONEncoder(ensure_ascii=False)
    if json.encoder.c_make_encoder is None:  # type: ignore[attr-defined]
        return plain.encode
    encode = json.encoder.c_make_encoder(  # type: ignore[attr-defined]
        None, plain.default, json.encoder.encode_basestring, None, ": ", ", ", False, False, True
    )
    return lambda value: "".join(encode(value, 0))


_dumps = _plain_json()


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    plain = not (ensure_ascii or sort_keys) and indent is None and separators is None
    if plain and (_is_flat(value) or not _is_large(value)):
        return _dumps(value)
    options: Any = {"ensure_ascii": ensure_ascii, "indent": indent, "separators": separators, "sort_keys": sort_keys}
    if _is_large(value):  # `dumps` would keep the interpreter to itself
        return "".join(json.JSONEncoder(**options).iterencode(value))
    return json.dumps(value, **options)


def _is_flat(value: Any) -> bool:
    """Whether ``value`` is a mapping of few things, none of which holds others: most arguments of calls are."""
    if type(value) is not dict or len(value) > 64:
        return False
    for item in value.values():  # noqa: SIM110 - a generator takes twice the time
        if type(item) is dict or type(item) is list:
            return False
    return True


def _is_large(value: Any) -> bool:
    """Whether ``value`` holds more than `_LARGE` others."""
    left = _LARGE
    level = [value]
    while level:
        inner: list[Any] = []
        for container in level:
            items = container.values() if type(container) is dict else container if type(container) is list else ()
            left -= len(items)
            if left < 0:
                return True
            inner += [item for item in items if type(item) is dict or type(item) is list]
        level = inner
    return False


def _strftime(now: datetime, format: str) -> str:
    """Raises `Unrenderable` where the engine, a little later, may print something else."""
    text = now.strftime(format)
    if any((now + shift).strftime(format) != text for shift in (-_CLOCK_MARGIN, _CLOCK_MARGIN)):
        raise Unrenderable(Bypass.CLOCK, "strftime_now")
    return text


def _random(*_: object, **__: object) -> NoReturn:
    raise Unrenderable(Bypass.RANDOM, "random choice in the template")


def environment(clock: Clock | None = None) -> ImmutableSandboxedEnvironment:
    """A fresh environment, equal to the one in transformers' ``_cached_compile_jinja_template``.

    ``clock`` tells the local time in the place of the real one.
    """
    env = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols])
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = lambda format: _strftime(clock() if clock else datetime.now(), format)
    env.globals["lipsum"] = env.filters["random"] = _random  # Jinja2's own
    return env


@dataclass(frozen=True, slots=True)
class _Compiled:
    source: str
    template: jinja2.Template
    shape: TemplateShape


class ChatTemplate:
    """A model's chat template(s), compiled once. Thread-safe."""

    digest: str
    """Hex SHA-256 over the sources, their names and the special tokens."""

    special_tokens: Mapping[str, str]
    """Passed to every render under these names."""

    environment: ImmutableSandboxedEnvironment
    """That the templates run in. Not to be changed."""

    limit: RenderLimit
    """Of one render; none unless it is set."""

    def __init__(
        self,
        templates: Mapping[str, str],
        *,
        special_tokens: Mapping[str, str] | None = None,
        processor: str | None = None,
        place: str = "chat template",
        clock: Clock | None = None,
    ) -> None:
        """``templates`` by name (one named ``default`` where there is a single one); ``processor`` is the one that
        counts when no tools are given; ``clock`` as `environment` takes it. Raises `UnusableFile` when a template does
        not parse."""
        self.environment = env = environment(clock)
        self.special_tokens = dict(special_tokens or {})
        self.limit = RenderLimit()
        self._named = {name: _compile(env, source, f"{place} {name!r}") for name, source in templates.items()}
        self._processor = _compile(env, processor, f"{place} of the processor") if processor is not None else None
        parts = [*templates.items(), ("\0processor", processor or ""), *sorted(self.special_tokens.items())]
        packed = json.dumps(parts, ensure_ascii=True).encode()
        self.digest = hashlib.sha256(packed).hexdigest()

    @classmethod
    def load(
        cls,
        tokenizer: HasTemplateFiles | tuple[Mapping[str, bytes], Mapping[str, Any]],
        *,
        override: str | Path | None = None,
        clock: Clock | None = None,
    ) -> ChatTemplate | None:
        """The model's template, or None when it has none (then every request is bypassed as ``no_template``).

        ``override`` is a path to a Jinja file and replaces all of the model's own; ``clock`` as `environment` takes it.
        Raises `UnusableFile` when a
        template is there but cannot be used; the message names the file and the remedy.
        """
        files, config = tokenizer if isinstance(tokenizer, tuple) else (tokenizer.files, tokenizer.config)
        processor: str | None = None
        if override is not None:
            try:
                templates = {"default": Path(override).read_text(encoding="utf-8")}
            except (OSError, UnicodeDecodeError) as error:
                raise UnusableFile(
                    f"chat template {override}: {type(error).__name__}; give a readable UTF-8 file"
                ) from error
            place = str(override)
        else:
            templates, place = _own_templates(files, config)
            # A processor's chat_template.jinja is the same file as the tokenizer's; only the legacy name differs.
            if "chat_template.json" in files and "chat_template.jinja" not in files:
                processor = _legacy_processor_template(files["chat_template.json"])
        if not templates and processor is None:
            return None
        specials, silent = _special_tokens(files, config)
        template = cls(templates, special_tokens=specials, processor=processor, place=place, clock=clock)
        guessed = sorted(silent & template.variables())
        if guessed:
            raise UnusableFile(
                f"{place} uses {', '.join(guessed)}, which tokenizer_config.json leaves to the tokenizer class "
                f"{config.get('tokenizer_class')!r}; add the key to tokenizer_config.json (a token, or null)"
            )
        return template

    @property
    def single(self) -> bool:
        """One template for every request: no other by name, none of a processor's own."""
        return self._processor is None and self._named.keys() == {"default"}

    def variables(self) -> frozenset[str]:
        """Every free variable of any of the templates."""
        compiled = [*self._named.values(), *([self._processor] if self._processor else [])]
        return frozenset().union(*(one.shape.variables for one in compiled))

    def shape(self, *, tools: bool) -> TemplateShape:
        """What the template that counts for a request (with or without tools) reads."""
        return self._pick(tools).shape

    def source(self, *, tools: bool) -> str:
        return self._pick(tools).source

    def sources(self) -> list[str]:
        """Those of all the model's templates."""
        compiled = [*self._named.values(), *([self._processor] if self._processor else [])]
        return [one.source for one in compiled]

    def arguments(self, request: RenderRequest) -> dict[str, Any]:
        """What the template sees."""
        arguments = {"documents": None, **self.special_tokens, **request.kwargs}
        arguments["messages"] = request.messages
        arguments["tools"] = request.tools
        return arguments

    def limit_within(self, within_s: float | None) -> RenderLimit:
        """`limit`, or ``within_s`` seconds where that is given and shorter."""
        if within_s is None or within_s >= self.limit.seconds:
            return self.limit
        return RenderLimit(within_s, self.limit.chars)

    def failure(self, error: Exception, limit: RenderLimit) -> Exception:
        """What is raised for ``error``, which a render within ``limit`` raised. Its context is to be dropped: its text
        may quote the prompt."""
        if isinstance(error, Unrenderable):
            return error
        if isinstance(error, OverLimit):
            if error.limit == "time" and limit is not self.limit:
                return TakesLong("template")
            return Unrenderable(Bypass.TEMPLATE_LIMIT, error.limit)
        return TemplateFailure(error)

    def render(self, request: RenderRequest, within_s: float | None = None) -> str:
        """The prompt text.

        Raises `TemplateFailure`, whatever the template raised, `Unrenderable` (the clock, `limit`), or `TakesLong`
        after ``within_s`` seconds, where that is given and shorter than the limit.
        """
        limit = self.limit_within(within_s)
        template = self._pick(request.tools is not None).template
        try:
            return render(template, self.arguments(request), limit)
        except Exception as error:
            raise self.failure(error, limit) from None

    def _pick(self, tools: bool) -> _Compiled:
        if not tools and self._processor is not None:
            return self._processor
        named = self._named
        if tools and "tool_use" in named:
            return named["tool_use"]
        try:
            return named["default"]
        except KeyError:
            raise Unrenderable(Bypass.NO_TEMPLATE, "no default template for this request") from None


def _compile(env: ImmutableSandboxedEnvironment, source: str, place: str) -> _Compiled:
    try:
        return _Compiled(source, guarded(env, source), shape_of(env, source))
    except jinja2.TemplateSyntaxError as error:
        raise UnusableFile(
            f"{place}, line {error.lineno}: {error.message}; give a template that Jinja2 parses"
        ) from error


def _decode(raw: bytes, name: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnusableFile(f"{name} is not UTF-8 (byte {error.start}); save it as UTF-8") from error


def _own_templates(files: Mapping[str, bytes], config: Mapping[str, Any]) -> tuple[dict[str, str], str]:
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


def _legacy_processor_template(raw: bytes) -> str:
    try:
        value = json.loads(_decode(raw, "chat_template.json"))["chat_template"]
    except (ValueError, KeyError, TypeError):
        value = None
    if not isinstance(value, str):
        raise UnusableFile('chat_template.json has no string under "chat_template"')
    return value


def _special_tokens(files: Mapping[str, bytes], config: Mapping[str, Any]) -> tuple[dict[str, str], frozenset[str]]:
    """The special tokens by name, and the standard names on which the files are silent (a class default may exist).

    As transformers' ``from_pretrained`` gathers them: the standard names, any other ``*_token`` with a token for a
    value, and the names of a mapping ``extra_special_tokens``. The legacy ``special_tokens_map.json`` overrides, but
    only where ``tokenizer_config.json`` has no ``added_tokens_decoder``.
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
