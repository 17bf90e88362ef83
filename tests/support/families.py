"""The tokenizers that people serve, in small: per family a ``tokenizer.json`` whose normalizer, pre-tokenizer, added
tokens, post-processor and model flags are those of a published one, with a vocabulary of a few hundred entries.

Where models of one family differ, one of them is taken. Sources: the families' own files and papers, and the patterns
that llama.cpp lists by family.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.support.family_parts import (
    AYA_DIGITS,
    BAILING,
    BLOOM,
    CHAMELEON,
    CJK,
    CJK_V3,
    CL100K,
    CLIP,
    DEEPSEEK_LETTERS,
    DEEPSEEK_MARKS,
    DEEPSEEK_V3,
    EXAONE_4,
    JAIS_2,
    NFC,
    O200K,
    PREPEND,
    QWEN_2,
    QWEN_3_5,
    SEED,
    SQUEEZED,
    SUPER_DIGITS,
    TEKKEN,
    UNDERLINED,
    Spec,
    bert,
    byte_level,
    bytes_bpe,
    charsmap,
    classic,
    clip_bpe,
    digits,
    metaspace,
    offsets_only,
    row,
    runs,
    sentence_bpe,
    split,
    splits,
    template,
    tokens,
    unigram,
    word_piece,
)
from tests.support.normalizing import replace, sequence, strip


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
_ROBERTA = classic("RobertaProcessing", "<s>", "</s>")

FAMILIES = (
    Family("GPT-2", None, byte_level(), _bpe(), tokens("<|endoftext|>", normalized=True), offsets_only),
    Family("RoBERTa", None, byte_level(), _bpe(), _MASKED, _ROBERTA),
    Family("BART with a prefix", None, byte_level(add_prefix_space=True), _bpe(), _MASKED, _ROBERTA),
    Family("OPT", None, byte_level(), _bpe(), tokens("<pad>", "</s>", normalized=True), template(["</s>"])),
    Family(
        "GPT-NeoX, Pythia, OLMo",
        NFC,
        byte_level(),
        _bpe(),
        tokens("<|endoftext|>", "<|padding|>") + runs(" ", *range(2, 25), normalized=True),
        offsets_only,
    ),
    Family(
        "Phi-2, CodeGen",
        None,
        byte_level(),
        _bpe(),
        tokens("<|endoftext|>", normalized=True)
        + runs(" ", *range(2, 32), normalized=True)
        + runs("\t", *range(2, 10), normalized=True),
        offsets_only,
    ),
    Family(
        "Whisper",
        None,
        byte_level(),
        _bpe(),
        tokens("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|transcribe|>")
        + tokens("<|0.00|>", "<|0.02|>", "<|0.04|>", special=False),
        template(["<|startoftranscript|>", "<|en|>", "<|transcribe|>"], ["<|endoftext|>"]),
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
        template(["[CLS]"], ["[SEP]"]),
    ),
    Family("StarCoder, SmolLM, Granite 3", None, row(digits(True), byte_level()), _bpe(), _CHAT),
    Family(
        "Command-R, Aya",
        NFC,
        row(digits(True), byte_level()),
        _bpe(),
        tokens("<BOS_TOKEN>"),
        template(["<BOS_TOKEN>"]),
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
        template(["<|begin_of_text|>"]),
    ),
    Family(
        "GLM-4", None, splits(CL100K), _bpe(), tokens("[gMASK]", "<sop>", "<|user|>"), template(["[gMASK]", "<sop>"])
    ),
    Family("Qwen 1.5 to 3", NFC, splits(QWEN_2), _bpe(), _CHAT + tokens("<think>", special=False), offsets_only),
    Family("Qwen 3.5", NFC, splits(QWEN_3_5), _bpe(), _CHAT, offsets_only),
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
    Family("Llama 2", PREPEND, None, _sentences(), _CONTROL, template(["<s>"])),
    Family(
        "Mistral, Llama 2 in the new form",
        None,
        metaspace("first", split=False),
        _sentences(),
        _CONTROL,
        template(["<s>"]),
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
        template(["<bos>"]),
    ),
    Family(
        "CLIP",
        dict(sequence(NFC, replace("Regex", r"\s+", " "), {"type": "Lowercase"})),
        row(split(CLIP, "Removed", invert=True), byte_level()),
        clip_bpe,
        tokens("<|startoftext|>", normalized=True) + tokens("<|endoftext|>"),
        classic("RobertaProcessing", "<|startoftext|>", "<|endoftext|>"),
    ),
    Family(
        "BERT, Nomic",
        bert(True),
        {"type": "BertPreTokenizer"},
        word_piece,
        tokens("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
        template(["[CLS]"], ["[SEP]"]),
    ),
    Family(
        "DistilBERT, multilingual",
        bert(False),
        {"type": "BertPreTokenizer"},
        word_piece,
        tokens("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
        classic("BertProcessing", "[CLS]", "[SEP]"),
    ),
    Family(
        "XLM-R, BGE-M3, mBART",
        charsmap(),
        row({"type": "WhitespaceSplit"}, metaspace()),
        unigram,
        tokens("<s>", "<pad>", "</s>", "<unk>") + tokens("<mask>", lstrip=True),
        template(["<s>"], ["</s>"]),
    ),
    Family(
        "T5",
        charsmap(),
        row({"type": "WhitespaceSplit"}, metaspace()),
        unigram,
        tokens("<pad>", "</s>", "<unk>") + tokens("<extra_id_0>", "<extra_id_1>", normalized=False),
        template([], ["</s>"]),
    ),
    Family("mT5", dict(sequence(charsmap())), metaspace(), unigram, tokens("<pad>", "</s>"), template([], ["</s>"])),
    Family(
        "ALBERT, XLNet",
        dict(
            sequence(
                replace("String", "``", '"'),
                replace("String", "''", '"'),
                {"type": "NFKD"},
                {"type": "StripAccents"},
                {"type": "Lowercase"},
                charsmap(),
                SQUEEZED,
            )
        ),
        row({"type": "WhitespaceSplit"}, metaspace()),
        unigram,
        tokens("[CLS]", "[SEP]") + tokens("[MASK]", lstrip=True),
        template(["[CLS]"], ["[SEP]"]),
    ),
    Family(
        "DeBERTa v3",
        dict(sequence(strip(True, True), charsmap(), SQUEEZED)),
        metaspace(),
        unigram,
        tokens("[PAD]", "[CLS]", "[SEP]", "[MASK]"),
        template(["[CLS]"], ["[SEP]"]),
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
