from __future__ import annotations

import json
from pathlib import Path as File

import pytest
from typer.testing import CliRunner, Result

from proxy.cli import app
from toktier.quarantine import Quarantine, Source
from toktier.reasons import Path


@pytest.fixture
def config(tmp_path: File, monkeypatch: pytest.MonkeyPatch) -> File:
    monkeypatch.delenv("TOKTIER_CONFIG", raising=False)
    file = tmp_path / "toktier.toml"
    file.write_text(f'[auth]\nstate_dir = "{tmp_path / "state"}"\n[log]\npath = "{tmp_path / "log"}"\n')
    return file


@pytest.fixture
def quarantine(tmp_path: File) -> Quarantine:
    made = Quarantine(tmp_path / "state" / "quarantine.json")
    for digest, path in (("aa11", Path.APPEND), ("aa11", Path.EDIT), ("bb22", Path.APPEND), ("bb33", Path.INIT)):
        made.add(digest, path, Source.SHADOW, model="m", request_id="r", at_reference=False)
    return made


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["quarantine", *arguments])


def left(config: File) -> list[tuple[str, str]]:
    reply = json.loads(run("list", "--config", str(config), "--json").stdout)
    return [(entry["tokenizer_digest"], entry["path"]) for entry in reply["entries"]]


def test_nothing_in_quarantine(config: File) -> None:
    where = f"file: {config.parent / 'state' / 'quarantine.json'} (there is none)\n"
    listed = run("list", "--config", str(config))
    assert (listed.exit_code, listed.stdout) == (0, where + "nothing is in quarantine\n")
    lifted = run("lift", "--config", str(config))
    assert (lifted.exit_code, lifted.stdout) == (1, where + "nothing was lifted\n")
    assert not (config.parent / "state").exists(), "looking makes nothing"


def test_list(config: File, quarantine: Quarantine) -> None:
    listed = run("list", "--config", str(config))
    assert listed.exit_code == 1
    where, *entries = listed.stdout.splitlines()
    assert where == f"file: {config.parent / 'state' / 'quarantine.json'}"
    assert len(entries) == 4
    assert "aa11  path append  level reference" in listed.stdout
    assert left(config) == [(entry.tokenizer_digest, entry.path) for entry in quarantine.entries()]


def test_lift_by_tokenizer_and_path(config: File, quarantine: Quarantine) -> None:
    only = run("lift", "--config", str(config), "--tokenizer", "aa", "--path", "edit")
    assert only.exit_code == 0
    where, line = only.stdout.splitlines()
    assert where == f"file: {config.parent / 'state' / 'quarantine.json'}"
    assert line.startswith("lifted: aa11  path edit")
    assert sorted(left(config)) == [("aa11", "append"), ("bb22", "append"), ("bb33", "init")]
    assert quarantine.refresh()
    assert quarantine.level("aa11", Path.EDIT) is None
    assert run("lift", "--config", str(config), "--tokenizer", "b").exit_code == 2, "two begin like that"
    assert run("lift", "--config", str(config), "--path", "sideways").exit_code == 2
    assert run("lift", "--config", str(config), "--tokenizer", "cc").exit_code == 1
    by_path = json.loads(run("lift", "--config", str(config), "--path", "append", "--json").stdout)
    assert {entry["tokenizer_digest"] for entry in by_path["lifted"]} == {"aa11", "bb22"}
    assert run("lift", "--config", str(config)).exit_code == 0
    assert run("list", "--config", str(config)).exit_code == 0


def test_a_damaged_file_is_given_up_only_with_all(config: File, quarantine: Quarantine) -> None:
    file = config.parent / "state" / "quarantine.json"
    file.write_text("no JSON")
    listed = run("list", "--config", str(config))
    assert listed.exit_code == 1
    assert "damaged" in listed.stdout
    assert run("lift", "--config", str(config), "--path", "edit").exit_code == 1
    assert run("list", "--config", str(config)).exit_code == 1
    lifted = run("lift", "--config", str(config))
    assert lifted.exit_code == 0
    assert "replaced" in lifted.stdout
    assert run("list", "--config", str(config)).exit_code == 0


def test_an_entry_of_an_older_version_is_named_stale_and_lifted_by_its_old_digest(
    config: File, quarantine: Quarantine
) -> None:
    file = config.parent / "state" / "quarantine.json"
    found = json.loads(file.read_text())
    of_before = [{key: one[key] for key in one.keys() - {"stale", "versions"}} for one in found["entries"]]
    file.write_text(json.dumps({**found, "schema": 1, "entries": of_before}))
    quarantine.refresh()
    listed = run("list", "--config", str(config))
    assert listed.exit_code == 1
    assert listed.stdout.count("stale: from an older TokTier, counts for this path of every tokenizer") == 4
    assert quarantine.level("cc44", Path.EDIT) is not None
    assert run("lift", "--config", str(config), "--tokenizer", "aa").exit_code == 0
    quarantine.refresh()
    assert quarantine.level("cc44", Path.EDIT) is None
    assert quarantine.level("cc44", Path.INIT) is not None


def test_the_engines_are_listed_for_people(config: File, quarantine: Quarantine) -> None:
    known = {"model": "m", "request_id": "r", "at_reference": False}
    quarantine.add("dd55", Path.GPU, Source.USAGE, versions="tokenizers 0.23", **known)  # type: ignore[arg-type]
    lines = run("list", "--config", str(config)).stdout.splitlines()
    assert [line.endswith("1 mismatch (tokenizers 0.23)") for line in lines[1:]].count(True) == 1


def test_the_log_is_told_where_there_is_one(config: File, quarantine: Quarantine) -> None:
    log = config.parent / "log"
    run("lift", "--config", str(config), "--tokenizer", "bb33")
    assert not log.exists(), "a file that is made here might not be the proxy's to write"
    log.write_text("")
    run("lift", "--config", str(config))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {(line["event"], line["tokenizer_digest"], line["path"]) for line in lines} == {
        ("quarantine_lifted", "aa11", "append"),
        ("quarantine_lifted", "aa11", "edit"),
        ("quarantine_lifted", "bb22", "append"),
    }
    assert {line["by"] for line in lines} == {"command"}


def test_a_folder_that_cannot_be_written(config: File, quarantine: Quarantine) -> None:
    state = config.parent / "state"
    (state / "quarantine.json.lock").unlink()
    (state / "quarantine.json.lock").mkdir()
    lifted = run("lift", "--config", str(config))
    assert lifted.exit_code == 1
    assert "nothing was lifted" in lifted.stderr
    assert len(left(config)) == 4


def test_a_wrong_configuration(config: File) -> None:
    config.write_text("[auth]\nnone = 1\n")
    assert run("list", "--config", str(config)).exit_code == 2
