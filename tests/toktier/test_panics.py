"""Reports of panics are left out, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from toktier import panics

HEAD = b"\nthread '<unnamed>' (12) panicked at src/lib.rs:143:26:\n"
NOTE = b"note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n"


@pytest.mark.parametrize(
    ("written", "left"),
    [
        (b"", b""),
        (b"a\n\nb", b"a\n\nb"),
        (HEAD + b"message\n" + NOTE, b""),
        (b"before\n" + HEAD + b"message\n" + NOTE + b"after\n", b"before\nafter\n"),
        (HEAD + b"one\n" + NOTE + HEAD + b"two\n" + b"after", b"after"),
        (b"thread 'main' panicked at src/lib.rs:1:2:\nmessage\nnext\n", b"next\n"),
        (b"thread '<unnamed>' panicked at 'old style', src/lib.rs:1:2\nnext\n", b"next\n"),
        (HEAD + b"assertion `left == right` failed\n  left: 1\n right: 2\nnext\n", b"next\n"),
        (HEAD, b""),
        (b"the thread 'x' panicked at a:\nb\n", b"the thread 'x' panicked at a:\nb\n"),
        (b"note: run with `RUST_BACKTRACE=1`\n", b"note: run with `RUST_BACKTRACE=1`\n"),
    ],
)
def test_reports(written: bytes, left: bytes) -> None:
    assert panics.without_reports(written) == left


def test_a_report_with_a_backtrace_was_asked_for() -> None:
    whole = HEAD + b"message\nstack backtrace:\n   0: f\n             at a.rs:1\n" + b"note: Some details are omitted\n"
    assert panics.without_reports(whole) == whole


PANIC = """
import os, sys
from tokenizers import Tokenizer
from toktier import panics
bad = '{"normalizer": {"type": "Precompiled"}, "model": {"type": "BPE", "vocab": {}, "merges": []}}'
try:
    with panics.unreported():
        print("before", file=sys.stderr)
        try:
            Tokenizer.from_str(bad)
        except BaseException as error:
            assert type(error).__name__ == "PanicException"
        os.write(2, b"after\\n")
        raise KeyError
except KeyError:
    pass
print("behind", file=sys.stderr)
"""


@pytest.mark.parametrize("backtrace", [False, True])
def test_a_real_panic(backtrace: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "RUST_BACKTRACE"}
    environment |= {"PYTHONPATH": str(ROOT), **({"RUST_BACKTRACE": "1"} if backtrace else {})}
    done = subprocess.run([sys.executable, "-c", PANIC], env=environment, capture_output=True, check=True)
    if backtrace:
        assert b"panicked at" in done.stderr
        assert b"stack backtrace:" in done.stderr
    else:
        assert done.stderr == b"before\nafter\nbehind\n"


def test_without_standard_error_the_block_runs_all_the_same() -> None:
    program = "import os; os.close(2); from toktier import panics\nwith panics.unreported(): print('ran')"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, check=True)
    assert done.stdout == b"ran\n"
