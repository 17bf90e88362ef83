"""The compiled kernels that come with the package, and what they were compiled from.

``make kernels`` puts one fatbin (machine code for the architectures of `ARCHITECTURES`, and PTX for later ones) and its
manifest into ``toktier/gpu/kernels``. A fatbin whose bytes or sources are not those of its manifest is not used. In a
checkout with nvcc, `compiled` builds one for the device at hand.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from toktier.errors import UnusableFile

FOLDER = Path(__file__).parent / "kernels"
SOURCES = Path(__file__).resolve().parents[2] / "cuda_src"
"""There in a checkout only."""
ARCHITECTURES = (80, 86, 89, 90, 100, 120)
FLAGS = ("-O3", "-std=c++17")


@dataclass(frozen=True)
class Fatbin:
    content: bytes


def load(folder: Path = FOLDER) -> Fatbin:
    """The fatbin in ``folder``. Raises `UnusableFile` where there is none, or not the one of its manifest."""
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
        content = (folder / "kernels.fatbin").read_bytes()
    except (OSError, ValueError) as error:
        raise UnusableFile(f"no kernels in {folder}: run `make kernels`") from error
    if hashlib.sha256(content).hexdigest() != manifest.get("sha256"):
        raise UnusableFile(f"the kernels in {folder} are not those of their manifest: run `make kernels`")
    if SOURCES.is_dir() and manifest.get("sources") != sources_digest():
        raise UnusableFile(f"the kernels in {folder} are of other sources than {SOURCES}: run `make kernels`")
    return Fatbin(content)


def sources_digest() -> str:
    """Hex digest of ``cuda_src``."""
    state = hashlib.sha256()
    for path in sorted(SOURCES.glob("*.cu*")):
        source = path.read_bytes()
        state.update(f"{path.name} {len(source)}\0".encode() + source)
    return state.hexdigest()


def compiled(architecture: int) -> Fatbin:
    """Compiles the checkout's kernels for one architecture (90: an H100 or H200). For development: half a minute.

    Raises `FileNotFoundError` without nvcc, and `subprocess.CalledProcessError`.
    """
    compiler = shutil.which("nvcc")
    if compiler is None:
        raise FileNotFoundError("nvcc is not installed")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "kernels.fatbin"
        target = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
        command = [compiler, *FLAGS, target, "-fatbin", "-o", str(out), str(SOURCES / "kernels.cu")]
        subprocess.run(command, check=True)  # noqa: S603
        return Fatbin(out.read_bytes())
