"""The measurement of the host's part of the GPU path: that it takes that path, and what it tells."""

from __future__ import annotations

import shutil

import pytest

from tests.support.host_gpu import qwen3_files
from tests.support.models import qwen3
from tests.support.tokenizer_files import CACHE
from toktier.gpu.router.devices import Failed
from tools.bench.texts import corpus
from tools.kernels.hostwork import parts, subject_of, together

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed"),
    pytest.mark.xdist_group("qwen3"),
]


def test_every_part_is_told_and_both_paths_agree() -> None:
    subject = subject_of(qwen3(), qwen3_files(), CACHE)
    texts = [corpus(1, 12_000), corpus(2, 9_000) + "<|im_end|>e\u0301"]
    for text in texts:
        subject.tell(text)
    told = parts(subject, texts, 2)
    assert list(told) == ["cut", "segments", "device", "assemble", "rope and cut", "gpu path", "cpu path"]
    assert all(us > 0 for us in told.values())
    assert set(together(subject, texts, 2, 2)) == {"gpu path", "cpu path"}
    with pytest.raises(Failed):
        parts(subject, [corpus(3, 8_000)], 1)  # no answer is known
    subject.gpu.router.close()
