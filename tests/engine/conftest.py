"""One real vLLM for all tests here. It is built on first use (`python -m tools.engine build`) and started once.

Runs with `make test-engine`, or with `CI` set; elsewhere these tests skip. An engine that runs already is used and left
running (`python -m tools.engine start`, for quick repetition).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.engine import Engine, Proxy, serving
from tools.engine.build import default_cache
from tools.engine.server import TOKENIZER, current, ensure_started, stop

WANTED = os.environ.get("TOKTIER_TEST_ENGINE") == "1" or os.environ.get("CI") == "true"


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    if not WANTED:
        pytest.skip("needs a real vLLM: make test-engine (or TOKTIER_TEST_ENGINE=1)")
    capture = request.config.pluginmanager.getplugin("capturemanager")
    cache = default_cache()
    was_running = current(cache) is not None
    with capture.global_and_fixture_disabled():
        running = ensure_started(cache, timeout_s=600, say=lambda line: print(line, flush=True))
    yield Engine(running.url)
    if not was_running:
        stop(cache)


def config(engine: Engine, auth: str = "", model: str = "") -> str:
    """A configuration with the engine as its one upstream; `auth` and `model` are more lines of those tables."""
    return f"""
[auth]
{auth}
[upstreams.engine]
url = "{engine.url}"
[models.tiny]
upstream = "engine"
tokenizer = "{TOKENIZER}"
{model}
"""


@pytest.fixture(scope="session")
def proxy(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """A proxy that adds no cache salt, so that requests through it and past it share the engine's prefix cache."""
    folder: Path = tmp_path_factory.mktemp("proxy")
    with serving(folder, config(engine, f'salt = "off"\nstate_dir = "{folder}"')) as running:
        yield running
