"""Chat templates: found as transformers finds them, rendered as transformers renders them.

The prompt of a chat request is a function of (normalised messages, tools, keyword arguments), written in Jinja2 by
the model's authors. Which template counts (`toktier.template_files`), and the environment it runs in
(`toktier.template_environment`), follow transformers 5.x (``tokenization_utils_base.py`` and
``utils/chat_template_utils.py``); `toktier.profiles` makes the arguments.

Invariants:

1. Precedence, for a request with or without tools: the operator's override, else the files' own. Of several,
   ``tool_use`` is taken when tools are given, else ``default``. A multimodal processor's is asked first, as by vLLM,
   when there are no tools.
2. The template sees the named special tokens, then the request's arguments, which win.
3. A rendered object is never changed by a template (the sandbox is immutable), so callers may share sub-objects.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from toktier.errors import TakesLong, TemplateFailure, Unrenderable, UnusableFile
from toktier.known import Run
from toktier.reasons import Bypass
from toktier.template_environment import Clock, environment
from toktier.template_files import legacy_processor_template, own_templates, special_tokens
from toktier.template_limit import OverLimit, RenderLimit, guarded, render
from toktier.template_shape import TemplateShape, shape_of


@dataclass(slots=True)
class RenderRequest:
    """What a template is given. ``messages`` has one entry per message on the wire unless the profile says otherwise.

    ``kwargs`` is everything else that reaches the template, ``add_generation_prompt`` included. ``rules``: by which
    they were made (`toktier.known.Made`).
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    rules: tuple[object, ...] = ()
    by_wire: list[dict[str, Any]] | None = None
    """What was made of each message on the wire by itself, where the first of ``messages`` was then made of some; None
    where that is ``messages``."""
    systems: tuple[int, ...] | None = None
    """Then the places on the wire of those. The others follow it in order."""
    shared: tuple[Run, ...] = ()
    """And which of ``messages`` are those of an earlier request (`toktier.known.Made.given`)."""

    def wire_place(self, at: int) -> int:
        """Where message ``at`` stands on the wire; for several, the first of them."""
        return at if self.systems is None else wire_place(self.systems, at)


def wire_place(systems: Sequence[int], at: int) -> int:
    """`RenderRequest.wire_place`, by its ``systems``."""
    if at == 0:
        return systems[0]
    others = at - 1
    return others + bisect_right(range(len(systems)), others, key=lambda number: systems[number] - number)


class HasTemplateFiles(Protocol):
    """The part of a frozen tokenizer that templates need."""

    @property
    def files(self) -> Mapping[str, bytes]: ...

    @property
    def config(self) -> Mapping[str, Any]: ...


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
        Raises `UnusableFile` when a template is there but cannot be used; the message names the file and the remedy.
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
            templates, place = own_templates(files, config)
            # A processor's chat_template.jinja is the same file as the tokenizer's; only the legacy name differs.
            if "chat_template.json" in files and "chat_template.jinja" not in files:
                processor = legacy_processor_template(files["chat_template.json"])
        if not templates and processor is None:
            return None
        specials, silent = special_tokens(files, config)
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
    except SyntaxError as error:  # of what Jinja2 makes of it: a `break` in a block that is a function of its own, say
        raise UnusableFile(f"{place}: {error.msg}; give a template that Jinja2 can compile") from error
