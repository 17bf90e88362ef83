"""The kernels that come with the package: only those of their manifest, and of these sources, are used."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from toktier.errors import UnusableFile
from toktier.gpu import fatbin
from tools.kernels.__main__ import command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "kernels.fatbin").write_bytes(b"code")
    manifest = {"sha256": hashlib.sha256(b"code").hexdigest(), "sources": fatbin.sources_digest()}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    return tmp_path


def test_the_kernels_of_a_manifest_are_loaded(folder: Path) -> None:
    assert fatbin.load(folder).content == b"code"


def test_without_kernels_the_remedy_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableFile, match="make kernels"):
        fatbin.load(tmp_path)


def test_other_bytes_than_the_manifest_tells_are_refused(folder: Path) -> None:
    (folder / "kernels.fatbin").write_bytes(b"cod")
    with pytest.raises(UnusableFile, match="not those of their manifest"):
        fatbin.load(folder)


def test_kernels_of_other_sources_are_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = tmp_path / "cuda_src"
    sources.mkdir()
    (sources / "kernels.cu").write_text("// changed")
    monkeypatch.setattr(fatbin, "SOURCES", sources)
    with pytest.raises(UnusableFile, match="of other sources"):
        fatbin.load(folder)


def test_every_architecture_is_asked_for_and_ptx_for_later_ones(tmp_path: Path) -> None:
    asked = command("nvcc", tmp_path / "out", fatbin.ARCHITECTURES)
    for number in (80, 86, 89, 90, 100, 120):
        assert f"-gencode=arch=compute_{number},code=sm_{number}" in asked
    assert "-gencode=arch=compute_120,code=compute_120" in asked


def test_ci_has_the_compiler() -> None:
    """Elsewhere the kernels may stay unbuilt; where changes are accepted they are built for every architecture."""
    if shutil.which("nvcc") is None:
        if os.environ.get("CI"):
            pytest.fail("nvcc is not installed: `make kernels` cannot build the kernels")
        pytest.skip("nvcc is not installed: the kernels are not built here")
