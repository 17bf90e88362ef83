"""Tables of whole tokenizers: kept on disk, refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.gpu import files_of
from tests.support.tokenizer_files import CACHE, small_spec, write
from toktier import files
from toktier.errors import Refusal
from toktier.gpu.buffers import LARGE, REQUEST, SMALL, Layout
from toktier.gpu.tables import ALIGNMENT, ARRAYS, NUMBERS, STRUCTURE_SIZE, Tables, tables_of


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> files.TokenizerFiles:
    return files.read(write(tmp_path_factory.mktemp("small"), small_spec()))


@pytest.fixture(scope="module")
def made(read: files.TokenizerFiles) -> Tables:
    return tables_of(read, cache_dir=CACHE)


def test_tables_are_kept_until_they_are_damaged(
    read: files.TokenizerFiles, made: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toktier.gpu.tables._of_spec", lambda *_: (dict(made.arrays), dict(made.numbers)))
    tables_of(read, cache_dir=tmp_path)
    monkeypatch.setattr("toktier.gpu.tables._of_spec", lambda *_: pytest.fail("made again"))
    kept = tables_of(read, cache_dir=tmp_path)
    assert kept.numbers == made.numbers
    assert all(np.array_equal(kept.arrays[name], made.arrays[name]) for name in ARRAYS)

    (path,) = (tmp_path / "gpu").iterdir()
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    with pytest.raises(pytest.fail.Exception):
        tables_of(read, cache_dir=tmp_path)


def test_the_structure_and_the_image(made: Tables) -> None:
    image, offsets = made.image()
    assert len(made.structure(offsets)) == STRUCTURE_SIZE
    assert set(made.numbers) == set(NUMBERS)
    for name, at in offsets.items():
        assert at % ALIGNMENT == 0
        raw = made.arrays[name].tobytes()
        assert image[at : at + len(raw)].tobytes() == raw


@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_arrays_of_a_request_do_not_overlap(shape: Any) -> None:
    layout = Layout.of(1 << 20, shape)
    assert layout.offsets["text"] == REQUEST.itemsize  # behind the counters: one copy brings both
    edges = [*sorted(layout.offsets.values()), layout.size]
    assert edges == sorted(set(edges))
    assert all(at % ALIGNMENT == 0 for name, at in layout.offsets.items() if name != "text")


@pytest.mark.parametrize(
    ("name", "construct"),
    [
        ("llama2", "pieces that are not given to the model as bytes"),
    ],
)
def test_what_has_no_tables_is_refused_by_name(name: str, construct: str) -> None:
    with pytest.raises(Refusal) as refused:
        tables_of(files_of(name))
    assert refused.value.construct == construct
