"""Whether raw ``tokenizer.json`` and the tokenizer object that an engine makes of the same files agree.

vLLM and SGLang call ``AutoTokenizer.from_pretrained(...).encode(text, add_special_tokens=False)``. transformers does
not take ``tokenizer.json`` as it is: it adds tokens of ``tokenizer_config.json``, ``added_tokens.json`` and
``special_tokens_map.json``, may rebuild normalizer and splits from the class that the configuration names, and may
correct known faults. The reference is right only where the outcome is the same, so both encode a probe set, once per
model. A difference means that the model must be served in text mode.

The comparison runs in a process of its own (`toktier.parity_worker`): transformers costs seconds and hundreds of MB.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from toktier import files as sources
from toktier.errors import UnusableFile
from toktier.tokenizer import FrozenTokenizer, engine_versions

WORKER = Path(__file__).with_name("parity_worker.py")
TIMEOUT_S = 300.0

OTHER_FILES = ("vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "tiktoken.model", "tekken.json")
"""Files that TokTier does not read and transformers may."""


class Outcome(StrEnum):
    """Only `DIFFERENT` says that IDs must not be sent. The last two say that nothing is known."""

    EQUAL = "equal"
    DIFFERENT = "different"
    NOT_INSTALLED = "not_installed"
    FAILED = "failed"


@dataclass(frozen=True)
class Parity:
    """``different``: indices into `probes` of the texts whose IDs differ. ``detail`` is for logs: it holds no text."""

    outcome: Outcome
    detail: str
    different: tuple[int, ...] = ()


def compare_with_transformers(tokenizer: FrozenTokenizer, *, timeout_s: float = TIMEOUT_S) -> Parity:
    """Compares ``tokenizer.reference`` with `AutoTokenizer` on the same files. Blocks for seconds; never raises."""
    if importlib.util.find_spec("transformers") is None:
        return Parity(Outcome.NOT_INSTALLED, "transformers is not installed here")
    texts = list(probes(tokenizer))
    try:
        with tempfile.TemporaryDirectory(prefix="toktier-parity-") as scratch:
            answer = _ask(_folder(tokenizer, Path(scratch)), texts, timeout_s)
    except (OSError, UnusableFile, ValueError, subprocess.SubprocessError) as error:
        return Parity(Outcome.FAILED, f"{type(error).__name__}: {error}")
    if "error" in answer:
        return Parity(Outcome.FAILED, f"AutoTokenizer could not be used: {answer['error']}")
    by = f"transformers {answer['version']}"
    theirs = answer["ids"]
    if len(theirs) != len(texts):
        return Parity(Outcome.FAILED, f"{by} encoded {len(theirs)} of {len(texts)} texts")
    different = tuple(
        i
        for i, (text, ids) in enumerate(zip(texts, theirs, strict=True))
        if not np.array_equal(tokenizer.reference.encode(text), np.array(ids, np.int64))
    )
    if different:
        return Parity(Outcome.DIFFERENT, f"{by} differs on {len(different)} of {len(texts)} probe texts", different)
    return Parity(Outcome.EQUAL, f"{by} agrees on {len(texts)} probe texts")


def probes(tokenizer: FrozenTokenizer) -> Iterator[str]:
    """The probe set: `PROBES`, then every literal that any of the tokenizer's files names, in context."""
    yield from PROBES
    literals = sorted(_literals(tokenizer))
    for literal in literals[:256]:
        yield f"a {literal} b{literal}\n{literal}{literal} {literal[1:]}"
    for start in range(256, len(literals), 16):
        yield " a".join(literals[start : start + 16])


def _literals(tokenizer: FrozenTokenizer) -> set[str]:
    found = {token["content"] for token in tokenizer.spec.get("added_tokens") or []}
    pending: list[Any] = [tokenizer.config.get("added_tokens_decoder")]
    pending += [value for name, value in tokenizer.config.items() if name.endswith(("_token", "_tokens"))]
    if "special_tokens_map.json" in tokenizer.files:
        pending.append(sources.parse_object(tokenizer.files["special_tokens_map.json"], "special_tokens_map.json"))
    if "added_tokens.json" in tokenizer.files:
        found |= sources.parse_object(tokenizer.files["added_tokens.json"], "added_tokens.json").keys()
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            found.add(value)
        elif isinstance(value, list):
            pending += value
        elif isinstance(value, dict):
            pending += [value["content"]] if isinstance(value.get("content"), str) else value.values()
    return found - {""}


