"""Errors of the tier. The name says whose fault it is; every message names the thing and the remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from toktier.reasons import Bypass


class TokTierError(Exception):
    """Base of every error that the tier raises on purpose."""


class UnusableFile(TokTierError):
    """A tokenizer or template file is missing, unreadable or malformed (the operator's to fix)."""


class Refusal(TokTierError):
    """No certificate: ``construct`` is what stopped the proof and ``place`` is where it stands.

    ``pattern``: the one that it stands in, "" where it is about none. A refused tokenizer is still served, by full
    encodes.
    """

    def __init__(self, construct: str, place: str) -> None:
        super().__init__(f"{construct} (at {place})")
        self.construct = construct
        self.place = place
        self.pattern = ""

    def excerpt(self, around: int = 30) -> tuple[str, int | None]:
        """At most ``around`` characters of the pattern on either side of the place, with "…" where it goes on, and
        the index of the place in that; None where it is about the pattern as a whole."""
        m = re.search(r", character (\d+)$", self.place)
        at = int(m[1]) if m else 0
        start, end = max(0, at - around), min(len(self.pattern), at + around)
        before = "…" if start else ""
        text = before + self.pattern[start:end] + ("…" if end < len(self.pattern) else "")
        return text, at - start + len(before) if m else None


@contextmanager
def refusing(pattern: str) -> Iterator[None]:
    """A `Refusal` from inside, where places end with ``character N``, is one about ``pattern``."""
    try:
        yield
    except Refusal as refusal:
        refusal.pattern = refusal.pattern or pattern
        raise


class InvalidText(TokTierError):
    """The text holds a lone surrogate, which no UTF-8 tokenizer can encode (the client's to fix).

    ``offset`` is the index of the first one, in characters.
    """

    def __init__(self, offset: int) -> None:
        super().__init__(f"lone surrogate at character {offset}")
        self.offset = offset


class CannotEncode(TokTierError):
    """The reference has no IDs for this text: ``engine`` (name and version) gave up on it or panicked.

    An engine upstream that uses the same library fails as well. ``error`` names what it raised; it holds no text.
    """

    def __init__(self, engine: str, error: str) -> None:
        super().__init__(f"{engine} cannot encode the text ({error})")
        self.engine = engine
        self.error = error


class TakesLong(TokTierError):
    """What was to be done at once would hold up the caller (``what`` says which part). Nothing has changed by it."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} takes long")


class Unrenderable(TokTierError):
    """No prompt text is produced for this request: it goes upstream untouched, for the reason ``bypass``.

    ``detail`` names the place (``messages[3].content[0]``) and never holds text of the request.
    """

    def __init__(self, bypass: Bypass, detail: str = "") -> None:
        super().__init__(f"{bypass.value}: {detail}" if detail else bypass.value)
        self.bypass = bypass
        self.detail = detail


class TemplateFailure(Unrenderable):
    """The chat template raised. Only the exception's type is in the message; its text may quote the prompt.

    ``template_message`` is that text. It must never be logged or sent to a client.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(Bypass.TEMPLATE_ERROR, type(error).__name__)
        self.template_message = str(error)


def is_failure(error: BaseException) -> bool:
    """Whether ``error`` is something that failed: an ``Exception``, or a panic of native code, which pyo3 raises as
    something that is none. Everything else (an interrupt, an exit, a cancellation) is to be passed on.
    """
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"
