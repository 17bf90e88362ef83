"""Seeded text that looks like an agent's context: code, prose, logs, JSON and some Chinese and Japanese."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

_ENGLISH = """the of and to in is that for it with as on be at by this from or an are not if when which will can should
use file path value error request response token session model user assistant system tool call result line test data
type name list number change build check return index config server client cache buffer thread process memory string
write read open close start stop update remove create delete before after every first last other same different small
large fast slow exact wrong right missing empty full over under between without because while until however"""
_WORDS = _ENGLISH.split()
_SOUNDS = "ba be bi bo bu da de di do ka ke ki ko la le li lo ma me mi mo na ne ni no ra re ri ro sa se si ta te ti to"
_SYLLABLES = _SOUNDS.split()
_HANZI = "的一是在不了有和人这中大为上个国我以要他时来用们生到作地于出就分对成会可主发年动同工也能下过子说产种面而方"
_KANA = (
    "あいうえおかきくけこさしすせそたちつてとなにぬねのはひふへほまみむめもやゆよらりるれろわをんアイウエオカキクケコ"
)


def corpus(seed: int, chars: int) -> str:
    """Exactly ``chars`` characters; the same for the same seed. About one part in twelve is CJK."""
    chance = random.Random(seed)
    parts: list[str] = []
    size = 0
    while size < chars:
        part = chance.choices(_STYLES, weights=_WEIGHTS)[0](chance)
        parts.append(part)
        size += len(part)
    return "".join(parts)[:chars]


TURN_END, TURN_BEGIN = "<|im_end|>\n", "<|im_start|>{role}\n"
PROMPT = TURN_BEGIN.format(role="assistant")
"""What a rendered request ends with: the engine is to go on."""


def chat(seed: int, chars: int) -> str:
    """Exactly ``chars`` characters of an agent's session as Qwen3's template renders it, up to `PROMPT`."""
    chance = random.Random(f"chat {seed}")
    text = corpus(seed, chars)
    parts: list[str] = []
    roles = ("system", "user", "assistant", "user")
    size, at, number = len(TURN_END + PROMPT), 0, 0
    while True:
        begin = TURN_BEGIN.format(role=roles[min(number, 2) + (number % 2 if number > 2 else 0)])
        room = chars - size - len(begin)
        take = chance.randint(300, 1_100)
        if room - take < 100:
            break
        parts += [begin, text[at : at + take], TURN_END]
        size += len(begin) + take + len(TURN_END)
        at, number = at + take, number + 1
    parts += [begin, text[at : at + room], TURN_END, PROMPT]
    return "".join(parts)[-chars:]


def _word(chance: random.Random) -> str:
    if chance.random() < 0.8:
        return chance.choice(_WORDS)
    return "".join(chance.choices(_SYLLABLES, k=chance.randint(2, 4)))


def _sentence(chance: random.Random) -> str:
    words = [_word(chance) for _ in range(chance.randint(5, 18))]
    return " ".join(words).capitalize() + chance.choice((". ", ". ", "; ", "? ", ".\n\n"))


def _prose(chance: random.Random) -> str:
    return "".join(_sentence(chance) for _ in range(chance.randint(2, 6)))


def _code(chance: random.Random) -> str:
    name, argument = f"{_word(chance)}_{_word(chance)}", _word(chance)
    lines = [f"def {name}({argument}: int, limit: int = {chance.randint(0, 9999)}) -> list[str]:"]
    lines.append(f'    """{_sentence(chance).strip()}"""')
    for _ in range(chance.randint(2, 7)):
        target, source = _word(chance), _word(chance)
        lines.append(
            chance.choice(
                (
                    f"    {target} = self.{source}.get('{_word(chance)}', {chance.randint(0, 255)})",
                    f"    if {target} != {source} and len({source}) >= {chance.randint(1, 64)}:\n        return None",
                    f"    for {target} in range({chance.randint(2, 99)}):\n        {source}.append({target} * 0x1F)",
                )
            )
        )
    return "\n".join([*lines, f"    return {argument}", "", ""])


def _log(chance: random.Random) -> str:
    hour, minute, second = chance.randint(0, 23), chance.randint(0, 59), chance.random() * 60
    when = f"2026-{chance.randint(1, 12):02}-{chance.randint(1, 28):02}T{hour:02}:{minute:02}:{second:06.3f}Z"
    source = f"{_word(chance)}-{chance.randint(1, 64)}"
    return f"{when} {chance.choice(('INFO', 'WARN', 'DEBUG', 'ERROR'))} [{source}] {_sentence(chance).strip()}\n"


def _json(chance: random.Random) -> str:
    value = {_word(chance): chance.choice((chance.randint(0, 10**6), chance.random(), _word(chance))) for _ in range(6)}
    return json.dumps(value, indent=chance.choice((None, 2))) + "\n"


def _cjk(chance: random.Random) -> str:
    alphabet, stop = chance.choice(((_HANZI, "。"), (_HANZI, "，"), (_KANA, "。")))
    return "".join(chance.choices(alphabet, k=chance.randint(10, 90))) + stop


_STYLES: tuple[Callable[[random.Random], str], ...] = (_prose, _code, _log, _json, _cjk)
_WEIGHTS = (6, 6, 8, 3, 10)

STYLES: dict[str, Callable[[random.Random], str]] = {"code": _code, "prose": _prose, "logs": _log, "CJK": _cjk}
"""What `styled` can write."""


def styled(style: str, seed: int, chars: int) -> str:
    """Exactly ``chars`` characters of one of `STYLES`; the same for the same seed."""
    chance = random.Random(f"{style} {seed}")
    parts: list[str] = []
    size = 0
    while size < chars:
        parts.append(STYLES[style](chance))
        size += len(parts[-1])
    return "".join(parts)[:chars]


WORST = ("code", "CJK", "one letter", "spaces", "newlines", "digits", "base64", "one literal")
_BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_DRAWN = {"CJK": _HANZI, "digits": "0123456789", "base64": _BASE64}  # no line ends, no full stops
_REPEATED = {"one letter": "a", "spaces": " ", "newlines": "\n"}


def worst(kind: str, seed: int, chars: int, literal: str) -> str:
    """Exactly ``chars`` characters of one of `WORST`; ``literal`` is what the last of them repeats."""
    if kind == "code":
        return styled("code", seed, chars)
    if kind in _DRAWN:
        return "".join(random.Random(f"{kind} {seed}").choices(_DRAWN[kind], k=chars))
    repeated = _REPEATED.get(kind, literal)
    return (repeated * (chars // len(repeated) + 1))[:chars]
