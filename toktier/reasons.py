"""Every reason, by one name: code, log, metrics and docs/bypass.md share these enums.

Invariant: a request that is not repaired says why, with a member of `Bypass` (forwarded untouched, as text) or of
`FullEncode` (IDs are sent, but the whole text was encoded). There is no third way and no free-text reason. `FullRender`
says why a repaired one was rendered as a whole, `Gpu` why a text that a GPU might have encoded was encoded by the CPU.
"""

from __future__ import annotations

from enum import StrEnum


class Path(StrEnum):
    """What a request was, compared with the session that it continued."""

    INIT = "init"
    APPEND = "append"
    EDIT = "edit"
    COMPACTION = "compaction"
    RETRY = "retry"
    BYPASS = "bypass"
    GPU = "gpu"
    """No request's own path: in quarantine it stands for whatever IDs of a tokenizer came from a GPU."""


class Cause(StrEnum):
    """Why the kept tokens end where they do, where the reason is known. Diagnostic only."""

    NONE = "none"
    MESSAGES_EDITED = "messages_edited"
    TOOLS_CHANGED = "tools_changed"
    TEMPLATE_HISTORY_REWRITE = "template_history_rewrite"
    TEMPLATE_VS_MODEL = "template_vs_model"


class FullEncode(StrEnum):
    """Why the whole text was encoded although IDs were sent."""

    NO_SESSION = "no_session"
    NO_CERTIFICATE = "no_certificate"
    NO_CUT = "no_cut"
    SHORT_TEXT = "short_text"
    QUARANTINED = "quarantined"


class FullRender(StrEnum):
    """Why the template rendered the whole request, and not only what changed since the session's last one.

    What `toktier.folding.reasons.Fallback` names has the same name here.
    """

    NOTHING_KEPT = "nothing_kept"
    QUARANTINED = "quarantined"
    UNFOLDABLE = "unfoldable"
    ERROR = "error"
    NOT_PLAIN = "not_plain"
    STATEFUL = "stateful"
    STATE = "state"
    SEQUENCE = "sequence"
    PAUSED = "paused"


class Gpu(StrEnum):
    """What became of text for which there might be a GPU: `USED`, or why the CPU encoded it. `GPU_HELP` has the
    sentences.
    """

    USED = "used"
    # the machine
    NO_DRIVER = "no_driver"
    NO_PYCUDA = "no_pycuda"
    NO_KERNELS = "no_kernels"
    NO_DEVICE = "no_device"
    WRONG_ARCHITECTURE = "wrong_architecture"
    # the tokenizer
    LOADING = "loading"
    REFUSED = "refused"
    SELF_CHECK = "self_check"
    SLOWER = "slower"
    QUARANTINED = "quarantined"
    # the text
    SMALL = "small"
    TOO_LARGE = "too_large"
    LONG_PIECE = "long_piece"
    NOT_NORMAL = "not_normal"
    MANY_LITERALS = "many_literals"
    KERNEL_FAULT = "kernel_fault"
    # the moment
    AT_ONCE = "at_once"
    BUSY = "busy"
    PAUSED = "paused"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    DEVICE_LOST = "device_lost"
    INTERNAL_ERROR = "internal_error"
    CLOSED = "closed"


GPU_HELP: dict[Gpu, str] = {
    Gpu.USED: "the GPU encoded it",
    Gpu.NO_DRIVER: "there is no NVIDIA driver, or it does not start",
    Gpu.NO_PYCUDA: "PyCUDA is not installed: `pip install 'toktier-proxy[gpu]'`",
    Gpu.NO_KERNELS: "the package has no compiled kernels, or others than its sources are: `make kernels`",
    Gpu.NO_DEVICE: "the driver knows no such device",
    Gpu.WRONG_ARCHITECTURE: "the kernels have no code for this device",
    Gpu.LOADING: "tables are being made, or a device is being opened and checked",
    Gpu.REFUSED: "the kernels have no rule for a part of the tokenizer; the log names it",
    Gpu.SELF_CHECK: "the GPU's IDs of some text were not the reference's when it was checked; a fault of TokTier",
    Gpu.SLOWER: "the GPU was no faster than the CPU, at any size when both were measured, or for the last texts",
    Gpu.QUARANTINED: "IDs from a GPU were wrong; an operator must look",
    Gpu.SMALL: "the text is below the size from which the GPU is faster",
    Gpu.TOO_LARGE: "a stretch between two cuts is larger than one launch takes (`gpu.max_bytes`)",
    Gpu.LONG_PIECE: "a stretch without a cut is so long that the reference may give up on it: that is for it to say",
    Gpu.NOT_NORMAL: "a long stretch without a cut has to be normalised",
    Gpu.MANY_LITERALS: "the text holds too many literals of added tokens",
    Gpu.KERNEL_FAULT: "the kernels met a stretch for which they have no rule",
    Gpu.AT_ONCE: "the caller may not wait for a device",
    Gpu.BUSY: "too much text waits for the devices already (`gpu.queue_bytes`)",
    Gpu.PAUSED: "no device is trusted at present: one failed, and is tried again after a while",
    Gpu.TIMEOUT: "the device did not answer within `gpu.timeout_s`",
    Gpu.OUT_OF_MEMORY: "the device or the machine has no memory for a text of that size",
    Gpu.DEVICE_LOST: "a call of the driver failed; after a fault in a kernel the process must be started again",
    Gpu.INTERNAL_ERROR: "an unexpected error; the log has its place",
    Gpu.CLOSED: "the process ends",
}


