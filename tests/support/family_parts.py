"""What `families` is made of: patterns, stages, small trained models and post-processors."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers, trainers

from tests.conftest import ROOT
from tests.support.normalizing import precompiled, prepend, replace, sequence

Spec = dict[str, Any]

# --- patterns

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN_2 = CL100K.replace("{1,3}", "")
QWEN_3_5 = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _cased(suffix: str) -> str:
    start = r"[^\r\n\p{L}\p{N}]?"
    return f"{start}{_UPPER}*{_LOWER}+{suffix}|{start}{_UPPER}+{_LOWER}*{suffix}"


O200K = _cased(CONTRACTIONS + "?") + r"|\p{N}{1,3}" + _REST
TEKKEN = _cased("") + r"|\p{N}" + _REST
BLOOM = " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"
SEED = (
    CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}"
    + "\r\n"
    + r"]+|\s*["
    + "\r\n"
    + r"]+|\s+(?!\S)|\s+"
)
BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
JAIS_2 = CL100K.replace(
    r"|\s+(?!\S)|\s+",
    "".join(rf"|\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4)) + r"|\s{1,2}(?!\S)|\s{1}",
)
EXAONE_4 = (
    CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
DEEPSEEK_V3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^""" + "\r\n" + r"\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
    r" ?[\p{P}\p{S}]+[" + "\r\n" + r"]*|\s*[" + "\r\n" + r"]+|\s+(?!\S)|\s+"
)
CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
CJK_V3 = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
DEEPSEEK_LETTERS = (
    r"\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0370-\u0373\u0376\u0377"
    r"\u0391-\u03a1\u03a3-\u03f5\u0400-\u0481\u048a-\u052f\u0531-\u0556\u1e00-\u1f15\u2c00-\u2c7b\uff21-\uff3a]+"
)
DEEPSEEK_MARKS = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
AYA_DIGITS = r"\d{1,3}(?=(?:\d{3})*\b)"
SUPER_DIGITS = r"(?=(\d{3})+(?!\d))"
CHAMELEON = (r"<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )")
CLIP = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


# --- parts of a file


def split(pattern: str, behaviour: str = "Isolated", invert: bool = False, kind: str = "Regex") -> Spec:
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behaviour, "invert": invert}


