"""An environment of its own with fastokens 0.3.1, whose IDs depend on the texts that it encoded before.

It is a virtual environment that holds that one package and, behind it on the path, the packages of the environment that
runs this: seconds to make, and nothing else differs. It lies in the user's cache folder.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

VERSION = "0.3.1"


class CannotBuild(RuntimeError):
    """The environment could not be made; the text says why."""


def folder() -> Path:
    """Where it lies."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "toktier-faults" / f"fastokens-{VERSION}"


def existing(at: Path | None = None) -> Path | None:
    """Its Python, if it was made and is that of the environment that runs this."""
    place = folder() if at is None else at
    made_for = place / "made-for"
    if not made_for.exists() or made_for.read_text(encoding="utf-8") != _packages():
        return None
    return _python(place)


def build(at: Path | None = None) -> Path:
    """Its Python; made first where that is needed. Raises `CannotBuild`."""
    place = folder() if at is None else at
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / "lock").open("w") as lock:  # tests run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        return existing(place) or _build(place)


def _build(place: Path) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    _call([sys.executable, "-m", "venv", "--without-pip", str(place)])
    python = _python(place)
    install = ["install", "-q", "--disable-pip-version-check", "--no-deps", f"fastokens=={VERSION}"]
    _call([sys.executable, "-m", "pip", "--python", str(python), *install])
    _own_packages(python).joinpath("others.pth").write_text(
        f"import site; site.addsitedir({_packages()!r})\n", encoding="utf-8"
    )
    found_version = _call([str(python), "-c", "import importlib.metadata as m; print(m.version('fastokens'))"])
    if found_version.strip() != VERSION:
        raise CannotBuild(f"fastokens {found_version.strip()} is found there, not {VERSION}")
    (place / "made-for").write_text(_packages(), encoding="utf-8")
    return python


def _python(place: Path) -> Path:
    return place / "bin" / "python"


def _packages() -> str:
    """Where the packages of the environment that runs this lie."""
    return sysconfig.get_paths()["purelib"]


def _own_packages(python: Path) -> Path:
    return Path(_call([str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]).strip())


def _call(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CannotBuild(str(error)) from error
    if done.returncode:
        raise CannotBuild(f"{' '.join(command[:4])} ...: {done.stderr.strip()[-1000:]}")
    return done.stdout