class Bypass(StrEnum):
    """Why a request went upstream as text, without IDs. `BYPASS_HELP` has the sentence for people."""

    # the request
    MULTIMODAL = "multimodal"
    ECHO = "echo"
    REQUEST_TEMPLATE = "request_template"
    DOCUMENTS = "documents"
    CONTINUE_FINAL_MESSAGE = "continue_final_message"
    NO_GENERATION_PROMPT = "no_generation_prompt"
    ADD_SPECIAL_TOKENS = "add_special_tokens"
    TRUNCATE_PROMPT_TOKENS = "truncate_prompt_tokens"
    BEAM_SEARCH = "beam_search"
    CLIENT_KV_TRANSFER_PARAMS = "client_kv_transfer_params"
    CLIENT_NVEXT = "client_nvext"
    DUPLICATE_KEYS = "duplicate_keys"
    UNSUPPORTED_MESSAGE = "unsupported_message"
    UNSUPPORTED_TOOLS = "unsupported_tools"
    UNSUPPORTED_KWARGS = "unsupported_kwargs"
    PROMPT_TEXT_ASKED = "prompt_text_asked"
    BATCH_ROUTE = "batch_route"
    # rendering
    TEMPLATE_ERROR = "template_error"
    TEMPLATE_LIMIT = "template_limit"
    CLOCK = "clock"
    RANDOM = "random"
    NO_TEMPLATE = "no_template"
    RENDERER_NOT_JINJA = "renderer_not_jinja"
    CANNOT_ENCODE = "cannot_encode"
    # the model or the upstream
    TEXT_MODE_CONFIGURED = "text_mode_configured"
    TOKENIZER_UNAVAILABLE = "tokenizer_unavailable"
    TOKENIZER_MISMATCH = "tokenizer_mismatch"
    UPSTREAM_UNPROBED = "upstream_unprobed"
    UPSTREAM_IGNORES_IDS = "upstream_ignores_ids"
    UPSTREAM_PARITY = "upstream_parity"
    UPSTREAM_REFUSED_IDS = "upstream_refused_ids"
    # this process
    QUARANTINED = "quarantined"
    PREPARE_TIMEOUT = "prepare_timeout"
    INTERNAL_ERROR = "internal_error"


BYPASS_HELP: dict[Bypass, str] = {
    Bypass.MULTIMODAL: "a message has a part that is not text; token IDs have no place for media",
    Bypass.ECHO: "echo was asked for; engines ignore IDs then",
    Bypass.REQUEST_TEMPLATE: "the request brings its own chat template",
    Bypass.DOCUMENTS: "documents are passed to the template (RAG)",
    Bypass.CONTINUE_FINAL_MESSAGE: "the last message is to be continued (prefill)",
    Bypass.NO_GENERATION_PROMPT: "add_generation_prompt is false",
    Bypass.ADD_SPECIAL_TOKENS: "add_special_tokens is true, and what the engine puts around the prompt is not known",
    Bypass.TRUNCATE_PROMPT_TOKENS: "the engine is to truncate the prompt; it does so only to text",
    Bypass.BEAM_SEARCH: "beam search is asked for",
    Bypass.CLIENT_KV_TRANSFER_PARAMS: "the client brings its own kv_transfer_params",
    Bypass.CLIENT_NVEXT: "the client brings its own nvext",
    Bypass.DUPLICATE_KEYS: "the body names a key twice; engines differ in which one counts",
    Bypass.UNSUPPORTED_MESSAGE: "a message has a shape whose normalisation is not proven equal to the engine's",
    Bypass.UNSUPPORTED_TOOLS: "tools have a shape whose normalisation is not proven equal to the engine's",
    Bypass.UNSUPPORTED_KWARGS: "template arguments (chat_template_kwargs, reasoning_effort) beyond plain variables",
    Bypass.PROMPT_TEXT_ASKED: "the reply is to quote the prompt's text, which an engine given IDs does not have",
    Bypass.BATCH_ROUTE: "batch routes take no IDs",
    Bypass.TEMPLATE_ERROR: "the chat template raised; the engine's own answer is relayed",
    Bypass.TEMPLATE_LIMIT: "the chat template took longer, or made more text, than the model's settings allow",
    Bypass.CLOCK: "the template prints the time, and what it prints may change before the engine would print it",
    Bypass.RANDOM: "the template makes a random choice, and the engine's would be another",
    Bypass.NO_TEMPLATE: "the model has no chat template",
    Bypass.RENDERER_NOT_JINJA: "the engine renders this model with code, not with a Jinja template",
    Bypass.CANNOT_ENCODE: "the reference gave up on the text (a run too long for its regex engine)",
    Bypass.TEXT_MODE_CONFIGURED: "the configuration keeps this model in text mode",
    Bypass.TOKENIZER_UNAVAILABLE: "the tokenizer could not be loaded",
    Bypass.TOKENIZER_MISMATCH: "tokenizer.json and the engine's own tokenizer object disagree",
    Bypass.UPSTREAM_UNPROBED: "the upstream has not been probed yet",
    Bypass.UPSTREAM_IGNORES_IDS: "the probe showed that the upstream does not honour IDs",
    Bypass.UPSTREAM_PARITY: "our IDs and the upstream's own differ",
    Bypass.UPSTREAM_REFUSED_IDS: "the upstream answered 400 about the IDs; sent again as text",
    Bypass.QUARANTINED: "IDs of this kind of request were wrong, and those of the reference too; an operator must look",
    Bypass.PREPARE_TIMEOUT: "rendering and encoding took too long, or too many requests hang there",
    Bypass.INTERNAL_ERROR: "an unexpected error in TokTier; the request went on untouched",
}