def _folder(tokenizer: FrozenTokenizer, scratch: Path) -> Path:
    """The folder that `AutoTokenizer` is given: the source's own, or a plain copy of it in ``scratch``."""
    read = sources.read(tokenizer.source, revision=tokenizer.revision)
    if read.digest(engine_versions()) != tokenizer.digest:
        raise UnusableFile(f"the files of {tokenizer.source} have changed since they were loaded; load them again")
    if not read.compressed:
        return read.folder
    (scratch / sources.MODEL_FILE).write_bytes(read.tokenizer)
    for name, content in read.small.items():
        path = scratch / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    for name in OTHER_FILES:
        if (read.folder / name).is_file():
            (scratch / name).symlink_to((read.folder / name).resolve())
    return scratch


def _ask(folder: Path, texts: list[str], timeout_s: float) -> dict[str, Any]:
    done = subprocess.run(  # noqa: S603 (this interpreter, our own file)
        [sys.executable, "-P", str(WORKER), str(folder)],
        input=json.dumps(texts).encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=timeout_s,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


PROBES = (
    "",
    "Hello, world!",
    " leading space",
    "  two leading spaces",
    "trailing space ",
    "trailing newline\n",
    "\n\n\nthree newlines first",
    "tabs\tand\t\tmore \t mixed",
    "carriage\r\nreturns\r\rand\n\r",
    "it's we'll I'D you're THEY'VE can'T o'clock ''' 's",
    "x'ſ I'ſ straße STRASSE ﬁ ﬂ",
    "0 12 123 1234 12345 3.14159 1,000,000 0x7fff 1e-9",
    "٣٤٥ ½ ² Ⅷ ①",
    "snake_case camelCase PascalCase SCREAMING_CASE kebab-case",
    'def f(x: int) -> str:\n    return f"{x!r}"\n\n\nclass A:\n\tpass\n',
    "for (let i = 0; i < n; i++) { a[i] += b[i] >>> 2; } // ok",
    "SELECT * FROM t WHERE a <> 'b''c' AND d >= 10;",
    '{"a": [1, 2.5, null, true], "b": {"c": "\\u00e9\\n"}}',
    '<div class="x">a &amp; b</div><!-- c -->',
    "# Title\n\n- item\n  - nested\n\n```python\nprint('hi')\n```\n",
    "| a | b |\n|---|---|\n| 1 | 2 |",
    "https://example.org/a/b?c=d&e=%20#f user@example.org C:\\dir\\file.txt /usr/bin/env",
    "2026-11-30T12:34:56.789Z ERROR [main] a.b.C: failed (code=-1)",
    "!!! ??? ... --- === *** ___ ~~~ ^^^ ((())) [[[]]] {{{}}}",
    "a .b ,c ;d !e ?f 'g \"h",
    "clean up : do n't , do not . I 'm ok 's",
    "中文没有空格，标点。“引号”",
    "日本語のテキスト、カタカナ、ｶﾞ ー々",
    "한국어 문장입니다. ᄒ ᅡ ᆫ",
    "Привет, мир! Ελληνικά Հայերեն",
    "שלום עולם مرحبا بالعالم",
    "हिन्दी पाठ क़ হয় য়",
    "ภาษาไทย น้ำ ພາສາລາວ",
    "é e\u0301 ñ n\u0303 Å A\u030a \u1e9b\u0323 q\u0307\u0323",
    "😀 🫨 👨‍👩‍👧 🇩🇪 👍🏽 ❤️",
    "zero\u200bwidth\u200djoin \ufeffbom \u2028line\u2029par",
    "nbsp\u00a0thin\u2009ideographic\u3000end",
    "mongolian\u180evowel separator \u180e",
    "NUL\x00 bell\x07 esc\x1b[0m del\x7f",
    "private \ue000 unassigned \u0378 \U000323b0 last \U0010ffff",
    "▁ metaspace ▁▁ Ġ Ċ byte symbols",
    "a" * 70,
    " " * 70 + "x",
    "ab " * 40,
    "=" * 80 + "\n" + "-" * 79,
    "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n",
    "<|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|><|begin_of_text|>",
    "<bos><start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\n",
    "<s>[INST] <<SYS>>\ns\n<</SYS>>\n\nhi [/INST] ok </s>",
    "<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜></think>",
    "<|start|>system<|message|>s<|end|><|start|>assistant<|channel|>final<|message|>ok<|return|>",
    '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call><tool_response>\nr\n</tool_response>',
    "<|im_start |> <| im_end|> <|im_end| > <think ></ think>",
)
