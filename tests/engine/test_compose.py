"""The command that the compose file gives vLLM's image is one that vLLM's own parser takes."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.conftest import ROOT
from tools.engine.build import default_cache, venv_python

if TYPE_CHECKING:
    from tests.support.engine import Engine

pytestmark = pytest.mark.engine

PARSE = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
args = make_arg_parser(FlexibleArgumentParser()).parse_args(json.loads(sys.argv[1]))
print(json.dumps({"model": args.model, "revision": args.revision, "served": args.served_model_name}))
"""


def test_vllm_takes_the_command_of_the_compose_file(engine: Engine) -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    command = [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", argument) for argument in services["vllm"]["command"]]
    done = subprocess.run(
        [venv_python(default_cache()), "-c", PARSE, json.dumps(command)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    parsed = json.loads(done.stdout.splitlines()[-1])
    ours = dict(a.removeprefix("--").split("=", 1) for a in services["toktier"]["command"] if "=" in a)
    served = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", ours["model"])
    assert parsed["served"] == [served]
    assert parsed["model"] == served
