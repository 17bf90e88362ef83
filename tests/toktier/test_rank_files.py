"""Rank files and their sidecars: what is read, what is refused and how it is said."""

from __future__ import annotations

import inspect
import json
import lzma
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from tiktoken_ext import openai_public

from tests.conftest import ROOT, data_path
from tests.support.rank_data import PATTERNS, SIDECARS, SMALL, SMALL_SIDECAR, published, rank_lines, write_ranks
from tests.support.tokenizer_files import CACHE
from tests.support.tokenizers_data import each
from toktier import files
from toktier.errors import UnusableFile
from toktier.rank_files import BYTE_RANKS, EXAMPLE, is_rank_file, parse_ranks, ranks_of


def test_reads_ranks_and_sidecar() -> None:
    read = ranks_of(rank_lines(SMALL), SMALL_SIDECAR, "test")
    assert read.mergeable == SMALL
    assert (read.name, read.pattern) == ("tiktoken", SMALL_SIDECAR["pat_str"])
    assert read.special_tokens == {"<|end|>": 300, "<|start|>": 301}
    assert read.vocab_size == 302
    assert ranks_of(rank_lines(SMALL), {**SMALL_SIDECAR, "special_tokens": {}}, "test").vocab_size == 261


@pytest.mark.parametrize("name", each(SIDECARS))
def test_published_files(name: str) -> None:
    read = published(name)
    assert len(read.mergeable) == {"gpt2_tiktoken": 50256, "o200k_tiktoken": 199998, "qwen_tiktoken": 151643}[name]
    assert sorted(read.mergeable.values()) == list(range(len(read.mergeable)))


def test_the_example_is_one() -> None:
    assert ranks_of(rank_lines(BYTE_RANKS), json.loads(EXAMPLE), "test").special_tokens == {"<|endoftext|>": 50256}


def test_the_document_has_a_published_one() -> None:
    (block,) = re.findall(r"```json\n(.*?)```", (ROOT / "docs" / "tiktoken.md").read_text("utf-8"), re.DOTALL)
    assert json.loads(block) == SIDECARS["gpt2_tiktoken"]


@pytest.mark.slow
def test_the_commands_of_the_document_certify(tmp_path: Path) -> None:
    (block,) = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "tiktoken.md").read_text("utf-8"), re.DOTALL)
    (ranks,) = data_path("tokenizers", "gpt2_tiktoken").glob("*.tiktoken.xz")
    (tmp_path / "r50k_base.tiktoken").write_bytes(lzma.decompress(ranks.read_bytes()))
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    toktier = f'toktier() {{ "{sys.executable}" -m proxy.cli "$@"; }}\n'
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TOKTIER_SERVER__CACHE_DIR": str(CACHE)}
    done = subprocess.run(["sh", "-ec", toktier + block], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "engines       tokenizers " in done.stdout
    assert "model         tiktoken" in done.stdout


def test_sidecars_are_what_the_published_packages_say() -> None:
    """tiktoken's own registry has two of them; it would fetch the ranks, so its source is what is compared."""
    source = inspect.getsource(openai_public)
    assert SIDECARS["gpt2_tiktoken"]["pat_str"] == openai_public.r50k_pat_str
    for branch in PATTERNS["o200k"].split("|\\p{N}{1,3}|")[0].split(")?|"):
        assert branch.removesuffix(")?") in source
    assert SIDECARS["o200k_tiktoken"]["pat_str"] == PATTERNS["o200k"]
    assert SIDECARS["qwen_tiktoken"]["pat_str"] == PATTERNS["qwen"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "lack 256 of the 256 single bytes"),
        (rank_lines({k: v for k, v in SMALL.items() if k != b"q"}), "lack 1 of the 256"),
        (rank_lines(SMALL) + b"YWI= 400\n", "line 262 .* repeats a token"),
        (rank_lines(SMALL) + b"YWJj 400\nYWJk 400\n", "line 262 .* repeats"),
        (rank_lines(SMALL) + b"YWJk 5\n", "two tokens one ID"),
        (rank_lines(SMALL) + b"YWJk\n", "line 262 .* not a base64 token and its ID"),
        (rank_lines(SMALL) + b"YWJk 4000000000\n", "line 262"),
        (rank_lines(SMALL) + b"YWJk -1\n", "line 262"),
        (rank_lines(SMALL) + b"YWJk 1 2\n", "line 262"),
        (rank_lines(SMALL) + b"YWJkZ 400\n", "line 262"),
        (rank_lines(SMALL) + b"Y!Jk 400\n", "line 262"),
        (b'{"model": {}}', "line 1 "),
        (b"\x00\xff" * 40, "line 1 "),
    ],
)
def test_refuses_ranks(content: bytes, message: str) -> None:
    with pytest.raises(UnusableFile, match=message):
        parse_ranks(content, "test")


