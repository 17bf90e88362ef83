"""One model: from a chat-completion body to the token IDs that the engine itself would come to.

The life of a request here: normalise (the engine's own rules), render (the model's template), match (which session
it continues), splice (encode what changed). The store learns of a request only when all four have succeeded.

What is in quarantine (`toktier.quarantine`) is matched, to know its path, and then goes by the reference alone: no kept
text or ID is read for it, and none is kept.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from toktier.chunks import ChunkEncoder
from toktier.errors import CannotEncode, TakesLong, Unrenderable
from toktier.fingerprint import Fingerprint, Group, digest, fingerprint, strict
from toktier.ids import Ids
from toktier.postprocessor import SpecialTokens
from toktier.profiles.base import EngineProfile, ProfileSettings
from toktier.quarantine import Level, Quarantine
from toktier.reasons import Bypass, Cause, FullEncode, Path
from toktier.rope import Splice
from toktier.sessions import Lease, SessionBusy, SessionStore
from toktier.surrogates import find_surrogate
from toktier.template import ChatTemplate, RenderRequest
from toktier.tokenizer import FrozenTokenizer

__all__ = ["ModelTier", "Prepared", "SessionBusy", "find_surrogate"]


AT_ONCE_S = 0.005
"""How long a render may take, in seconds, for a caller that does not want to wait."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What goes upstream for one request, and what it took. Nothing in it changes later."""

    ids: Ids
    """T of the whole rendered text, shape ``(n,)``, read-only and its own memory."""
    text: str = field(repr=False)
    """What was rendered and encoded; for a shadow check, never for a log."""
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
    """Microseconds for ``normalise``, ``render``, ``match`` and ``splice``."""
    control_tokens: int
    """Messages in which the client's text holds the literal of a special token."""
    tokenizer_digest: str
    template_digest: str


class _Made(NamedTuple):
    """``before``: IDs that the session had; ``at``: when it was done, in nanoseconds."""

    ids: Ids
    splice: Splice
    before: int
    at: int


