"""Real text for campaigns and for `toktier certify`: this package's own code and some prose in many scripts."""

from __future__ import annotations

import codecs
import importlib.metadata
from collections.abc import Iterable
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from toktier.errors import UnusableFile

LIMIT = 4 << 20
"""Bytes read of one file."""

PROSE = (
    "Twelve drummers don't agree; it's 9:45 a.m., and we'll see what they've done. \u201cNa\u00efve\u201d "
    "caf\u00e9s cost \u20ac3.50\u2014or \u00a32,000,000! See https://example.org/a?b=c&d=%20#e, C:\\Temp\\x.txt.\r\n"
    "\u6625\u7720\u4e0d\u89c9\u6653\uff0c\u5904\u5904\u95fb\u557c\u9e1f\u3002\u591c\u6765\u98ce\u96e8\u58f0\uff0c"
    "\u82b1\u843d\u77e5\u591a\u5c11\uff1f\u300c2024\u5e74\u300d\u7b2c12\u7ae0\u3002\n"
    "\u543e\u8f29\u306f\u732b\u3067\u3042\u308b\u3002\u540d\u524d\u306f\u307e\u3060\u7121\u3044\u3002"
    "\u30b3\u30f3\u30d4\u30e5\u30fc\u30bf\u30fc\u304c\u3001\u30d7\u30ed\u30b0\u30e9\u30e0\u3092\u52d5\u304b\u3059\u3002\n"
    "\ub098\ub77c\uc758 \ub9d0\uc774 \uc911\uad6d\uacfc \ub2ec\ub77c, \ubb38\uc790\uc640 \uc11c\ub85c "
    "\ud1b5\ud558\uc9c0 \uc544\ub2c8\ud558\ub2e4.\n"
    "\u0412\u0441\u0435 \u0441\u0447\u0430\u0441\u0442\u043b\u0438\u0432\u044b\u0435 \u0441\u0435\u043c\u044c\u0438 "
    "\u043f\u043e\u0445\u043e\u0436\u0438 \u0434\u0440\u0443\u0433 \u043d\u0430 \u0434\u0440\u0443\u0433\u0430.\n"
    "\u0639\u0646\u062f\u0645\u0627 \u064a\u0623\u062a\u064a \u0627\u0644\u0645\u0633\u0627\u0621\u064f\u060c "
    "\u0661\u0662\u0663 \u0644\u064a\u0644\u0629\u064b\u2026 \u05d1\u05b0\u05bc\u05e8\u05b5\u05d0\u05e9\u05b4\u05c1"
    "\u05d9\u05ea, \u05d1\u05e8\u05d0.\n"
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u092e\u0947\u0902 \u0932\u093f\u0916\u093e, \u0915\u093c\u0932\u092e; "
    "\u09b9\u09af\u09bc \u09ac\u09be\u0982\u09b2\u09be\u09af\u09bc\u0964 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35"
    "\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01 \u0ba4\u0bae\u0bbf\u0bb4\u0bcd.\n"
    "\u00c5ngstr\u00f6m, A\u030angstro\u0308m, \u1e9bU\u0323\u0307, Ti\u1ebfng Vi\u1ec7t, Stra\u00dfe, \u0130stanbul, "
    "\ufb01n, \u00bd \u00b2 \u2167 \u2122. "
    "\U0001f469\u200d\U0001f4bb\U0001f44d\U0001f3fd \U0001f1e9\U0001f1ea \u2764\ufe0f\n"
    "\tif (x >= 0x1F && !done) { return a[i]->next ?? 'none'; } // 100% \u00b1 5\u00b0\n\n\n"
)
"""A line each of what splits, forms and folds treat differently. Code points are escaped where an editor might
normalise them."""


def built_in() -> tuple[str, ...]:
    """The prose, the project's description where it is installed with one, and the source of this package."""
    texts = [PROSE]
    try:
        description = importlib.metadata.distribution("toktier-proxy").read_text("METADATA")
    except importlib.metadata.PackageNotFoundError:
        description = None
    if description:
        texts.append(description.partition("\n\n")[2])
    texts += _sources(resources.files("toktier"))
    return tuple(text for text in texts if text)


def name_of(path: Path) -> str:
    """What a report calls the text of a file."""
    try:
        cut = path.stat().st_size > LIMIT
    except OSError:
        cut = False
    return f"{path}, its first {LIMIT >> 20} MiB" if cut else str(path)


def read(paths: Iterable[Path]) -> tuple[str, ...]:
    """The operator's own texts: UTF-8, at most `LIMIT` bytes of each. Raises `UnusableFile`."""
    texts = []
    for path in paths:
        try:
            with path.open("rb") as file:
                content = file.read(LIMIT)
                cut = bool(file.read(1))
        except OSError as error:
            raise UnusableFile(f"{path} cannot be read: {error.strerror}") from error
        try:
            # the bytes of a character that the limit cuts apart are left out
            text = codecs.getincrementaldecoder("utf-8")().decode(content, final=not cut)
        except UnicodeDecodeError as error:
            raise UnusableFile(f"{path} is not UTF-8 (byte {error.start}); convert it first") from error
        if not text:
            raise UnusableFile(f"{path} is empty; give a file with text")
        texts.append(text)
    return tuple(texts)


def _sources(folder: Traversable) -> list[str]:
    found = []
    for entry in sorted(folder.iterdir(), key=lambda e: e.name):
        if entry.is_dir():
            found += _sources(entry)
        elif entry.name.endswith(".py"):
            found.append(entry.read_text(encoding="utf-8"))
    return found
