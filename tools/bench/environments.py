"""Virtual environments for the packages that TokTier is measured beside, each with one of them, at one version.

They lie in the user's cache folder (`folder`) and are made when they are first asked for. Where that is not possible,
`CannotBuild` says why, and a suite puts that into its rows.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

PINNED: dict[str, tuple[str, ...]] = {
    "gigatoken": ("gigatoken==0.10.0", "numpy>=2,<3"),
    "toktier": ("toktier==0.3.0",),
    "minijinja": ("minijinja==3.1.0",),
}
"""What is installed in each; the first one names it. toktier 0.3.0 is another project's package: this one is called
toktier-proxy, but its import name is the same, so the two cannot share an environment."""


class CannotBuild(RuntimeError):
    """The environment could not be made; the text says why."""


def folder() -> Path:
    """Where they lie."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "toktier-bench"


def python_of(name: str, at: Path | None = None, build: bool = True) -> Path:
    """The Python of the environment of ``name``, one of `PINNED`; made first where that is needed.

    ``at``: the folder of all environments. Raises `CannotBuild`, also where it is not there and ``build`` is false.
    """
    root = folder() if at is None else at
    place = root / PINNED[name][0].replace("==", "-")
    if _is_made(place, name):
        return place / "bin" / "python"
    if not build:
        raise CannotBuild("its environment is not there, and --no-build was given")
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_made(place, name):
            _make(place, name)
    return place / "bin" / "python"


def _is_made(place: Path, name: str) -> bool:
    stamp = place / "made-of"
    return stamp.exists() and stamp.read_text(encoding="utf-8") == _stamp(name)


def _stamp(name: str) -> str:
    return f"{sys.version_info[:2]} {' '.join(PINNED[name])}\n"


def _make(place: Path, name: str) -> None:
    shutil.rmtree(place, ignore_errors=True)
    _call([sys.executable, "-m", "venv", "--without-pip", str(place)])
    pip = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python"), "--disable-pip-version-check"]
    _call([*pip, "install", "-q", *PINNED[name]])
    (place / "made-of").write_text(_stamp(name), encoding="utf-8")


def _call(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CannotBuild(str(error)) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise CannotBuild(f"pip: {last[:200]}" if "pip" in command else last[:200])
