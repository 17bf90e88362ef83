"""What stands beside the GPU's times, with the device core in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.conftest import data_path
from tests.support.gpu import host_core, reference, tables
from tests.support.tokenizers_data import each
from toktier.gpu.vocabulary import BREAK_BYTE, BREAK_ID
from toktier.ids import Ids
from tools.bench import gpu_beside
from tools.bench.texts import chat, corpus


@dataclass
class Core:
    """As an encoder on a GPU. ``wrong``: every so manieth ID is another one; 0: none."""

    name: str
    wrong: int = 0

    def encode_view(self, segment: bytes) -> Ids:
        ids = host_core().encode(tables(self.name), segment, "small").ids
        assert ids is not None
        if self.wrong:
            ids[:: self.wrong] = np.where(ids[:: self.wrong] == BREAK_ID, BREAK_ID, 1)
        return ids

    def encode_batch(self, segments: Sequence[bytes]) -> tuple[Ids, Any]:
        ids = self.encode_view(bytes([BREAK_BYTE]).join(segments))
        return ids[ids != BREAK_ID], None


def test_batches_and_competition_give_a_row_for_each_case() -> None:
    core = Core("gpt2_tiktoken")
    rows = [*gpu_beside.batches(core, "t", 2), *gpu_beside.crowded(core, "t", (500,), 3, count=2)]
    assert [(row.account, row.case, row.size, row.n) for row in rows] == [
        ("host to host, batch", "1000 documents of 200", 200_000, 2),
        ("host to host, batch", "1000 documents of 1,000", 1_000_000, 2),
        ("host to host, batch", "256 documents of 4,000", 1_024_000, 2),
        ("host to host, bytes, 2 processes beside", "steady", 500, 3),
    ]
    assert all(row.p50_us > 0 for row in rows)


def test_a_process_that_does_not_start_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_beside, "busy", "nothing to call")
    monkeypatch.setattr(gpu_beside, "START_S", 8.0)
    with pytest.raises(RuntimeError, match="0 of 1 processes"), gpu_beside.competing(1):
        pass


@pytest.mark.parametrize("name", each(("qwen3", "gpt2_tiktoken")))
def test_libraries_give_the_references_ids(name: str) -> None:
    folder = data_path("tokenizers", name)
    text = corpus(3, 2_000)
    found = gpu_beside.libraries(folder)
    assert sorted(found) == (["tiktoken"] if "tiktoken" in name else ["HF tokenizers", "fastokens"])
    for library, encode in found.items():
        assert not isinstance(encode, str)
        answer = encode(text)
        if library == "fastokens":
            answer = np.frombuffer(answer[0], "<u4")
        ids = answer[0].ids if library == "HF tokenizers" else answer
        assert np.array_equal(ids, reference(name).encode(text)), library
    assert [row.engine for row in gpu_beside.cores(folder, (300,), 3)] == [f"{name}, {one}" for one in found]


@pytest.mark.parametrize("name", each(("tekken",)))
def test_a_library_that_refuses_a_tokenizer_has_rows_that_say_so(name: str) -> None:
    rows = gpu_beside.cores(data_path("tokenizers", name), (50, 300), 3)
    assert [(row.engine, row.size, row.n > 0) for row in rows] == [
        (f"{name}, HF tokenizers", 50, True),
        (f"{name}, HF tokenizers", 300, True),
        (f"{name}, fastokens", 50, False),
        (f"{name}, fastokens", 300, False),
    ]
    assert rows[-1].note.startswith("fastokens refuses it: ")


def test_similarity_is_the_share_of_ids_at_their_places() -> None:
    name = "gpt2_tiktoken"
    text = bytes([BREAK_BYTE]).join(corpus(k, 130).encode() for k in range(40))
    known = reference(name)
    right = gpu_beside.similarity(Core(name), known, name, "x", text)
    assert (right.share, right.bytes) == (1.0, len(text))
    wrong = gpu_beside.similarity(Core(name, wrong=10), known, name, "x", text)
    assert wrong.tokens == right.tokens
    assert 0.85 < wrong.share < 0.95


def test_a_chat_has_breaks_in_place_of_its_literals() -> None:
    text = chat(5, 4_000)
    segments = gpu_beside.chat_segments(5, 4_000)
    literals = text.count("<|im_start|>") + text.count("<|im_end|>")
    assert segments.count(bytes([BREAK_BYTE])) == literals > 5
    assert b"<|im_" not in segments
