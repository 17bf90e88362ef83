from __future__ import annotations

import gzip
import io
import os
import zlib
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.audit_report import sources
from proxy.audit_report.sources import Source, Unusable, open_all


def lines(data: bytes, name: str = "f") -> tuple[list[bytes | None], Source]:
    source = Source(name, io.BytesIO(data))
    return list(source.lines()), source


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "LONGEST", 20)
    monkeypatch.setattr(sources, "_PIECE", 7)


pieces = st.lists(st.binary(max_size=30).filter(lambda b: b"\n" not in b and not b.isspace()), max_size=12)


@given(pieces=pieces, packed=st.booleans(), ended=st.booleans(), size=st.integers(1, 50))
@settings(deadline=None)
def test_lines_are_those_of_the_file_whatever_the_pieces(
    pieces: list[bytes], packed: bool, ended: bool, size: int
) -> None:
    data = b"\n".join(pieces) + (b"\n" if ended else b"")
    if data.startswith(b"\x1f\x8b"):
        return
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sources, "LONGEST", 20)
        patched.setattr(sources, "_PIECE", size)
        found, source = lines(gzip.compress(data) if packed else data)
    expected = [line if len(line) <= 20 else None for line in data.split(b"\n") if line and not line.isspace()]
    assert found == expected
    assert (source.size, source.damaged) == (len(data), None)


def test_several_gzip_members_and_padding() -> None:
    data = gzip.compress(b"one\ntw") + gzip.compress(b"o\n") + b"\0" * 300
    assert lines(data)[0] == [b"one", b"two"]


@pytest.mark.usefixtures("_small")
def test_what_unpacks_to_very_much_is_not_kept() -> None:
    found, source = lines(gzip.compress(b"x" * 100_000 + b"\nend\n"))
    assert found == [None, b"end"]
    assert source.size == 100_005


def test_a_gzip_file_that_ends_early_gives_what_it_has() -> None:
    data = gzip.compress(b"\n".join(os.urandom(20).hex().encode() for _ in range(2000)))
    found, source = lines(data[: len(data) // 2])
    assert 500 < len(found) < 2000
    assert source.damaged == "ends early"


def test_damaged_gzip() -> None:
    whole = [b"line %d" % n for n in range(10_000)]
    data = bytearray(gzip.compress(b"\n".join(whole)))
    data[-6] ^= 1  # the checksum
    found, source = lines(bytes(data))
    assert len(found) > 7000
    assert found[:-1] == whole[: len(found) - 1]
    assert source.damaged == "not what gzip wrote"
    assert lines(b"\x1f\x8bnot gzip")[1].damaged == "not what gzip wrote"


def test_a_disk_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell():
                raise OSError(5, "Input/output error")
            return super().read(4)

    source = Source("f", Failing(b"one\ntwo\n"))
    assert list(source.lines()) == [b"one"]
    assert source.damaged == "input/output error"


def test_the_same_file_is_read_once_whatever_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1\n")
    (tmp_path / "b").write_bytes(b"2\n")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    names = [str(tmp_path / n) for n in ("a", "b", "link", "a")]
    with ExitStack() as stack:
        found, repeated = open_all([*names, "-", "-"], io.BytesIO(b"3\n"), stack)
        assert [list(source.lines()) for source in found] == [[b"1"], [b"2"], [b"3"]]
    assert repeated == [names[2], names[3], "-"]


def test_a_rotation_after_the_files_were_opened_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"new\n")
    (tmp_path / "log.1").write_bytes(b"old\n")
    with ExitStack() as stack:
        found, _ = open_all([str(tmp_path / "log.1"), str(tmp_path / "log")], io.BytesIO(), stack)
        (tmp_path / "log.1").rename(tmp_path / "log.2")
        (tmp_path / "log").rename(tmp_path / "log.1")
        (tmp_path / "log").write_bytes(b"newest\n")
        assert [list(source.lines()) for source in found] == [[b"old"], [b"new"]]


@pytest.mark.parametrize(("name", "reason"), [("absent", "no such file"), (".", "is a directory"), ("\0", "file name")])
def test_what_cannot_be_opened(tmp_path: Path, name: str, reason: str) -> None:
    with ExitStack() as stack, pytest.raises(Unusable, match=reason):
        open_all([str(tmp_path / name) if name != "\0" else name], io.BytesIO(), stack)


def test_zlib_errors_are_the_ones_that_are_caught() -> None:
    assert not issubclass(zlib.error, OSError)
