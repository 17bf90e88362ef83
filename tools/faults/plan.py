"""What a proxy with faults is told to do: a file of JSON that the campaign writes and `tools.faults.proxy` reads."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from tools.faults.kinds import Kind


@dataclasses.dataclass(frozen=True)
class Plan:
    """``rate``: share of requests that get a fault. ``file``: where each is written down.

    ``spare_reference``: a request whose IDs the reference made whole is left alone, since nothing was spliced. The
    first ``warm_up`` requests are, too. ``engine``: "" or how a whole-text engine is forced (`tools.faults.forced`);
    there are no other faults then.
    """

    file: Path
    rate: float = 0.0
    seed: int = 0
    kinds: tuple[Kind, ...] = tuple(Kind)
    spare_reference: bool = True
    warm_up: int = 0
    engine: str = ""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({**dataclasses.asdict(self), "file": str(self.file)}), encoding="utf-8")


def read(path: Path) -> Plan:
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    value |= {"file": Path(value["file"]), "kinds": tuple(map(Kind, value["kinds"]))}
    return Plan(**value)
