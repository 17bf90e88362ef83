"""``make kernels``: every architecture and PTX in one fatbin, with its manifest, into the package."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from toktier.gpu.fatbin import ARCHITECTURES, FLAGS, FOLDER, SOURCES, sources_digest


def command(compiler: str, out: Path, architectures: tuple[int, ...]) -> list[str]:
    """nvcc for all of ``architectures``, and the PTX of the last for later ones."""
    targets = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in architectures]
    targets.append(f"-gencode=arch=compute_{architectures[-1]},code=compute_{architectures[-1]}")
    threads = f"--threads={os.cpu_count() or 1}"
    return [compiler, *FLAGS, threads, *targets, "-fatbin", "-o", str(out), str(SOURCES / "kernels.cu")]


def build(folder: Path, architectures: tuple[int, ...] = ARCHITECTURES) -> dict[str, object]:
    """Compiles into ``folder`` and returns the manifest. Raises `FileNotFoundError` without nvcc."""
    compiler = shutil.which("nvcc")
    if compiler is None:
        raise FileNotFoundError("nvcc is not installed: the kernels cannot be built (CUDA 13 has it)")
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / "kernels.fatbin"
    subprocess.run(command(compiler, out, architectures), check=True)
    version = subprocess.run([compiler, "--version"], check=True, capture_output=True, text=True).stdout
    manifest: dict[str, object] = {
        "sha256": hashlib.sha256(out.read_bytes()).hexdigest(),
        "sources": sources_digest(),
        "nvcc": version.strip().splitlines()[-1],
        "flags": list(FLAGS),
        "architectures": [f"sm_{a}" for a in architectures] + [f"compute_{architectures[-1]}"],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    return manifest


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.kernels", description="Build the GPU kernels.")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the fatbin and its manifest")
    parser.add_argument("--architectures", type=int, nargs="+", default=list(ARCHITECTURES), help="90: sm_90")
    arguments = parser.parse_args()
    started = time.perf_counter()
    try:
        manifest = build(arguments.out, tuple(arguments.architectures))
    except FileNotFoundError as error:
        sys.exit(str(error))
    except subprocess.CalledProcessError as error:
        sys.exit(f"nvcc ended with {error.returncode}")
    seconds = time.perf_counter() - started
    size = (arguments.out / "kernels.fatbin").stat().st_size
    print(f"{arguments.out / 'kernels.fatbin'}: {size:,} bytes for {manifest['architectures']}, {seconds:.0f} s")


if __name__ == "__main__":
    main()
