"""Sources of tokenizers: what is read, what is refused and how it is said."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from structlog.testing import capture_logs

from tests.support.rank_data import SMALL_SIDECAR, write_ranks
from toktier import files
from toktier.errors import UnusableFile

MODEL = b'{"model": {}}'
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def folder(path: Path) -> Path:
    path.mkdir()
    (path / "tokenizer.json").write_bytes(MODEL)
    (path / "tokenizer_config.json").write_text('{"a": 1}')
    (path / "chat_template.jinja").write_text("{{ x }}")
    (path / "additional_chat_templates").mkdir()
    (path / "additional_chat_templates" / "tool_use.jinja").write_text("{{ y }}")
    (path / "additional_chat_templates" / "notes.txt").write_text("not read")
    (path / "model.safetensors").write_text("not read")
    return path


def test_a_folder_and_its_file_read_the_same(tmp_path: Path) -> None:
    path = folder(tmp_path / "a")
    read = files.read(path)
    assert read.tokenizer == MODEL
    assert set(read.small) == {
        "tokenizer_config.json",
        "chat_template.jinja",
        "additional_chat_templates/tool_use.jinja",
    }
    assert read.json("tokenizer_config.json") == {"a": 1}
    assert read.json("config.json") == {}
    assert not read.compressed
    assert files.read(str(path / "tokenizer.json")).digest([]) == read.digest([])


def test_messages_name_the_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder(tmp_path / "a")
    assert files.read(path).model_name == f"tokenizer.json of {path}"
    assert files.read(path / "tokenizer.json").model_name == str(path / "tokenizer.json")
    (path / "other.json").write_bytes(MODEL)
    assert files.read(path / "other.json").model_name == str(path / "other.json")
    monkeypatch.chdir(path)
    assert files.read(".").model_name == "tokenizer.json of ."
    assert files.read("tokenizer.json").model_name == "tokenizer.json"


def test_compressed_and_plain_are_the_same_tokenizer(tmp_path: Path) -> None:
    plain = files.read(folder(tmp_path / "a"))
    path = folder(tmp_path / "b")
    (path / "tokenizer.json").unlink()
    (path / "tokenizer.json.xz").write_bytes(lzma.compress(MODEL))
    packed = files.read(path)
    assert packed.compressed
    assert packed.digest(["v"]) == plain.digest(["v"])


def test_the_digest_depends_on_every_part(tmp_path: Path) -> None:
    path = folder(tmp_path / "a")
    seen = {files.read(path).digest(["v 1"]), files.read(path).digest(["v 2"]), files.read(path).digest(["v", " 1"])}
    (path / "chat_template.jinja").write_text("{{ z }}")
    seen.add(files.read(path).digest(["v 1"]))
    (path / "chat_template.jinja").rename(path / "chat_template.json")
    seen.add(files.read(path).digest(["v 1"]))
    (path / "tokenizer.json").write_bytes(MODEL + b" ")
    seen.add(files.read(path).digest(["v 1"]))
    assert len(seen) == 6


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json.xz", b"no xz at all", "not a valid xz file"),
        ("tokenizer.json.xz", lzma.compress(MODEL)[:-8], "cut short"),
        ("tokenizer.json.xz", lzma.compress(MODEL) + b"tail", "trailing data"),
        ("tokenizer.json.xz", lzma.compress(MODEL, format=lzma.FORMAT_ALONE), "not a valid xz file"),
        ("tokenizer.json.xz", lzma.compress(bytes(3 << 20)), "holds more than"),
        ("tokenizer.json", bytes(3 << 20), "larger than"),
    ],
)
def test_bad_files_are_named_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, message: str
) -> None:
    monkeypatch.setattr(files, "MODEL_LIMIT", 2 << 20)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UnusableFile, match=message) as caught:
        files.read(tmp_path)
    assert name in str(caught.value)


def test_a_dictionary_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "XZ_MEMORY", 1 << 16)
    (tmp_path / "tokenizer.json.xz").write_bytes(lzma.compress(MODEL))
    with pytest.raises(UnusableFile, match="not a valid xz file"):
        files.read(tmp_path)


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[]", b"1", b'{"a": "\xe9"}', b"[" * 200_000])
def test_malformed_json(content: bytes) -> None:
    with pytest.raises(UnusableFile, match=r"^config\.json of x is not"):
        files.parse_object(content, "config.json of x")


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(UnusableFile, match=r"holds no tokenizer\.json"):
        files.read(tmp_path)


def test_a_revision_is_for_hub_ids(tmp_path: Path) -> None:
    with pytest.raises(UnusableFile, match="remove the revision"):
        files.read(folder(tmp_path / "a"), revision=COMMIT)


@pytest.mark.parametrize("source", ["./absent", "/absent/x", "a/b/c", "../x", "x/tokenizer.json", Path("org/name"), ""])
def test_no_path_and_no_hub_id(source: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("the hub was asked"))
    with pytest.raises(UnusableFile, match=r"does not exist|holds no"):
        files.read(source)


def test_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(UnusableFile) as caught:
        files.read("https://user:secret@host/x")
    assert "secret" not in str(caught.value)


# --- the hub


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache without network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hub"


def cached(hub: Path) -> None:
    repo = hub / "models--org--name"
    (repo / "snapshots").mkdir(parents=True)
    folder(repo / "snapshots" / COMMIT)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)


@pytest.mark.parametrize(("revision", "pinned"), [(COMMIT, True), ("main", False), (None, False)])
def test_the_cache_serves_without_a_network(hub_cache: Path, revision: str | None, pinned: bool) -> None:
    cached(hub_cache)
    with capture_logs() as logs:
        read = files.read("org/name", revision=revision)
    assert read.revision == COMMIT
    assert read.tokenizer == MODEL
    assert [entry["event"] for entry in logs] == ([] if pinned else ["tokenizer.revision_not_pinned"])


def test_an_uncached_id_without_a_revision_is_not_fetched(hub_cache: Path) -> None:
    with pytest.raises(UnusableFile, match="set its revision to a commit hash"):
        files.read("org/name")


def test_an_uncached_id_that_cannot_be_fetched(hub_cache: Path) -> None:
    with pytest.raises(UnusableFile, match="could not be fetched"):
        files.read("org/name", revision=COMMIT)


def test_a_pinned_id_is_fetched_by_pattern(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []

    def download(repo: str, **options: Any) -> str:
        calls.append(options)
        if options.get("local_files_only"):
            raise huggingface_hub.errors.LocalEntryNotFoundError("not cached")
        cached(hub_cache)
        return str(hub_cache / "models--org--name" / "snapshots" / COMMIT)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    read = files.read("org/name", revision=COMMIT)
    assert read.revision == COMMIT
    assert [call.get("local_files_only", False) for call in calls] == [True, False]
    assert all(call["revision"] == COMMIT and "tokenizer.json" in call["allow_patterns"] for call in calls)
    assert not any("safetensors" in pattern for pattern in calls[1]["allow_patterns"])


def test_config_that_is_no_object(tmp_path: Path) -> None:
    path = folder(tmp_path / "a")
    (path / "tokenizer_config.json").write_text(json.dumps([1]))
    with pytest.raises(UnusableFile, match=r"tokenizer_config\.json of .* is not a JSON object"):
        files.read(path).json("tokenizer_config.json")


def test_a_sidecar_may_lie_elsewhere(tmp_path: Path) -> None:
    ranks = write_ranks(tmp_path / "ranks", sidecar=None)
    elsewhere = tmp_path / "other.json"
    elsewhere.write_text(json.dumps(SMALL_SIDECAR))
    assert files.read(ranks, sidecar=elsewhere).sidecar == elsewhere.read_bytes()
    with pytest.raises(UnusableFile, match="no rank file"):
        files.read(folder(tmp_path / "json"), sidecar=elsewhere)
