"""The GPU path in the proxy: that it costs nothing where there is none, what it tells, and whom a mismatch blames."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path as File

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from structlog.testing import capture_logs

from proxy import gpu as module
from proxy.config import ConfigError, Gpu, Model, load
from proxy.gpu import GpuCollector, Gpus
from proxy.loading import assemble
from proxy.mismatch import suspects
from tests.conftest import ROOT
from tests.support.byte_device import ByteDevice, until
from tests.support.gpu import host_core
from tests.support.host_gpu import qwen3_files
from tests.support.models import qwen3
from tests.support.sent import sent
from tests.support.tokenizer_files import CACHE
from toktier.gpu.router.devices import Failed
from toktier.quarantine import Quarantine, Source
from toktier.reasons import Gpu as Reason
from toktier.reasons import Path
from toktier.sessions import SessionStore
from tools.kernels.host import HostDevice

NOTHING = """
import sys
from proxy import gpu
from proxy.config import Gpu
gpu.driver_there = lambda: False
for mode in ("off", "auto", "required"):
    gpus = gpu.Gpus(Gpu(mode=mode))
    gpus.spare()
    assert gpus.engine(None, None, None, None) is None and not list(gpu.GpuCollector(gpus).collect())
    gpus.close()
loaded = [name for name in sys.modules if "pycuda" in name or name.startswith("toktier.gpu.")]
assert loaded == ["toktier.gpu.router", "toktier.gpu.router.driver"], loaded
"""


def test_without_a_driver_nothing_of_it_is_imported() -> None:
    subprocess.run([sys.executable, "-c", NOTHING], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


def test_a_missing_driver_is_degraded_where_a_gpu_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "driver_there", lambda: False)
    with capture_logs() as lines:
        auto, required, off = (Gpus(Gpu(mode=mode)) for mode in ("auto", "required", "off"))
    assert [(line["event"], line["log_level"], line["reason"]) for line in lines] == [
        ("gpu_missing", "info", "no_driver"),
        ("gpu_missing", "warning", "no_driver"),
    ]
    assert (auto.degraded, required.degraded, off.degraded) == (None, "gpu: no_driver", None)
    assert auto.told()["reason"] == "no_driver"
    assert off.told() == {"mode": "off", "devices": []}


def test_devices_are_told_by_state() -> None:
    def opener(number: int) -> ByteDevice:
        if number:
            raise Failed(Reason.WRONG_ARCHITECTURE, "sm_70")
        return ByteDevice()

    gpus = Gpus(Gpu(mode="required", devices=(0, 1)), opener)
    until(lambda: [one.state.value for one in gpus.states] == ["ok", "off"])
    assert gpus.degraded is None
    first, second = gpus.told()["devices"]
    assert first == {"device": 0, "name": "bytes", "state": "ok"}
    assert (second["reason"], second["detail"]) == ("wrong_architecture", "sm_70")
    assert gpus.engines is not None
    gpus.engines.router.count(Reason.USED, 12)
    gpus.engines.router.count(Reason.SMALL, 5)
    registry = CollectorRegistry()
    registry.register(GpuCollector(gpus))
    text = generate_latest(registry).decode()
    for line in (
        'toktier_gpu_texts_total{outcome="used"} 1.0',
        'toktier_gpu_texts_total{outcome="busy"} 0.0',
        "toktier_gpu_chars_total 12.0",
        'toktier_gpu_state{device="0",state="ok"} 1.0',
        'toktier_gpu_state{device="1",state="off"} 1.0',
        'toktier_gpu_launches_total{device="0"} 0.0',
    ):
        assert line in text
    gpus.close()
    assert gpus.degraded == "gpu: closed"


@pytest.mark.parametrize(
    ("source", "by_gpu", "kind", "want"),
    [
        (Source.SHADOW, False, "ids", [Path.APPEND]),
        (Source.SHADOW, True, "ids", [Path.GPU]),
        (Source.SHADOW, True, "text", [Path.APPEND]),
        (Source.SHADOW, True, "digest", [Path.APPEND]),
        (Source.USAGE, True, "count", [Path.GPU, Path.APPEND]),
        (Source.TOKENIZE, True, "ids", [Path.GPU, Path.APPEND]),
        (Source.USAGE, False, "count", [Path.APPEND]),
    ],
)
def test_whom_a_mismatch_speaks_against(source: Source, by_gpu: bool, kind: str, want: list[Path]) -> None:
    assert suspects(source, sent(by_gpu=by_gpu), kind) == want


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("devices = [0, 0]", "named twice"),
        ("devices = []", "devices"),
        ("queue_bytes = 1000000", "queue_bytes"),
        ('mode = "on"', "mode"),
    ],
)
def test_settings_that_contradict_each_other(tmp_path: File, text: str, problem: str) -> None:
    file = tmp_path / "toktier.toml"
    file.write_text(f"[gpu]\n{text}\n")
    with pytest.raises(ConfigError) as error:
        load(file, environ={"TOKTIER_AUTH__STATE_DIR": str(tmp_path)})
    assert any(problem in f"{one.place} {one.problem}" for one in error.value.problems)


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.xdist_group("qwen3")
def test_a_model_gets_the_path_of_its_tokenizer_while_that_is_trusted(tmp_path: File) -> None:
    quarantine, tokenizer = Quarantine(tmp_path / "quarantine.json"), qwen3()
    gpus = Gpus(Gpu(from_chars=1, timeout_s=60), lambda _: HostDevice(host_core()))
    engine = gpus.engine(tokenizer, qwen3_files(), CACHE, quarantine)
    assert engine is not None
    until(lambda: engine.standing is not Reason.LOADING, 60)
    model = Model(upstream="u", tokenizer="embedded")
    tier = assemble("m", model, tokenizer, SessionStore(1 << 26), quarantine=quarantine, gpu=engine).tier
    body = {"messages": [{"role": "user", "content": "na\u00efve e\u0301 <|im_end|> text " * 40}]}
    told = tier.prepare("t", body)
    assert (told.gpu, told.by_gpu) == (Reason.USED, True)
    assert told.ids.tolist() == tokenizer.reference.encode(told.text).tolist()
    quarantine.add(tokenizer.digest_of_files, Path.GPU, Source.SHADOW, model="m", request_id="r", at_reference=False)
    assert tier.prepare("another", body).gpu is engine.standing is Reason.QUARANTINED
    gpus.close()
    assert gpus.engine(replace(tokenizer, certificate=None), qwen3_files(), CACHE, quarantine) is None
