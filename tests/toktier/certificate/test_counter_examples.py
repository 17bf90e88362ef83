"""Why each condition of the lemmas is needed: texts whose IDs are not those of their two sides, and no cut there.

`docs/proof.md` lists them by lemma, with those that live beside the module that they are about. ``|`` marks the seam.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.conftest import ROOT
from tests.support.split_cases import split_spec
from tests.support.tokenizer_files import CACHE
from tests.support.tokenizers_data import certificate_of, ids, spec_of, tokenizer_of
from toktier.certificate.certificate import read_literals
from toktier.certificate.classes import Probe
from toktier.certificate.derive import derive
from toktier.certificate.follow import positions
from toktier.certificate.joins import unsplit_rule
from toktier.certificate.normalizer import normalizer_rule
from toktier.certificate.regex import parse
from toktier.certificate.stages import stages
from toktier.certificate.table import TableCuts
from toktier.errors import Refusal

Spec = dict[str, Any]
EVERY_CHARACTER = split_spec(r"[\p{^L}]|[\p{L}]")


@dataclass(frozen=True)
class Case:
    """A tokenizer whose IDs tell its pieces apart, and a text with its seam."""

    text: str
    pre_tokenizer: Spec | None = field(default_factory=lambda: EVERY_CHARACTER)
    normalizer: Spec | None = None
    literals: tuple[Spec, ...] = ()
    merges: tuple[str, ...] | None = None
    """Of a BPE over single characters; None for a model that knows every piece."""
    before: str = ""
    """Where what goes on in a segment is not what begins a text: a text that ends as the left side does."""

    def sides(self) -> tuple[str, str]:
        left, right = self.text.split("|")
        return left, right

    def spec(self) -> Spec:
        whole = "".join(self.sides())
        tokens = [{"id": 900 + k, **LITERAL, **given} for k, given in enumerate(self.literals)]
        spec = {"version": "1.0", "added_tokens": tokens, "normalizer": self.normalizer, "pre_tokenizer": None}
        seen = Tokenizer.from_str(json.dumps({**spec, "model": {"type": "BPE", "vocab": {}, "merges": []}}))
        shown = seen.normalizer.normalize_str(whole) if seen.normalizer else whole
        characters = sorted({*whole, *shown, *"▁Ġ"})
        if self.merges is not None:
            pairs = [m.split(" ") for m in self.merges]
            entries = [*characters, *("".join(pair) for pair in pairs)]
            model: Spec = {"type": "BPE", "merges": pairs}
        else:
            taken = {given["content"] for given in self.literals}
            entries = ["?"] + ["".join(t) for n in (1, 2, 3) for t in itertools.product(characters, repeat=n)]
            entries += [shown[i:j] for i in range(len(shown)) for j in range(i + 4, len(shown) + 1)]
            entries = [entry for entry in dict.fromkeys(entries) if entry not in taken]
            model = {"type": "WordLevel", "unk_token": "?"}
        model["vocab"] = {entry: k for k, entry in enumerate(entries)}
        return {**spec, "pre_tokenizer": self.pre_tokenizer, "model": model}

    def engine(self) -> Tokenizer:
        return Tokenizer.from_str(json.dumps(self.spec()))

    def cuts(self) -> TableCuts:
        spec, engine = self.spec(), self.engine()
        normalize = engine.normalizer.normalize_str if engine.normalizer else str
        derived = derive(
            normalizer_rule(spec["normalizer"], PROBE),
            stages(spec["pre_tokenizer"], PROBE),
            read_literals(spec, engine),
            normalize,
            PROBE,
            None if self.merges is None else lambda sides: unsplit_rule(spec["model"], sides),
        )
        return TableCuts(derived.table, interior=derived.interior)


PROBE = Probe(CACHE)
LITERAL = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized", "special"), False)


def literal(content: str, *flags: str) -> Spec:
    return {"content": content, **dict.fromkeys(flags, True)}


def replacing(pattern: dict[str, str], content: str) -> Spec:
    return {"type": "Replace", "pattern": pattern, "content": content}


def in_a_row(*parts: Spec) -> Spec:
    return {"type": "Sequence", "pretokenizers": list(parts)}


def metaspace(scheme: str) -> Spec:
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}


STRIP = {"type": "Strip", "strip_left": True, "strip_right": True}
PREPEND = {"type": "Prepend", "prepend": "▁"}

CASES = {
    # lemma 1
    "1 a lookahead decides whether a is matched": Case("ab|a", split_spec("b(?!a)")),
    "1 a lower bound of two": Case("a|b", split_spec("a{2}")),
    "1 a possessive skip": Case("a|b", split_spec("b*+b")),
    "1 MergedWithPrevious": Case("b|a", split_spec("a", "MergedWithPrevious")),
    "1 MergedWithNext": Case("a|b", split_spec("a", "MergedWithNext")),
    "1 Contiguous": Case("a|a", split_spec("a", "Contiguous")),
    "1 MergedWithPrevious, inverted": Case("a|b", split_spec("a", "MergedWithPrevious", invert=True)),
    "1 MergedWithNext, inverted": Case("b|a", split_spec("a", "MergedWithNext", invert=True)),
    "1 an interval and a plus": Case("a|a", split_spec("a{1}+")),
    "1 up to three digits and a plus": Case("123|4567", split_spec(r"\p{N}{1,3}+")),
    "1 a run that is one character": Case("ß|x", split_spec("(?i:ss)x|x")),
    "1 a character that is a run": Case("s|s", split_spec("(?i:ß)|s")),
    "1 a class that is a run": Case("s|s", split_spec("(?i:[ß])|s")),
    "1 a ligature": Case("ﬁ|x", split_spec("(?i:fi)x|x")),
    "1 numeric escapes": Case("A|B", split_spec(r"\x41\x42")),
    "1 numeric escapes of four digits": Case("A|B", split_spec(r"\u0041\u0042")),
    # lemma 2
    "2 an earlier stage that is not transparent": Case("a|bc", in_a_row(split_spec("ab|bc"), split_spec("a|bc|b"))),
    "2 a prefix before each piece": Case(
        "xb|a", in_a_row(split_spec("xb"), metaspace("always"), EVERY_CHARACTER), before="b"
    ),
    # lemma 4
    "4 NFKC changes a": Case("x™|s", split_spec(r"\p{L}+|."), {"type": "NFKC"}),
    "4 NFKC changes a, and it is a letter then": Case("₨|a", split_spec(r"\p{L}+|."), {"type": "NFKC"}),
    "4 a composition exclusion": Case("\u0958|!", split_spec(r"\p{M}!|\P{M}|\p{M}"), {"type": "NFC"}),
    "4 white space is not enough": Case("\u0958| ", split_spec(r"\p{M} |\P{M}|\p{M}"), {"type": "NFC"}),
    "4 a mark that composes": Case("x|e\u0301", split_spec("xé|x|e"), {"type": "NFC"}),
    "4 a deleted character": Case("ab|c", None, replacing({"String": "b"}, ""), merges=("a c",)),
    "4 a deleted mark": Case("a\u0301|b", split_spec("ab|."), {"type": "StripAccents"}),
    "4 one character becomes two": Case("İ|!", split_spec("\u0307!|."), {"type": "Lowercase"}),
    "4 Strip takes what is at the end": Case("a | b", normalizer=STRIP),
    "4 Strip takes what is at the start": Case(" | b", normalizer={**STRIP, "strip_right": False}, before="a"),
    "4 a replaced run": Case("a | b", normalizer=replacing({"Regex": r"\s+"}, " ")),
    "4 a replaced string": Case("a|b", normalizer=replacing({"String": "ab"}, "x")),
    # lemma 5, pairs
    "5 a literal": Case("a|b", literals=(literal("ab"),)),
    "5 white space that a literal strips": Case("<m> | x", literals=(literal("<m>", "rstrip"),)),
    "5 white space that the next one strips": Case("x | <m>", literals=(literal("<m>", "lstrip"),)),
    "5 a normalised literal in capitals": Case(
        "A|B", normalizer={"type": "Lowercase"}, literals=(literal("ab", "normalized"),)
    ),
    "5 a normalised literal, composed": Case(
        "e|\u0301", normalizer={"type": "NFC"}, literals=(literal("é", "normalized"),)
    ),
    "5 a normalised literal around a deleted one": Case(
        "a|xb", normalizer=replacing({"String": "x"}, ""), literals=(literal("ab", "normalized"),)
    ),
    "5 a single word": Case("ab|x", literals=(literal("ab", "single_word"),)),
    "5 a single word behind": Case("x|ab", literals=(literal("ab", "single_word"),)),
    # lemma 5, why the end of a literal is none of its own: pairs that only look at the literal would take these
    "5 the end of a part of another literal": Case("xab|c", literals=(literal("ab"), literal("xabc"))),
    "5 the end of a normalised literal that a raw one overlaps": Case(
        "ab|c", literals=(literal("ab", "normalized"), literal("bc"))
    ),
    "5 the end of a literal before a single word": Case(
        "ab|cd", literals=(literal("ab"), literal("cd", "single_word"))
    ),
    # prefixes
    "5 Prepend behind a literal": Case("<m>|b", normalizer=PREPEND, literals=(literal("<m>"),), before=">"),
    "5 Metaspace behind a literal": Case(
        "<m>|b", in_a_row(metaspace("always"), EVERY_CHARACTER), literals=(literal("<m>"),), before=">"
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_no_cut_where_ids_do_not_add_up(case: Case) -> None:
    engine, (left, right) = case.engine(), case.sides()
    within = ids(engine, case.before + right)[len(ids(engine, case.before)) :] if case.before else ids(engine, right)
    assert ids(engine, left + right) != ids(engine, left) + within
    assert not case.cuts().is_cut(left + right, len(left))


@pytest.mark.parametrize(
    ("pattern", "text", "construct"),
    [
        (r"\R|\r|\n", "\r|\n", "escape \\R"),
        (r"\X|e", "e|\u0301", "escape \\X"),
        ("xa(?=b(?!c))|x|a|b|c", "xab|c", "lookahead that is not one character"),
    ],
)
def test_refused_by_name(pattern: str, text: str, construct: str) -> None:
    case = Case(text, split_spec(pattern))
    left, right = case.sides()
    assert ids(case.engine(), left + right) != ids(case.engine(), left) + ids(case.engine(), right)
    with pytest.raises(Refusal) as e:
        case.cuts()
    assert e.value.construct == construct


def test_stacked_quantifiers_are_no_atoms() -> None:
    """A parser that took ``?*`` for an atom would not see that the pattern may be empty."""
    with pytest.raises(Refusal, match="empty string"):
        stages(split_spec("a?*"), PROBE)


# --- on real files --------------------------------------------------------------------------------------------------


def adds_up(name: str, text: str) -> bool:
    left, right = text.split("|")
    tokenizer = tokenizer_of(name)
    return ids(tokenizer, left + right) == ids(tokenizer, left) + ids(tokenizer, right)


def is_cut(name: str, text: str) -> bool:
    left, right = text.split("|")
    return certificate_of(name).is_cut(left + right, len(left))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param(name, text, marks=pytest.mark.xdist_group(name))
        for name, text in (
            ("qwen3", '\u0958|"s'),
            ("qwen3", "হ\u09df|(self"),
            ("qwen3", "হ\u09df|.com"),
            ("qwen3", 'হ\u09df|"type'),
            ("qwen3", "x\u0301|!important"),
            ("deepseek_v4", "<｜/table>｜DSML｜|>x"),
            ("llama2", "<s|>"),  # lemma 5, where no merge joins the two
        )
    ],
)
def test_real_files(name: str, text: str) -> None:
    assert not adds_up(name, text)
    assert not is_cut(name, text)


@pytest.mark.xdist_group("qwen3")
def test_a_pair_is_judged_before_the_normalizer_and_holds_for_every_text() -> None:
    """Qwen3: é and e U+0301 are one text to the stages. A rule for what they become would come and go with an edit."""
    assert adds_up("qwen3", "é|!important")
    assert is_cut("qwen3", "é|!important")
    assert adds_up("qwen3", "e\u0301|!important")
    assert not is_cut("qwen3", "e\u0301|!important")


@cache
def _interior(name: str) -> Tokenizer:
    spec = {**spec_of(name), "added_tokens": []}
    return Tokenizer.from_str(json.dumps(spec))


@pytest.mark.xdist_group("llama2")
def test_lemma_5_is_needed_beside_lemma_3() -> None:
    """Llama 2: no merge joins s and >, and without literals the IDs add up."""
    joins = certificate_of("llama2").table.joins
    assert joins is not None
    assert joins.apart(ord("s"), ord(">"))
    whole, left = (ids(_interior("llama2"), text) for text in ("<s>", "<s"))
    context = ids(_interior("llama2"), "s"), ids(_interior("llama2"), "s>")
    assert whole == left + context[1][len(context[0]) :]


# --- lemma 6 --------------------------------------------------------------------------------------------------------


@pytest.mark.xdist_group("qwen3")
def test_an_edit_that_leaves_nothing_makes_a_new_pair() -> None:
    """Both seams of "1" in "a1bc" are cuts; without it their outer characters meet, and that is none."""
    assert is_cut("qwen3", "a|1bc")
    assert is_cut("qwen3", "a1|bc")
    assert not is_cut("qwen3", "a|bc")
    assert not adds_up("qwen3", "a|bc")


def test_a_pair_of_a_composing_character_is_lost_by_what_follows_it() -> None:
    whole, grown = (Case(text, split_spec("xé|x|e"), {"type": "NFC"}) for text in ("x|e!", "x|e\u0301"))
    for case, cut in ((whole, True), (grown, False)):
        left, right = case.sides()
        engine = case.engine()
        assert (ids(engine, left + right) == ids(engine, left) + ids(engine, right)) is cut
        assert case.cuts().is_cut(left + right, len(left)) is cut


@pytest.mark.xdist_group("deepseek_v4")
def test_a_literal_s_end_is_lost_by_an_edit_before_it() -> None:
    """DeepSeek V4: whether ｜DSML｜ is matched depends on what stands before it, so its end is no cut."""
    assert adds_up("deepseek_v4", "a｜DSML｜|>x")
    assert not adds_up("deepseek_v4", "<｜/table>｜DSML｜|>x")
    assert not is_cut("deepseek_v4", "a｜DSML｜|>x")


@pytest.mark.xdist_group("qwen3")
def test_the_end_of_a_text_is_no_cut() -> None:
    assert not adds_up("qwen3", "the|re")
    assert certificate_of("qwen3").cuts("the").tolist() == []


def test_first_is_told_by_the_offset_in_the_text() -> None:
    """Metaspace ``first``: behind a literal there is no prefix; T of what is there would put one before it."""
    case = Case("<m>|b", in_a_row(metaspace("first"), EVERY_CHARACTER), literals=(literal("<m>"),))
    engine = case.engine()
    within = ids(engine, "ab")[len(ids(engine, "a")) :]
    assert ids(engine, "<m>b") == ids(engine, "<m>") + within
    assert within != ids(engine, "b")
    assert case.cuts().interior
    assert case.cuts().is_cut("<m>b", 3)


# --- lemma 7: what a synchronising word is not ----------------------------------------------------------------------


def pieces(name: str, text: str) -> list[str]:
    encoding = tokenizer_of(name).encode(text, add_special_tokens=False)
    return [text[a:b] for a, b in encoding.offsets]


@pytest.mark.xdist_group("qwen3")
def test_a_word_after_which_the_state_is_known_is_no_cut() -> None:
    """Qwen3: behind an "a" the split is inside letters whatever came before; yet T("aa") is not T("a") + T("a")."""
    assert not adds_up("qwen3", "a|a")


@pytest.mark.xdist_group("qwen3")
def test_pieces_behind_a_word_depend_on_a_literal_before_it() -> None:
    assert pieces("qwen3", "a>\n \nx") == ["a", ">\n", " \n", "x"]
    assert pieces("qwen3", "<|im_end|>\n \nx") == ["<|im_end|>", "\n \n", "x"]


@pytest.mark.xdist_group("qwen3")
def test_a_boundary_may_be_decided_any_number_of_characters_later() -> None:
    split = tokenizer_of("qwen3").pre_tokenizer.pre_tokenize_str
    blanks = " " * 200
    assert [span for _, span in split(f"a\n{blanks}x")][:2] == [(0, 1), (1, 2)]
    assert [span for _, span in split(f"a\n{blanks}\n")] == [(0, 1), (1, 203)]


def test_the_follow_relation_does_not_know_lazy_from_greedy() -> None:
    """Enough for lemma 1, which holds for either; a transducer must tell them apart."""
    lazy, greedy = (positions(parse(pattern), "p") for pattern in ("a+?|b", "a+|b"))
    assert lazy.follow == greedy.follow
    engines = [Case("a|a", split_spec(pattern)).engine() for pattern in ("a+?|b", "a+|b")]
    assert ids(engines[0], "aa") != ids(engines[1], "aa")


# --- the proof's own references -------------------------------------------------------------------------------------


def test_every_test_that_the_proof_names_is_there() -> None:
    text = (ROOT / "docs" / "proof.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(test_\w+\.py)::(test_\w+)", text))
    sources: dict[str, str] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        sources[path.name] = sources.get(path.name, "") + path.read_text(encoding="utf-8")
    assert len(named) > 40
    assert [f"{file}::{test}" for file, test in sorted(named) if f"def {test}(" not in sources.get(file, "")] == []
    table = text[text.index("## Why each condition") :]
    cited = {
        name
        for line in table.splitlines()
        if "CE " in line
        for name in re.findall(r'"([^"|]+)"', line.split(" | ")[-1])
    }
    assert len(cited) > 25
    assert cited <= {name[2:] for name in CASES}