def test_blank_lines_and_line_ends_do_not_matter() -> None:
    lines = rank_lines(SMALL)
    assert parse_ranks(lines.replace(b"\n", b"\r\n") + b"\r\n \n", "test") == SMALL
    assert parse_ranks(lines.rstrip(), "test") == SMALL


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pat_str": None}, "needs pat_str, a string; an example"),
        ({"pat_str": ""}, "empty pat_str"),
        ({"pat_str": "\ud800"}, "pat_str .* lone surrogate"),
        ({"special_tokens": None}, "needs special_tokens, an object"),
        ({"special_tokens": ["<|x|>"]}, "needs special_tokens, an object"),
        ({"special_tokens": {"<|x|>": "5"}}, "'<|x|>' no ID"),
        ({"special_tokens": {"<|x|>": True}}, "'<|x|>' no ID"),
        ({"special_tokens": {"<|x|>": -1}}, "'<|x|>' no ID"),
        ({"special_tokens": {"<|x|>": 1 << 31}}, "'<|x|>' no ID"),
        ({"special_tokens": {"": 300}}, "empty special token"),
        ({"special_tokens": {"\udc00": 300}}, "lone surrogate"),
        ({"special_tokens": {"<|x|>": 300, "<|y|>": 300}}, "two special tokens one ID"),
        ({"special_tokens": {"<|x|>": 65}}, "'<|x|>' the ID 65, which a rank has already"),
        ({"special_tokens": {"<x": 300, "<w": 301, "<x>": 302}}, "'<x' .* is the beginning of '<x>'"),
        ({"explicit_n_vocab": 262}, "explicit_n_vocab 262, but there are 263 tokens with IDs up to 301"),
        ({"explicit_n_vocab": 263}, "explicit_n_vocab 263"),  # the IDs have a gap
        ({"explicit_n_vocab": "5"}, "needs explicit_n_vocab, a whole number"),
        ({"name": 5}, "needs name, a string"),
        ({"pattern": "a"}, "unknown field pattern"),
    ],
)
def test_refuses_a_sidecar(change: dict[str, Any], message: str) -> None:
    sidecar = {name: value for name, value in (SMALL_SIDECAR | change).items() if value is not None}
    with pytest.raises(UnusableFile, match=message):
        ranks_of(rank_lines(SMALL), sidecar, "test")


def test_explicit_n_vocab_that_fits() -> None:
    sidecar = {**SMALL_SIDECAR, "special_tokens": {"<|x|>": 261}, "explicit_n_vocab": 262}
    assert ranks_of(rank_lines(SMALL), sidecar, "test").vocab_size == 262


def test_why_beginnings_are_refused() -> None:
    """tiktoken finds whichever comes first in an order of its own: not always the longest."""
    found = set()
    for k in range(60):
        tokens = {f"<{k}": 300, f"<{k}>": 301, f"<{k}>>": 302}
        encoding = tiktoken.Encoding("test", pat_str=".", mergeable_ranks=BYTE_RANKS, special_tokens=tokens)
        found.add(encoding.encode(f"<{k}>>", allowed_special="all")[0])
    assert len(found) > 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.tiktoken", True),
        ("a.b.tiktoken.xz", True),
        ("tiktoken.model", True),
        ("tiktoken.model.xz", True),
        (".tiktoken", False),
        ("tokenizer.model", False),
        ("tiktoken.json", False),
        ("a.tiktoken.json", False),
        ("a.tiktoken.gz", False),
    ],
)
def test_names(name: str, expected: bool) -> None:
    assert is_rank_file(name) is expected


def test_a_folder_and_its_file_read_the_same(tmp_path: Path) -> None:
    folder = write_ranks(tmp_path / "a")
    (folder / "tokenizer_config.json").write_text('{"a": 1}')
    read = files.read(folder)
    assert read.tokenizer == rank_lines(SMALL)
    assert json.loads(read.sidecar or b"") == SMALL_SIDECAR
    assert read.json("tokenizer_config.json") == {"a": 1}
    assert read.names == ["ranks.tiktoken", "tiktoken.json", "tokenizer_config.json"]
    again = files.read(folder / "small.tiktoken")
    assert again.digest(["v"]) == read.digest(["v"])
    packed = tmp_path / "b"
    packed.mkdir()
    (packed / "tiktoken.model.xz").write_bytes(lzma.compress(rank_lines(SMALL)))
    (packed / "tiktoken.json").write_text(json.dumps(SMALL_SIDECAR))
    (packed / "tokenizer_config.json").write_text('{"a": 1}')
    assert files.read(packed).digest(["v"]) == read.digest(["v"])


def test_the_digest_depends_on_ranks_sidecar_and_tiktoken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_ranks(tmp_path)
    seen = {files.read(folder).digest(["v"])}
    (folder / "small.tiktoken.json").write_text(json.dumps({**SMALL_SIDECAR, "special_tokens": {}}))
    seen.add(files.read(folder).digest(["v"]))
    (folder / "small.tiktoken").write_bytes(rank_lines(SMALL | {b"abcd": 262}))
    seen.add(files.read(folder).digest(["v"]))
    of_files = files.read(folder).digest_of_files
    monkeypatch.setattr(tiktoken, "__version__", "0.0.0")
    seen.add(files.read(folder).digest(["v"]))
    assert len(seen) == 4
    assert files.read(folder).digest_of_files == of_files


def test_the_sidecar_of_the_file_comes_before_that_of_the_folder(tmp_path: Path) -> None:
    folder = write_ranks(tmp_path)
    (folder / "tiktoken.json").write_text("{}")
    assert json.loads(files.read(folder).sidecar or b"") == SMALL_SIDECAR
    (folder / "small.tiktoken.json").unlink()
    assert files.read(folder).sidecar == b"{}"


def test_says_what_to_write_where_the_sidecar_is_missing(tmp_path: Path) -> None:
    write_ranks(tmp_path, sidecar=None)
    with pytest.raises(UnusableFile) as caught:
        files.read(tmp_path)
    for part in ("small.tiktoken.json", "tiktoken.json", EXAMPLE):
        assert part in str(caught.value)


def test_two_rank_files_need_a_choice(tmp_path: Path) -> None:
    write_ranks(tmp_path)
    write_ranks(tmp_path, name="other")
    with pytest.raises(UnusableFile, match=r"2 rank files; give one of them: .*other\.tiktoken"):
        files.read(tmp_path)
    assert files.read(tmp_path / "small.tiktoken").sidecar is not None


def test_tokenizer_json_comes_before_ranks(tmp_path: Path) -> None:
    write_ranks(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    read = files.read(tmp_path)
    assert (read.tokenizer, read.sidecar) == (b"{}", None)
