"""`toktier certify` as a user meets it: exit codes, the report, its JSON."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import structlog
from rich.console import Console
from typer.testing import CliRunner, Result

from proxy.certify import EXAMPLES, inspect
from proxy.certify_print import show
from proxy.certify_words import classes_in_words, kind, many, pointed_at, shown
from proxy.cli import app
from tests.conftest import ROOT
from tests.support.campaigns import folder_of, qwen
from tests.support.rank_data import SMALL_SIDECAR, write_ranks
from tests.support.tokenizer_files import CACHE, bpe, small_spec, write
from toktier.certificate import certificate as certificates
from toktier.certificate.table import Table

TEXT = "the fox, 12 dogs.\n" * 20 + "x" * 50


@pytest.fixture(autouse=True)
def _own_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TOKTIER_SERVER__CACHE_DIR", str(CACHE))
    monkeypatch.delenv("TOKTIER_CONFIG", raising=False)
    yield
    structlog.reset_defaults()


def certify(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["certify", *map(str, arguments)], catch_exceptions=False)


REFUSED = r"\p{L}+|\n|\d(?<=[0-4])x"


def refused_spec() -> dict[str, object]:
    spec = bpe(["a", "b", "ab"], ["a b"])
    spec["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": REFUSED}, "behavior": "Isolated", "invert": False}
    return spec


def test_a_certified_tokenizer(tmp_path: Path) -> None:
    text = tmp_path / "t.txt"
    text.write_text(TEXT, "utf-8")
    result = certify("embedded", "--json", "--text", text)
    assert result.exit_code == 0
    told = json.loads(result.stdout)
    assert told.keys() == {
        "result", "tokenizer", "versions", "seconds", "refusal", "certificate", "classes", "examples", "text",
    }  # fmt: skip
    assert told["result"] == "certified"
    assert told["refusal"] is None
    assert told["certificate"]["cut_pairs"] > 50
    assert told["certificate"]["normalizer"] == "NFC"
    assert told["certificate"]["stages"][0]["type"] == "split"
    cuts = qwen().rule.cuts(TEXT).tolist()
    edges = [0, *cuts, len(TEXT)]
    assert told["text"] == {
        "source": str(text),
        "characters": len(TEXT),
        "cuts": len(cuts),
        "share": round(len(cuts) / (len(TEXT) - 1), 4),
        "mean_distance": round(len(TEXT) / (len(cuts) + 1), 2),
        "longest": max(b - a for a, b in pairwise(edges)),
        "longest_at": edges[-2],
    }
    assert 0 < len(told["examples"]) <= EXAMPLES
    words = {(e["left"], e["right"]): e for e in told["examples"]}
    letter_space = words["a letter", "a space"]
    assert letter_space["met"] == letter_space["cuts"] == 20
    assert letter_space["quote"] == ["the", " fox, 12 dog"]


def test_a_rank_file_with_its_sidecar_elsewhere(tmp_path: Path) -> None:
    ranks = write_ranks(tmp_path / "ranks", sidecar=None)
    result = certify(ranks)
    assert result.exit_code == 2
    assert "holds ranks only" in result.stderr
    sidecar = tmp_path / "other.json"
    sidecar.write_text(json.dumps(SMALL_SIDECAR))
    result = certify(ranks, "--sidecar", sidecar, "--json")
    assert result.exit_code == 0
    told = json.loads(result.stdout)
    assert told["certificate"]["engine"].startswith("tiktoken ")
    assert told["certificate"]["stages"][0]["pattern"] == SMALL_SIDECAR["pat_str"]


def test_the_report_for_people_names_every_stage() -> None:
    result = certify("embedded")
    assert result.exit_code == 0
    for part in (
        "normalizer    NFC",
        "pre-tokenizer split (?i:'s|'t",
        "model         BPE",
        "added tokens  26",
        "interior      no",
        "a letter, then a space: always (",
        "on a built-in sample",
        "the longest stretch without one has",
    ):
        assert part in result.stdout
    assert "depend on the next character" in result.stdout


def test_an_interior_tokenizer_says_so(tmp_path: Path) -> None:
    result = certify(folder_of("prepend", tmp_path))
    assert result.exit_code == 0
    assert "interior      yes" in result.stdout
    assert "Prepend" in result.stdout
    assert "by the merges" in result.stdout


def test_a_refusal_names_construct_and_place(tmp_path: Path) -> None:
    folder = write(tmp_path / "t", refused_spec())
    result = certify(folder)
    assert result.exit_code == 3
    lines = result.stdout.splitlines()
    at = lines.index("refused       look-behind, at pre_tokenizer, character 12")
    assert lines[at + 1].strip() == REFUSED
    assert lines[at + 1][lines[at + 2].index("^") :] == "(?<=[0-4])x"
    told = json.loads(certify(folder, "--json").stdout)
    assert told["result"] == "refused"
    assert told["refusal"] == {
        "construct": "look-behind", "place": "pre_tokenizer, character 12", "excerpt": REFUSED, "excerpt_at": 12,
    }  # fmt: skip
    assert "certificate" not in told


def test_a_refusal_about_no_pattern_shows_none(tmp_path: Path) -> None:
    folder = write(tmp_path / "t", {**bpe(["a", "b"], []), "pre_tokenizer": {"type": "UnicodeScripts"}})
    result = certify(folder)
    assert result.exit_code == 3
    lines = result.stdout.splitlines()
    assert lines[lines.index("refused       pre-tokenizer UnicodeScripts, at pre_tokenizer") + 1] == ""
    told = json.loads(certify(folder, "--json").stdout)["refusal"]
    assert (told["excerpt"], told["excerpt_at"]) == ("", None)


def test_an_excerpt_points_at_what_is_printed() -> None:
    assert pointed_at("a\n(", 2) == ["  a<U+000A>(", "           ^"]
    assert pointed_at("\u4e2d(", 1) == ["  \u4e2d(", "    ^"]
    assert pointed_at("ab", None) == ["  ab"]
    assert pointed_at("", None) == []


def test_numbers_and_nouns() -> None:
    assert [many(n, "cut") for n in (0, 1, 2000)] == ["0 cuts", "1 cut", "2,000 cuts"]


def test_it_is_told_whether_the_certificate_was_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKTIER_SERVER__CACHE_DIR", str(tmp_path / "cache"))
    folder = write(tmp_path / "t", {**bpe(["a", "b"], []), "pre_tokenizer": {"type": "WhitespaceSplit"}})
    kept = tmp_path / "cache" / "certificates"
    assert f"derived just now; it was not in the cache ({kept})\n" in certify(folder).stdout
    assert len(list(kept.iterdir())) == 1
    assert f", from the cache ({kept})\n" in certify(folder).stdout
    assert json.loads(certify(folder, "--json").stdout)["certificate"]["from_cache"] is True


def test_a_text_without_cuts_has_no_examples(tmp_path: Path) -> None:
    folder = write(tmp_path / "t", {**bpe(["a", "b"], []), "pre_tokenizer": {"type": "WhitespaceSplit"}})
    (tmp_path / "one.txt").write_text("x")
    result = certify(folder, "--text", tmp_path / "one.txt")
    assert result.exit_code == 0
    assert "most often" not in result.stdout
    assert "one.txt, 1 character\n" in result.stdout
    assert "  0 cuts: 0.0 % of all positions" in result.stdout
    assert "the longest stretch without one has 1 character, from" in result.stdout


def test_a_panic_of_the_engine_is_one_line(tmp_path: Path) -> None:
    """Rust writes to the file descriptor, past `CliRunner`."""
    (tmp_path / "tokenizer.json").write_text(json.dumps({**bpe(["a"], []), "normalizer": {"type": "Precompiled"}}))
    environment = {name: value for name, value in os.environ.items() if name != "RUST_BACKTRACE"}
    command = [sys.executable, "-m", "proxy.cli", "certify", str(tmp_path)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"toktier: tokenizer.json of {tmp_path} is not readable by tokenizers: ")
    assert "precompiled_charsmap" in line


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"model": {"type": "BPE"}}', '{"model": {"type": "X", "vocab": {}}}', "\x00\ufffe"],
)
def test_an_unusable_file_is_exit_code_2_and_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content, "utf-8")
    result = certify(path)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("toktier: ")
    as_json = certify(path, "--json")
    told = json.loads(as_json.stdout)
    assert (as_json.exit_code, as_json.stderr, told["exit_code"]) == (2, "", 2)
    assert result.stderr == f"toktier: {told['problem']}\n"


def test_other_wrong_arguments_are_exit_code_2(tmp_path: Path) -> None:
    for arguments in (
        [tmp_path / "absent"],
        ["no/such-hub-id"],
        ["https://h/t.json"],
        ["embedded", "--text", tmp_path / "absent.txt"],
    ):
        result = certify(*arguments)
        assert result.exit_code == 2
        assert len(result.stderr.splitlines()) == 1


def test_a_broken_configuration_is_exit_code_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKTIER_SERVER__PORT", "x")
    result = certify("embedded")
    assert result.exit_code == 2
    assert result.stderr.startswith("toktier: server.port")
    result = certify("embedded", "--json")
    told = json.loads(result.stdout)
    assert (result.exit_code, result.stderr, told["exit_code"]) == (2, "", 2)
    assert told["problems"][0]["place"].startswith("server.port")


def test_a_wrong_certificate_is_told_as_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check against the engine at load is part of what is reported."""
    from toktier.errors import Refusal

    def fails(*_: object, **__: object) -> int:
        raise Refusal("self-check", "IDs at a certified cut")

    monkeypatch.setattr(certificates, "self_check", fails)
    report = inspect(write(tmp_path, small_spec()), {"t": TEXT}, cache_dir=CACHE)
    assert report.refusal is not None
    assert (report.refusal["construct"], report.refusal["place"]) == ("self-check", "IDs at a certified cut")
    out = io.StringIO()
    show(report, Console(file=out, width=100))
    assert "self-check, at IDs at a certified cut" in out.getvalue()