class ModelTier:
    """One model's tokenizer, template and engine rules over a session store. Thread-safe."""

    def __init__(
        self,
        name: str,
        tokenizer: FrozenTokenizer,
        template: ChatTemplate,
        profile: EngineProfile,
        settings: ProfileSettings,
        store: SessionStore,
        vocab_size: int | None = None,
        special: SpecialTokens | None = None,
        quarantine: Quarantine | None = None,
    ) -> None:
        """``vocab_size`` is the engine's, where it is smaller than the tokenizer's. ``special``: what the engine puts
        around a prompt where a request asks for it; None where that is not known (such a request is a bypass).
        ``quarantine`` says what is not trusted; None: all is.
        """
        self.name = name
        self.tokenizer = tokenizer
        self.template = template
        self.profile = profile
        self.settings = settings
        self.store = store
        self.vocab_size = tokenizer.vocab_size if vocab_size is None else vocab_size
        self._encoder: ChunkEncoder = tokenizer.encoder
        # A kept rope holds the certificate that it was made with.
        certificate = tokenizer.certificate.digest if tokenizer.certificate is not None else ""
        parts = (profile.name, template.digest, tokenizer.digest, certificate)
        self._identity = digest(*(part.encode() for part in parts))
        self._special = special
        self._quarantine = quarantine
        self._control = control_pattern(tokenizer.spec)

    def prepare(self, tenant: str, body: Mapping[str, Any], hint: str | None = None, *, wait: bool = True) -> Prepared:
        """The IDs for ``body``, a chat-completion request as `json.loads` reads it.

        Raises `Unrenderable` where they cannot be known to be the engine's own (the request then goes upstream as
        text), and `InvalidText` for a lone surrogate (`find_surrogate` names its place in the body). With ``wait``
        false it raises `SessionBusy` where it would have to wait for another request on the same session, and
        `TakesLong` where it would keep its caller for more than a few milliseconds.
        """
        started = time.perf_counter_ns()
        request = self.profile.normalise(body, self.template, self.settings)
        around = self._around(body)
        normalised = time.perf_counter_ns()
        text = self.template.render(request, None if wait else AT_ONCE_S)
        rendered = time.perf_counter_ns()
        wanted = self._fingerprint(tenant, body, request, hint)
        with self.store.lease(wanted, self._encoder, wait=wait) as lease:
            matched = time.perf_counter_ns()
            path = lease.path(len(text))
            made = self._repaired(lease, text, around) if self._trusts(path) else None
            marks = lease.marks + self._marks(wanted.packed[lease.shared :])
            if made is not None:
                lease.commit(marks)
        if made is None:
            if not wait:
                raise TakesLong("the reference")
            made = self._whole(text, around)
        ids, splice, before, spliced = made
        ids.flags.writeable = False
        return Prepared(
            ids=ids,
            text=text,
            path=path,
            cause=_cause(path, lease, splice),
            full=splice.full,
            messages=len(request.messages),
            chars=len(text),
            scanned=splice.scanned,
            common=splice.common,
            first_changed=_first_changed(splice, before, len(ids), around),
            lost_reuse_tokens=max(0, before - splice.first_changed),
            first_changed_message=_first_changed_message(lease, request),
            session=lease.session,
            stages={
                "normalise": (normalised - started) // 1000,
                "render": (rendered - normalised) // 1000,
                "match": (matched - rendered) // 1000,
                "splice": (spliced - matched) // 1000,
            },
            control_tokens=sum(marks),
            tokenizer_digest=self.tokenizer.digest,
            template_digest=self.template.digest,
        )

    def _trusts(self, path: Path) -> bool:
        """Whether the session may be used; if not, the whole text is for the reference. Raises `Unrenderable`."""
        level = None if self._quarantine is None else self._quarantine.level(self.tokenizer.digest, path)
        if level is Level.TEXT:
            raise Unrenderable(Bypass.QUARANTINED, path.value)
        return level is None

    def _repaired(self, lease: Lease, text: str, around: SpecialTokens | None) -> _Made:
        before = len(lease.rope.ids)
        try:
            splice = lease.rope.set(text)
        except CannotEncode as error:
            raise Unrenderable(Bypass.CANNOT_ENCODE, error.engine) from error
        ids = lease.rope.ids.copy() if around is None else around.around(lease.rope.ids)
        return self._made(ids, splice, before)

    def _whole(self, text: str, around: SpecialTokens | None) -> _Made:
        """By the reference, with nothing that was kept."""
        try:
            own = self.tokenizer.reference.encode(text)
        except CannotEncode as error:
            raise Unrenderable(Bypass.CANNOT_ENCODE, error.engine) from error
        ids = own.copy() if around is None else around.around(own)
        return self._made(ids, Splice(0, len(text), 0, 0, 0, FullEncode.QUARANTINED), 0)

    def _made(self, ids: Ids, splice: Splice, before: int) -> _Made:
        self._check_range(ids)
        return _Made(ids, splice, before, time.perf_counter_ns())

    def _around(self, body: Mapping[str, Any]) -> SpecialTokens | None:
        """What stands around the prompt of this request; the rope never holds it."""
        if not self.profile.adds_special_tokens(body):
            return None
        if self._special is None:
            raise Unrenderable(Bypass.ADD_SPECIAL_TOKENS, "add_special_tokens")
        return self._special

    def _fingerprint(
        self, tenant: str, body: Mapping[str, Any], request: RenderRequest, hint: str | None
    ) -> Fingerprint:
        # Requests that ask for different renderings are kept apart, even where these come out alike; those with special
        # tokens, too, so that `Prepared.first_changed` compares like with like.
        own = [body.get("chat_template_kwargs"), body.get("reasoning_effort")]
        asked = strict([*own, True] if self.profile.adds_special_tokens(body) else own)
        settings = digest(self._identity, strict(request.kwargs), asked)
        return fingerprint(Group(tenant, self.name, settings), request.messages, request.tools, hint)

    def _check_range(self, ids: Ids) -> None:
        """A tokenizer that knows more IDs than the engine has embeddings for would crash or poison the engine.

        All of them are asked, kept ones too: a request that was refused here may have left its text in the rope.
        """
        if len(ids) and int(ids.max()) >= self.vocab_size:
            raise Unrenderable(Bypass.TOKENIZER_MISMATCH, f"a token ID is not below the engine's {self.vocab_size}")

    def _marks(self, packed: Sequence[bytes]) -> bytes:
        """For each message 1 if it holds a special token's literal, else 0."""
        if self._control is None:
            return bytes(len(packed))
        search = self._control.search
        return bytes(search(form) is not None for form in packed)


def control_pattern(spec: Mapping[str, Any]) -> re.Pattern[bytes] | None:
    """Finds any special added token's literal in the strict form of a message (where strings stand as UTF-8)."""
    literals = {token["content"] for token in spec.get("added_tokens") or () if token.get("special")}
    forms = sorted(re.escape(literal.encode()) for literal in literals if literal)
    return re.compile(b"|".join(forms)) if forms else None


def _cause(path: Path, lease: Lease, splice: Splice) -> Cause:
    if path in (Path.EDIT, Path.COMPACTION):
        return Cause.TOOLS_CHANGED if lease.tools_changed else Cause.MESSAGES_EDITED
    if splice.full is FullEncode.QUARANTINED:
        return Cause.NONE  # the texts were not compared
    if path in (Path.APPEND, Path.RETRY) and splice.common < lease.previous_chars:
        return Cause.TEMPLATE_HISTORY_REWRITE
    return Cause.NONE


def _first_changed(splice: Splice, before: int, size: int, around: SpecialTokens | None) -> int:
    """`Splice.first_changed` in ``size`` IDs with what stands around them; the rope had ``before`` IDs."""
    if around is None:
        return splice.first_changed
    if before == 0:
        return 0
    unchanged = not splice.scanned and splice.first_changed == before
    return size if unchanged else len(around.prefix) + splice.first_changed


def _first_changed_message(lease: Lease, request: RenderRequest) -> int | None:
    if lease.previous is None or lease.shared == len(request.messages):
        return None
    return lease.shared if request.wire_index is None else request.wire_index[lease.shared]