def byte_level(use_regex: bool = True, add_prefix_space: bool = False) -> Spec:
    return {
        "type": "ByteLevel",
        "add_prefix_space": add_prefix_space,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def digits(individual: bool) -> Spec:
    return {"type": "Digits", "individual_digits": individual}


def metaspace(scheme: str = "always", split: bool = True) -> Spec:
    return {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": split}


def row(*parts: Spec) -> Spec:
    return {"type": "Sequence", "pretokenizers": list(parts)}


def splits(*patterns: str) -> Spec:
    """Splits by patterns, then the bytes: how most models of today are made."""
    return row(*map(split, patterns), byte_level(use_regex=False))


def bert(lowercase: bool) -> Spec:
    return {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": lowercase,
    }


def tokens(*contents: str, **flags: bool) -> list[Spec]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return [{"content": content, **plain, **flags} for content in contents]


def runs(char: str, *lengths: int, normalized: bool) -> list[Spec]:
    return tokens(*(char * n for n in lengths), normalized=normalized, special=False)


@cache
def charsmap() -> Spec:
    """What SentencePiece's ``nmt_nfkc`` holds, as far as a few hundred keys go."""
    points = [*range(0xA0, 0x180), *range(0x2000, 0x2070), 0x2122, *range(0x3000, 0x3003), *range(0xFF01, 0xFF60)]
    keys = {chr(c): unicodedata.normalize("NFKC", chr(c)) for c in points}
    keys |= {
        "\u304b\u3099": "\u304c",
        "e\u0301": "\u00e9",
        "\u200b": " ",
        "\ufeff": "",
        "\u00ad": "",
        "\u0300": "\u0300",
    }
    keys |= {chr(c): "" for c in (*range(1, 9), 0x0B, *range(0x0E, 0x20), 0x7F)}
    keys |= {"\t": " ", "\n": " ", "\r": " ", "\u200e": "", "\u2028": " "}
    return dict(precompiled({k: v for k, v in keys.items() if k != v}))


PREPEND = dict(sequence(prepend("\u2581"), replace("String", " ", "\u2581")))
UNDERLINED = replace("String", " ", "\u2581")
SQUEEZED = replace("Regex", " {2,}", " ")
NFC = {"type": "NFC"}


# --- vocabularies


@cache
def training_text() -> tuple[str, ...]:
    """Prose and code of this repository, and a few lines in other scripts."""
    names = ("README.md", "toktier/ids.py")
    lines = [line for name in names for line in (ROOT / name).read_text("utf-8").splitlines(keepends=True)]
    others = (
        "Она сказала: «Привет!»\n",
        "中文文本，没有空格。\n",
        "日本語のテキスト。\n",
        "한국어 문장입니다.\n",
        "Les élèves.\n",
    )
    return (*lines, *others * 4)


_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


_TRAINERS: dict[str, Callable[..., trainers.Trainer]] = {
    "BPE": trainers.BpeTrainer,
    "WordPiece": trainers.WordPieceTrainer,
    "Unigram": trainers.UnigramTrainer,
}
_EMPTY: dict[str, Spec] = {
    "BPE": {"vocab": {}, "merges": []},
    "WordPiece": {
        "vocab": {},
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
    },
    "Unigram": {"vocab": [], "unk_id": None},
}


def _trained(spec: Spec, kind: str, **options: Any) -> Spec:
    """The model that a trainer makes of the text as the file's normalizer and pre-tokenizer leave it."""
    steps = {name: spec[name] for name in ("normalizer", "pre_tokenizer")}
    return dict(_model(json.dumps({**steps, "model": {"type": kind, **_EMPTY[kind]}}), json.dumps(options)))


@cache
def _model(text: str, options: str) -> Spec:
    """By everything that it depends on."""
    engine = Tokenizer.from_str(text)
    kind = json.loads(text)["model"]["type"]
    engine.train_from_iterator(training_text(), _TRAINERS[kind](**json.loads(options), show_progress=False))
    model: Spec = json.loads(engine.to_str())["model"]
    return model


def bytes_bpe(spec: Spec, **flags: Any) -> Spec:
    return _trained(spec, "BPE", vocab_size=700, initial_alphabet=_ALPHABET) | flags


def sentence_bpe(spec: Spec, **flags: Any) -> Spec:
    """A BPE of SentencePiece: no merge goes across a word start, whatever the file says of splits."""
    reserved = ["<unk>", "<s>", "</s>", *_BYTES]
    model = _trained(
        {**spec, "pre_tokenizer": metaspace()}, "BPE", vocab_size=900, special_tokens=reserved, limit_alphabet=150
    )
    return model | {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True} | flags


def clip_bpe(spec: Spec) -> Spec:
    suffix, unknown = "</w>", "<|endoftext|>"
    model = _trained(
        spec,
        "BPE",
        vocab_size=1000,
        initial_alphabet=_ALPHABET,
        end_of_word_suffix=suffix,
        special_tokens=[unknown],
    )
    return model | {"unk_token": unknown, "continuing_subword_prefix": "", "end_of_word_suffix": suffix}


def word_piece(spec: Spec) -> Spec:
    reserved = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return _trained(spec, "WordPiece", vocab_size=800, special_tokens=reserved) | {"unk_token": "[UNK]"}


def unigram(spec: Spec) -> Spec:
    reserved = ["<unk>", "<s>", "</s>", "<pad>"]
    return _trained(spec, "Unigram", vocab_size=400, special_tokens=reserved, unk_token="<unk>")


# --- post-processors


def template(before: Iterable[str], after: Iterable[str] = ()) -> Callable[[Callable[[str], int]], Spec]:
    before, after = list(before), list(after)

    def made(number: Callable[[str], int]) -> Spec:
        pieces: list[Spec] = [{"SpecialToken": {"id": t, "type_id": 0}} for t in before]
        pieces += [{"Sequence": {"id": "A", "type_id": 0}}]
        pieces += [{"SpecialToken": {"id": t, "type_id": 0}} for t in after]
        held = {t: {"id": t, "ids": [number(t)], "tokens": [t]} for t in {*before, *after}}
        return {"type": "TemplateProcessing", "single": pieces, "pair": pieces, "special_tokens": held}

    return made


def classic(kind: str, cls: str, sep: str) -> Callable[[Callable[[str], int]], Spec]:
    flags = {"trim_offsets": True, "add_prefix_space": True} if kind == "RobertaProcessing" else {}
    return lambda number: {"type": kind, "cls": [cls, number(cls)], "sep": [sep, number(sep)], **flags}


def offsets_only(number: Callable[[str], int]) -> Spec:
    return byte_level()
