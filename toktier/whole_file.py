"""Files that are there whole or not at all: they are written under another name first."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole(path: Path, *, durable: bool = False, put: Callable[[str, Path], None] = os.replace) -> Iterator[BinaryIO]:
    """A file to write, of mode 0600, which becomes ``path`` when the block ends.

    Where the block, the disk or ``put`` fails, nothing of it is left and ``path`` is as it was. ``durable``: the
    content is on the disk before it has its name. ``put`` gives it the name: `os.link` in place of `os.replace` raises
    where a file of that name is there. Raises `OSError`.
    """
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(handle)
        put(part, path)
    finally:
        with suppress(OSError):  # after `os.replace` it is gone
            os.unlink(part)
