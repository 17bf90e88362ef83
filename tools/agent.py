"""A real agent CLI (pi) for tests: installed by npm outside the repository, driven headless.

The version and every dependency are pinned by the lock file in `tests/agent`; the copy lies in the user's cache folder,
under the lock file's digest, so a changed lock file makes a new one.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

MANIFEST = Path(__file__).resolve().parent.parent / "tests" / "agent"
FILES = ("package.json", "package-lock.json")
PROVIDER = "toktier"
TURN_S = 180.0
"""Longest run of one command."""


class AgentFailed(RuntimeError):
    """The CLI could not be installed or did not end well; the text has the end of what it wrote."""


def install() -> Path:
    """The path of `pi`, installed first where that is needed (about a minute). Raises `AgentFailed`."""
    digest = hashlib.sha256(b"\0".join((MANIFEST / name).read_bytes() for name in FILES)).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "toktier-agent"
    folder = cache / digest
    command = folder / "node_modules" / ".bin" / "pi"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / "installed"
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            for name in FILES:
                shutil.copy(MANIFEST / name, folder)
            # No package needs to run code of its own to be installed.
            npm = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"]
            result = subprocess.run(npm, cwd=folder, capture_output=True, text=True, check=False)
            if result.returncode:
                raise AgentFailed(f"npm ci failed:\n{result.stderr[-2000:]}")
            done.touch()
    return command


class Pi:
    """`pi` with a home of its own and one provider: an OpenAI-compatible URL."""

    def __init__(self, command: Path, home: Path, project: Path, *, url: str, model: str) -> None:
        self._command, self._project = command, project
        self._model = model
        self._environment = {"HOME": str(home), "PATH": os.environ["PATH"], "PI_OFFLINE": "1", "LANG": "C.UTF-8"}
        provider = {
            "baseUrl": f"{url}/v1",
            "api": "openai-completions",
            "apiKey": "unused",
            "models": [{"id": model, "reasoning": True}],
        }
        settings = home / ".pi" / "agent"
        settings.mkdir(parents=True)
        (settings / "models.json").write_text(json.dumps({"providers": {PROVIDER: provider}}))

    async def run(self, prompt: str, *, resume: bool = False) -> str:
        """One headless run, or the next user turn of the last one; its final text. Raises `AgentFailed`."""
        arguments = ["--provider", PROVIDER, "--model", self._model, *(["-c"] if resume else []), "-p", prompt]
        process = await asyncio.create_subprocess_exec(
            str(self._command),
            *arguments,
            cwd=self._project,
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(), TURN_S)
        except BaseException:
            if process.returncode is None:
                process.kill()
                await process.wait()
            raise
        if process.returncode:
            raise AgentFailed(f"pi ended with {process.returncode}:\n{(err + out).decode(errors='replace')[-2000:]}")
        return out.decode()
