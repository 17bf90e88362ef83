"""The texts on which raw ``tokenizer.json`` and an engine's tokenizer object are compared (`toktier.parity`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from toktier import files as sources
from toktier.files import TokenizerFiles


def probes(read: TokenizerFiles) -> Iterator[str]:
    """The probe set: `PROBES`, then every literal that any of the tokenizer's files names, in context.

    Raises `UnusableFile`.
    """
    yield from PROBES
    literals = sorted(_literals(read))
    for literal in literals[:256]:
        yield f"a {literal} b{literal}\n{literal}{literal} {literal[1:]}"
    for start in range(256, len(literals), 16):
        yield " a".join(literals[start : start + 16])


def _literals(read: TokenizerFiles) -> set[str]:
    spec = sources.parse_object(read.tokenizer, read.model_name)
    config = read.json("tokenizer_config.json")
    found: set[str] = set()
    pending: list[Any] = [spec.get("added_tokens"), config.get("added_tokens_decoder")]
    pending += [value for name, value in config.items() if name.endswith(("_token", "_tokens"))]
    pending.append(read.json("special_tokens_map.json"))
    found |= read.json("added_tokens.json").keys()
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            found.add(value)
        elif isinstance(value, list):
            pending += value
        elif isinstance(value, dict):
            pending += [value["content"]] if isinstance(value.get("content"), str) else value.values()
    return found - {""}


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
