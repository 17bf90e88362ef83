"""A real agent CLI through the proxy against the scripted engine: every turn exact, all but the first repaired."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from proxy.embedded import EmbeddedEngine
from proxy.embedded_script import Call, Script, Turn
from tools.agent import Pi, install
from tools.demo.services import Proxy

pytestmark = pytest.mark.agent

LONG_LINE = "0123456789 the quick brown fox 敏捷的棕色狐狸 ſ é\n"


@pytest.fixture(scope="module")
def command() -> Path:
    if not os.environ.get("TOKTIER_TEST_AGENT"):
        pytest.skip("needs npm and its registry: make test-agent")
    if shutil.which("npm") is None:
        pytest.fail("the test was asked for, but npm is not installed")
    return install()


def call(name: str, spacing: tuple[str, str] = (", ", ": "), **arguments: Any) -> Call:
    return Call(name=name, arguments=json.dumps(arguments, separators=spacing))


SCRIPT = Script(
    turns=[
        # The model's spacing and escapes; the client writes the arguments anew.
        Turn(
            text="Let me look.", reasoning="\nList first.\n", tool_calls=[call("bash", command="ls -la; cat notes.txt")]
        ),
        # Parallel calls, one of which fails.
        Turn(tool_calls=[call("read", (",", ":"), path="notes.txt"), call("read", path="missing.txt")]),
        Turn(reasoning="Write.", tool_calls=[call("write", path="out.txt", content="héllo 你好\n<|im_end|>\n")]),
        Turn(tool_calls=[call("edit", path="out.txt", edits=[{"oldText": "héllo", "newText": "bye"}])]),
        # Numbers that JavaScript writes in another way, and output long enough to be cut.
        Turn(text="Now a long one. ", tool_calls=[call("bash", command="cat long.txt", timeout=60.0)]),
        Turn(tool_calls=[call("bash", command="exit 3")]),
        Turn(text="All done: out.txt is written.", reasoning="Finish."),
        # The second user turn, after a resume from the client's own session file.
        Turn(reasoning="Look again.", tool_calls=[call("bash", command="cat out.txt")]),
        Turn(text="It says bye."),
    ]
)
"""Nine turns: seven for the first user turn, two for the second."""


async def test_pi_session(command: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "notes.txt").write_text("remember the milk\n")
    (project / "long.txt").write_text(LONG_LINE * 1500)
    engine = EmbeddedEngine(script=SCRIPT.model_copy(deep=True))
    async with engine, Proxy(engine.url, engine.model) as proxy:
        pi = Pi(command, tmp_path / "home", project, url=proxy.url, model=engine.model)
        assert (await pi.run("Copy my notes to out.txt.")).strip() == "All done: out.txt is written."
        assert (await pi.run("What does it say?", resume=True)).strip() == "It says bye."
        await engine.settled()
        verdicts = [verdict for verdict in engine.verdicts if verdict.form != "probe"]
        logs = [(await proxy.records(verdict.request_id))[0] for verdict in verdicts]

    assert (project / "out.txt").read_text() == "bye 你好\n<|im_end|>\n"  # the tools really ran
    assert len(verdicts) == len(SCRIPT.turns)
    inexact = [(n, v.form, v.problem or v.first_difference) for n, v in enumerate(verdicts) if not v.exact]
    assert not inexact, inexact
    paths = [log["path"] for log in logs]
    assert paths[0] == "init"
    assert all(path in ("append", "edit") for path in paths[1:]), paths
    assert paths.count("append") > len(paths) // 2, paths
    assert all(log["prompt_tokens_equal"] is not False for log in logs)
    served = sum(log["served_chars"] for log in logs[1:])
    scanned = sum(log["scanned_chars"] for log in logs[1:])
    assert scanned < served / 2


async def test_the_client_sees_an_engine_that_is_busy_once(command: Path, tmp_path: Path) -> None:
    """The client's own retry passes through: the same body again, exact both times."""
    project = tmp_path / "project"
    project.mkdir()
    script = Script.model_validate({"turns": [{"text": "Here I am.", "failures": [{"status": 503}]}]})
    engine = EmbeddedEngine(script=script)
    async with engine, Proxy(engine.url, engine.model) as proxy:
        pi = Pi(command, tmp_path / "home", project, url=proxy.url, model=engine.model)
        assert (await asyncio.wait_for(pi.run("Hello."), 120)).strip() == "Here I am."
        await engine.settled()
        verdicts = [verdict for verdict in engine.verdicts if verdict.form != "probe"]
        logs = [(await proxy.records(verdict.request_id))[0] for verdict in verdicts]
    assert [verdict.exact for verdict in verdicts] == [True, True]
    assert [log["path"] for log in logs] == ["init", "retry"]
    assert [log["status"] for log in logs] == [503, 200]
