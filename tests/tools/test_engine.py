"""The engine harness without an engine: what it signals, what it writes, what it says when it cannot build."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from tools.engine import build, model, server
from tools.engine.__main__ import main

# A parent and a child that both ignore SIGTERM when told so; each prints its id.
FAMILY = """
import os, signal, subprocess, sys, time
if sys.argv[1] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if sys.argv[2] == "parent":
    child = subprocess.Popen([sys.executable, __file__, sys.argv[1], "child"], start_new_session=True)
print(os.getpid(), flush=True)
time.sleep(60)
"""


def family(folder: Path, manner: str) -> tuple[subprocess.Popen[str], list[int]]:
    script = folder / "family.py"
    script.write_text(FAMILY)
    process = subprocess.Popen([sys.executable, str(script), manner, "parent"], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    return process, [int(process.stdout.readline()), int(process.stdout.readline())]


def remember(cache: Path, pid: int, started: int) -> None:
    running = server.Running(pid, started, "http://127.0.0.1:9", "tiny", str(cache / "engine.log"))
    server.state_file(cache).write_text(json.dumps(asdict(running)))


@pytest.mark.parametrize("manner", ["polite", "stubborn"])
def test_stop_ends_the_process_and_its_children(tmp_path: Path, manner: str):
    process, pids = family(tmp_path, manner)
    started = {pid: server.start_time(pid) for pid in pids}
    remember(tmp_path, process.pid, started[process.pid] or 0)
    assert server.stop(tmp_path, grace_s=0.5)
    process.wait(timeout=10)
    deadline = time.monotonic() + 10
    while any(server.alive(pid, started[pid] or 0) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(server.alive(pid, started[pid] or 0) for pid in pids)
    assert server.current(tmp_path) is None
    assert not server.stop(tmp_path)
    process.stdout.close()  # type: ignore[union-attr]


def test_a_process_that_took_over_the_id_is_left_alone(tmp_path: Path):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        started = server.start_time(process.pid)
        assert started
        remember(tmp_path, process.pid, started - 1)
        assert server.current(tmp_path) is None
        assert not server.stop(tmp_path)
        assert server.alive(process.pid, started)
        process.kill()


def test_weights_can_be_read_and_are_the_same_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(model, "VOCAB", 50)
    for name in ("a", "b"):
        model.write_weights(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    tensors = load_file(tmp_path / "a")
    assert {name: tensor.shape for name, tensor in tensors.items()} == model.shapes()
    assert abs(float(tensors["lm_head.weight"].std()) - model.DEVIATION) < 0.05
    assert tensors["model.norm.weight"].tolist() == [1.0] * model.HIDDEN


def test_the_model_folder_is_written_once_and_again_when_it_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(model, "VOCAB", 50)
    folder = model.make_model(tmp_path / "tiny", server.TOKENIZER)
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert json.loads((folder / "tokenizer.json").read_bytes())["model"]["type"] == "BPE"
    assert "chat_template" in json.loads((folder / "tokenizer_config.json").read_text())
    written = (folder / "model.safetensors").stat().st_mtime_ns
    model.make_model(folder, server.TOKENIZER)
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    monkeypatch.setattr(model, "VOCAB", 60)
    model.make_model(folder, server.TOKENIZER)
    assert load_file(folder / "model.safetensors")["lm_head.weight"].shape == (60, model.HIDDEN)


def test_an_engine_that_ends_at_once_is_an_error_with_its_log(tmp_path: Path):
    vllm = build.venv_python(tmp_path).with_name("vllm")
    vllm.parent.mkdir(parents=True)
    vllm.write_text("#!/bin/sh\necho no such luck\nexit 7\n")
    vllm.chmod(0o755)
    with pytest.raises(build.EngineError, match=r"(?s)status 7.*no such luck"):
        server.start(tmp_path, tmp_path / "model", say=lambda line: None)
    assert server.current(tmp_path) is None


def test_a_failing_pip_is_an_error_with_a_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    python = build.venv_python(tmp_path)
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    assert main(["build", "--cache", str(tmp_path)]) == 1
    assert "run it again" in capsys.readouterr().err
    assert not build.is_built(tmp_path)


def test_status_without_a_build(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["status", "--cache", str(tmp_path)]) == 3
    assert capsys.readouterr().out == "not built\n"


def test_a_stamp_of_another_recipe_is_not_a_build(tmp_path: Path):
    build.venv_python(tmp_path).parent.mkdir(parents=True)
    build.venv_python(tmp_path).touch()
    stamp = tmp_path / "stamp.json"
    stamp.write_text(json.dumps({"recipe": build.recipe(), "versions": {}}))
    assert build.is_built(tmp_path)
    stamp.write_text(json.dumps({"recipe": "other", "versions": {}}))
    assert not build.is_built(tmp_path)
