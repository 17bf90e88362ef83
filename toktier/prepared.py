"""What the tier makes of one request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from toktier.ids import Ids
from toktier.reasons import Cause, FullEncode, FullRender, Gpu, Path
from toktier.shortcuts import Way
from toktier.traits import Traits
from toktier.written import Written, write

CONTINUED = 64
"""Characters: enough to see whether a template goes on as the model did."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What goes upstream for one request, and what it took. Nothing in it changes later."""

    ids: Ids
    """T of the whole rendered text, shape ``(n,)``, read-only. The session's own memory, which it does not change while
    they are held."""
    texts: Sequence[str] = field(repr=False)
    """What was rendered and encoded, in pieces; for a shadow check, never for a log."""
    path: Path
    cause: Cause
    full: FullEncode | None
    messages: int
    chars: int
    """Characters of the rendered text: what the engine is served."""
    scanned: int
    """Characters that were encoded for it."""
    common: int
    """Leading characters that the text shares with the session's last one."""
    first_changed: int
    """Leading IDs shared with the session's last ones; a special token at the end counts where nothing changed."""
    lost_reuse_tokens: int
    """IDs of the session's last state after those: an engine's prefix cache holds them, and cannot use them here."""
    first_changed_message: int | None
    """Index in the body of the first message that the session did not have; None where there is none, or no session."""
    session: str
    """A random name for logs."""
    stages: dict[str, int]
    """Microseconds for ``normalise``, ``match``, ``render``, ``splice`` and ``serialise``."""
    control_tokens: int
    """Messages in which the client's text holds the literal of a special token."""
    tokenizer_digest: str
    template_digest: str
    full_render: FullRender | None = None
    """Why the whole template was rendered; None where only what changed was."""
    iterations: int | None = None
    """Iterations of the template's folded loops that ran; None where the whole template did, unfolded."""
    way: Way | None = None
    """How `scanned` was encoded; None where nothing was, or by the reference alone."""
    written: tuple[Ids, Written] | None = field(default=None, repr=False)
    """The IDs as JSON, and the very array that they were written of."""
    traits: Traits | None = None
    """Those of the messages, where they are known."""
    gpu: Gpu | None = None
    """What a GPU did for the part that was encoded; None where nothing was, or there is no GPU."""
    by_gpu: bool = False
    """Whether some of `ids` may come from a GPU, of this request or of one before it in the session."""
    text_bytes: int | None = None
    """Bytes of the strings in `texts`, where that is known."""
    continued: str = field(default="", repr=False)
    """What follows the session's last text, `CONTINUED` characters of it, where an assistant's message does."""

    @property
    def text(self) -> str:
        """`texts`, joined: a copy."""
        return "".join(self.texts)

    def json(self) -> list[bytes]:
        """`ids` as a JSON array, in pieces to be written one after the other."""
        if self.written is not None and self.written[0] is self.ids:
            return self.written[1].pieces()
        return write(self.ids).pieces()
