"""The tokenizers that people serve, in small: per family a ``tokenizer.json`` whose normalizer, pre-tokenizer, added
tokens, post-processor and model flags are those of a published one, with a vocabulary of a few hundred entries.

Where models of one family differ, one of them is taken. Sources: the families' own files and papers, and the patterns
that llama.cpp lists by family.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers, trainers

from tests.conftest import ROOT
from tests.support.normalizing import precompiled, prepend, replace, sequence, strip

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
def _charsmap() -> Spec:
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


def _template(before: Iterable[str], after: Iterable[str] = ()) -> Callable[[Callable[[str], int]], Spec]:
    before, after = list(before), list(after)

    def made(number: Callable[[str], int]) -> Spec:
        pieces: list[Spec] = [{"SpecialToken": {"id": t, "type_id": 0}} for t in before]
        pieces += [{"Sequence": {"id": "A", "type_id": 0}}]
        pieces += [{"SpecialToken": {"id": t, "type_id": 0}} for t in after]
        held = {t: {"id": t, "ids": [number(t)], "tokens": [t]} for t in {*before, *after}}
        return {"type": "TemplateProcessing", "single": pieces, "pair": pieces, "special_tokens": held}

    return made


def _classic(kind: str, cls: str, sep: str) -> Callable[[Callable[[str], int]], Spec]:
    flags = {"trim_offsets": True, "add_prefix_space": True} if kind == "RobertaProcessing" else {}
    return lambda number: {"type": kind, "cls": [cls, number(cls)], "sep": [sep, number(sep)], **flags}


def _offsets_only(number: Callable[[str], int]) -> Spec:
    return byte_level()


# --- families


@dataclass(frozen=True)
class Family:
    """``post``: given the ID of a token by its content. ``refused``: the construct for which there is no certificate;
    ``words``: whether words of a prose text are cut apart."""

    name: str
    normalizer: Spec | None
    pre_tokenizer: Spec | None
    model: Callable[[Spec], Spec]
    added: list[Spec]
    post: Callable[[Callable[[str], int]], Spec] | None = None
    refused: str | None = None
    words: bool = True

    def spec(self) -> Spec:
        """The ``tokenizer.json``, parsed."""
        spec: Spec = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [],
            "normalizer": self.normalizer,
            "pre_tokenizer": self.pre_tokenizer,
            "post_processor": None,
            "decoder": None,
        }
        model = self.model(spec)
        vocab = model["vocab"]
        known = vocab if isinstance(vocab, dict) else {entry[0]: k for k, entry in enumerate(vocab)}
        added, numbers = [], dict(known)
        for token in self.added:
            number = numbers.setdefault(token["content"], len(numbers))
            added.append({"id": number, **token})
        post = self.post(numbers.__getitem__) if self.post else None
        return {**spec, "model": model, "added_tokens": added, "post_processor": post}


def _bpe(**flags: Any) -> Callable[[Spec], Spec]:
    return lambda spec: bytes_bpe(spec, **flags)


def _sentences(**flags: Any) -> Callable[[Spec], Spec]:
    return lambda spec: sentence_bpe(spec, **flags)


_CONTROL = tokens("<unk>", "<s>", "</s>")
_CHAT = tokens("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_MASKED = tokens("<s>", "</s>", "<unk>", "<pad>", normalized=True) + tokens("<mask>", lstrip=True)
_ROBERTA = _classic("RobertaProcessing", "<s>", "</s>")

FAMILIES = (
    Family("GPT-2", None, byte_level(), _bpe(), tokens("<|endoftext|>", normalized=True), _offsets_only),
    Family("RoBERTa", None, byte_level(), _bpe(), _MASKED, _ROBERTA),
    Family("BART with a prefix", None, byte_level(add_prefix_space=True), _bpe(), _MASKED, _ROBERTA),
    Family("OPT", None, byte_level(), _bpe(), tokens("<pad>", "</s>", normalized=True), _template(["</s>"])),
    Family(
        "GPT-NeoX, Pythia, OLMo",
        NFC,
        byte_level(),
        _bpe(),
        tokens("<|endoftext|>", "<|padding|>") + runs(" ", *range(2, 25), normalized=True),
        _offsets_only,
    ),
    Family(
        "Phi-2, CodeGen",
        None,
        byte_level(),
        _bpe(),
        tokens("<|endoftext|>", normalized=True)
        + runs(" ", *range(2, 32), normalized=True)
        + runs("\t", *range(2, 10), normalized=True),
        _offsets_only,
    ),
    Family(
        "Whisper",
        None,
        byte_level(),
        _bpe(),
        tokens("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|transcribe|>")
        + tokens("<|0.00|>", "<|0.02|>", "<|0.04|>", special=False),
        _template(["<|startoftranscript|>", "<|en|>", "<|transcribe|>"], ["<|endoftext|>"]),
    ),
    Family(
        "ModernBERT",
        NFC,
        byte_level(),
        _bpe(),
        tokens("[UNK]", "[CLS]", "[SEP]", "[PAD]")
        + tokens("[MASK]", lstrip=True)
        + tokens("|||IP_ADDRESS|||", normalized=True, special=False)
        + runs(" ", *range(2, 25), normalized=True),
        _template(["[CLS]"], ["[SEP]"]),
    ),
    Family("StarCoder, SmolLM, Granite 3", None, row(digits(True), byte_level()), _bpe(), _CHAT),
    Family(
        "Command-R, Aya",
        NFC,
        row(digits(True), byte_level()),
        _bpe(),
        tokens("<BOS_TOKEN>"),
        _template(["<BOS_TOKEN>"]),
    ),
    Family(
        "Falcon",
        None,
        row(
            {"type": "Punctuation", "behavior": "Contiguous"},
            byte_level(),
            digits(False),
            split("[0-9][0-9][0-9]"),
        ),
        _bpe(),
        tokens("<|endoftext|>", ">>QUESTION<<"),
    ),
    Family("BLOOM", None, splits(BLOOM), _bpe(), tokens("<unk>", "<s>", "</s>")),
    Family("Viking, Poro", NFC, row(split(BLOOM), digits(True), byte_level(use_regex=False)), _bpe(), tokens("<s>")),
    Family("cl100k: OLMo 2, Granite 4, DBRX", None, splits(CL100K), _bpe(), _CHAT),
    Family(
        "Llama 3",
        None,
        splits(CL100K),
        _bpe(ignore_merges=True),
        tokens("<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"),
        _template(["<|begin_of_text|>"]),
    ),
    Family(
        "GLM-4", None, splits(CL100K), _bpe(), tokens("[gMASK]", "<sop>", "<|user|>"), _template(["[gMASK]", "<sop>"])
    ),
    Family("Qwen 1.5 to 3", NFC, splits(QWEN_2), _bpe(), _CHAT + tokens("<think>", special=False), _offsets_only),
    Family("Qwen 3.5", NFC, splits(QWEN_3_5), _bpe(), _CHAT, _offsets_only),
    Family("o200k: gpt-oss, Llama 4, MiniMax", None, splits(O200K), _bpe(ignore_merges=True), _CHAT),
    Family(
        "Mistral Nemo, Tekken, Nemotron", None, splits(TEKKEN), _bpe(ignore_merges=True), tokens("[INST]", "[/INST]")
    ),
    Family("Seed", None, splits(SEED), _bpe(), tokens("<seed:bos>")),
    Family("Ling", None, splits(BAILING), _bpe(), tokens("<role>", "</role>")),
    Family("Jais 2", None, splits(JAIS_2), _bpe(), _CHAT),
    Family(
        "DeepSeek Coder",
        None,
        row(
            *map(split, ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK)),
            digits(True),
            byte_level(use_regex=False),
        ),
        _bpe(),
        tokens("<\uff5cbegin\u2581of\u2581sentence\uff5c>", normalized=True),
    ),
    Family(
        "DeepSeek LLM, V2",
        {"type": "Sequence", "normalizers": []},
        row(
            *map(split, ("[\r\n]", DEEPSEEK_LETTERS, DEEPSEEK_MARKS, r"\s+$", CJK)),
            digits(True),
            byte_level(use_regex=False),
        ),
        _bpe(),
        tokens("<\uff5cbegin\u2581of\u2581sentence\uff5c>", normalized=True)
        + tokens("<\uff5cfim\u2581hole\uff5c>", special=False),
    ),
    Family(
        "DeepSeek V3, Hunyuan",
        {"type": "Sequence", "normalizers": []},
        splits(r"\p{N}{1,3}", CJK_V3, DEEPSEEK_V3),
        _bpe(),
        tokens("<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>", normalized=True, special=False),
    ),
    Family(
        "Chameleon",
        None,
        row(
            *map(split, CHAMELEON),
            digits(True),
            {"type": "Punctuation", "behavior": "Isolated"},
            byte_level(),
        ),
        _bpe(),
        tokens("<racm3:break>", "<image>"),
    ),
    Family("Llama 2", PREPEND, None, _sentences(), _CONTROL, _template(["<s>"])),
    Family(
        "Mistral, Llama 2 in the new form",
        None,
        metaspace("first", split=False),
        _sentences(),
        _CONTROL,
        _template(["<s>"]),
    ),
    Family(
        "Mixtral, InternLM 2", PREPEND, None, _sentences(), _CONTROL + tokens("[UNUSED_TOKEN_145]", normalized=True)
    ),
    Family("MiniCPM", PREPEND, None, _sentences(), _CONTROL + tokens("<\u7528\u6237>", "<AI>", special=False)),
    Family(
        "Phi-3",
        PREPEND,
        None,
        _sentences(),
        tokens("<unk>", "<s>") + tokens("</s>", "<|user|>", "<|assistant|>", "<|end|>", rstrip=True),
    ),
    Family("Yi", dict(sequence(UNDERLINED)), None, _sentences(), _CONTROL + _CHAT),
    Family("Jamba", None, metaspace("never", split=False), _sentences(), tokens("<|pad|>", "<|startoftext|>")),
    Family(
        "Gemma 1", dict(UNDERLINED), None, _sentences(), _CONTROL + tokens("<start_of_turn>", "<table>", special=False)
    ),
    Family(
        "Gemma 2 and 3",
        dict(UNDERLINED),
        split(" ", "MergedWithPrevious", kind="String"),
        _sentences(),
        tokens("<bos>", "<start_of_turn>", "<end_of_turn>")
        + runs("\n", *range(2, 32), normalized=False)
        + runs("\u2581", *range(2, 32), normalized=False)
        + tokens("<table>", "<td>", special=False),
        _template(["<bos>"]),
    ),
    Family(
        "CLIP",
        dict(sequence(NFC, replace("Regex", r"\s+", " "), {"type": "Lowercase"})),
        row(split(CLIP, "Removed", invert=True), byte_level()),
        clip_bpe,
        tokens("<|startoftext|>", normalized=True) + tokens("<|endoftext|>"),
        _classic("RobertaProcessing", "<|startoftext|>", "<|endoftext|>"),
    ),
    Family(
        "BERT, Nomic",
        bert(True),
        {"type": "BertPreTokenizer"},
        word_piece,
        tokens("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
        _template(["[CLS]"], ["[SEP]"]),
    ),
    Family(
        "DistilBERT, multilingual",
        bert(False),
        {"type": "BertPreTokenizer"},
        word_piece,
        tokens("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
        _classic("BertProcessing", "[CLS]", "[SEP]"),
    ),
    Family(
        "XLM-R, BGE-M3, mBART",
        _charsmap(),
        row({"type": "WhitespaceSplit"}, metaspace()),
        unigram,
        tokens("<s>", "<pad>", "</s>", "<unk>") + tokens("<mask>", lstrip=True),
        _template(["<s>"], ["</s>"]),
    ),
    Family(
        "T5",
        _charsmap(),
        row({"type": "WhitespaceSplit"}, metaspace()),
        unigram,
        tokens("<pad>", "</s>", "<unk>") + tokens("<extra_id_0>", "<extra_id_1>", normalized=False),
        _template([], ["</s>"]),
    ),
    Family("mT5", dict(sequence(_charsmap())), metaspace(), unigram, tokens("<pad>", "</s>"), _template([], ["</s>"])),
    Family(
        "ALBERT, XLNet",
        dict(
            sequence(
                replace("String", "``", '"'),
                replace("String", "''", '"'),
                {"type": "NFKD"},
                {"type": "StripAccents"},
                {"type": "Lowercase"},
                _charsmap(),
                SQUEEZED,
            )
        ),
        row({"type": "WhitespaceSplit"}, metaspace()),
        unigram,
        tokens("[CLS]", "[SEP]") + tokens("[MASK]", lstrip=True),
        _template(["[CLS]"], ["[SEP]"]),
    ),
    Family(
        "DeBERTa v3",
        dict(sequence(strip(True, True), _charsmap(), SQUEEZED)),
        metaspace(),
        unigram,
        tokens("[PAD]", "[CLS]", "[SEP]", "[MASK]"),
        _template(["[CLS]"], ["[SEP]"]),
    ),
    Family(
        "Tiny Aya",
        NFC,
        splits(AYA_DIGITS, O200K),
        _bpe(),
        tokens("<BOS_TOKEN>"),
        refused="word boundary",
    ),
    Family(
        "SuperBPE", None, splits(r"\p{N}+", SUPER_DIGITS), _bpe(), _CHAT, refused="lookahead that is not one character"
    ),
    Family("EXAONE 4.5", NFC, splits(EXAONE_4), _bpe(), _CHAT, words=False),
)