def test_the_words_of_a_class_are_of_what_people_see_in_it_first() -> None:
    classes = np.zeros(0x110000, np.uint16)
    rows = {1: "aAe", 3: "+09\0\1\2", 4: "bcd"}
    for number, characters in rows.items():
        classes[[*map(ord, characters)]] = number
    classes[0x4E00:0x7000], classes[0xAC00:0xD700], classes[0x7000:0x9F00] = 1, 2, 3
    table = SimpleNamespace(classes=classes, matrix=np.zeros((5, 5), np.uint8))
    words = {entry["class"]: entry["words"] for entry in classes_in_words(cast(Table, table))}
    assert words.pop(0).endswith(", and others")
    assert words == {
        1: "a letter or CJK character",
        2: "a CJK character",
        3: "a digit or number or CJK character, and others",
        4: "a letter",
    }


def test_classes_are_put_in_words() -> None:
    told = classes_in_words(qwen().rule.table)
    members = sum(entry["members"] for entry in told)
    assert members == 0x110000 - 2048
    by_words = {entry["words"] for entry in told}
    assert "a letter" in by_words
    assert any("digit" in words for words in by_words)
    space = next(entry for entry in told if " " in entry["examples"])
    assert space["after_cuts"]
    assert [kind(c) for c in "a \n7!+"] == [
        "a letter", "a space", "a line feed", "a digit or number", "punctuation", "a symbol",
    ]  # fmt: skip
    assert [kind(c) for c in "\u4e2d\u3042\uac00\u0301\u0378\u200d\x00\u3000"] == [
        "a CJK character", "a CJK character", "a CJK character", "a combining mark", "an unassigned character",
        "a format character", "a control character", "a blank",
    ]  # fmt: skip
    assert shown("a\n\u202e\u00e9") == "a<U+000A><U+202E>\u00e9"
