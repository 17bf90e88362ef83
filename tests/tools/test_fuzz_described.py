"""The run of schemathesis: what counts as a finding. The program is a stand-in that sends a request or two."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools.fuzz import described

ASK = """#!{python}
import sys, urllib.error, urllib.request
url = sys.argv[sys.argv.index("--url") + 1]
assert sys.argv[1] == "run" and sys.argv[2].endswith("openapi.json") and "--seed" in sys.argv
for path in {paths}:
    try:
        urllib.request.urlopen(urllib.request.Request(url + path, method="{method}"))
    except urllib.error.HTTPError:
        pass
sys.exit({code})
"""


def program(tmp_path: Path, paths: list[str], code: int = 0, method: str = "GET") -> Path:
    file = tmp_path / "st"
    file.write_text(ASK.format(python=sys.executable, paths=paths, code=code, method=method))
    file.chmod(0o755)
    return file


@pytest.mark.parametrize(
    ("paths", "code", "found"),
    [
        (["/v1/models", "/no/such/route", "/v1/models"], 0, []),
        (["/v1/models"], 1, ["schemathesis ended with 1"]),
        ([], 0, ["no request arrived"]),
    ],
)
async def test_what_counts(tmp_path: Path, paths: list[str], code: int, found: list[str]) -> None:
    assert await described.fuzz(program(tmp_path, paths, code), examples=1, seed=0) == found


async def test_the_engine_answers_head_without_a_body(tmp_path: Path) -> None:
    """A body would be taken for the start of the next reply."""
    assert await described.fuzz(program(tmp_path, 3 * ["/v1/models"], method="HEAD"), examples=1, seed=0) == []
