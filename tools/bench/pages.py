"""What README.md and docs/benchmarks.md show of the measurements in docs/bench: tables between markers, and plots.

A suite that was not measured yet says so; `tools.docs` puts the parts in place and its test finds old ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tools.bench import plots, proxy, records, render, repair
from tools.bench.records import OURS, Record

README, PAGE = "README.md", "docs/benchmarks.md"
MAIN = f"append {repair.TURN:,}"
_RECORDS = ("repair", "proxy", "engine")
_ALONE = "added, 1 session"
_BESIDE = (OURS, proxy.DOUBLED, proxy.VLLM_TEXT, proxy.VLLM_TOKENIZE, proxy.VLLM_IDS)


def parts(folder: Path) -> Iterator[tuple[str, str, str]]:
    """(document, marker, content) of each part, from the JSON files in ``folder``."""
    repairs, proxies, engines, renders = (*(_read(folder, name) for name in _RECORDS), _renders(folder))
    main = [row for row in repairs if row.case == MAIN]
    shipped = [row for row in renders if row.template == render.SHIPPED]
    yield README, "bench repair", _shown("repair", README, records.table(main, medians=True))
    yield README, "bench render", _shown("render", "", render.table(shipped) if shipped else "")
    yield README, "bench proxy", _shown("proxy", README, records.table(_of_readme(proxies), medians=True))
    yield README, "bench engine", _shown("engine", "", records.table(engines, medians=True))
    yield PAGE, "bench library", _shown("repair", PAGE, records.table(repairs))
    yield PAGE, "bench bytes", _shown("repair", "", records.throughput(main) if main else "")
    yield PAGE, "bench render", _shown("render", PAGE, render.table(renders) if renders else "")
    yield PAGE, "bench render bytes", _shown("render", "", records.throughput(_texts(shipped)) if shipped else "")
    yield PAGE, "bench proxy", _shown("proxy", PAGE, records.table(proxies))
    yield PAGE, "bench proxy bytes", _shown("proxy", "", records.throughput(proxies) if proxies else "")
    yield PAGE, "bench engine", _shown("engine", PAGE, records.table(engines))
    yield PAGE, "bench engine bytes", _shown("engine", "", records.throughput(engines) if engines else "")


def _shown(suite: str, document: str, table: str) -> str:
    """A table, below the suite's plot as ``document`` links to it (not at all where that is empty)."""
    if not table:
        return f"Not measured yet: `python -m tools.bench {suite} --json docs/bench/{suite}.json`."
    picture = f"docs/bench/{suite}.svg" if document == README else f"bench/{suite}.svg"
    return f"![{suite}]({picture})\n\n{table.strip()}" if document else table.strip()


def files(folder: Path) -> Iterator[tuple[str, str]]:
    """(path, content) of each plot."""
    for name, picture in _PLOTS.items():
        content = picture(folder)
        if content is not None:
            yield f"docs/bench/{name}.svg", content


def _repair(folder: Path) -> str | None:
    rows = [row for row in _read(folder, "repair") if row.case == MAIN]
    return plots.plot(rows, "Library: 1,400 characters more, to the IDs of the whole text") if rows else None


def _proxy(folder: Path) -> str | None:
    rows = _of_readme(_read(folder, "proxy"))
    return plots.plot(rows, "Proxy: time added to a turn of one session") if rows else None


def _of_readme(rows: Sequence[Record]) -> list[Record]:
    return [row for row in rows if row.case == _ALONE and row.engine in _BESIDE]


def _engine(folder: Path) -> str | None:
    rows = _read(folder, "engine")
    return plots.plot(rows, "Engine: time to the first token of a turn (vLLM on a CPU, tiny model)") if rows else None


def _render(folder: Path) -> str | None:
    rows = [_as_record(row) for row in _renders(folder) if (row.template, row.case) == (render.SHIPPED, "append")]
    return plots.plot(rows, "Render: a call and its result more, Qwen3's template", "messages") if rows else None


_PLOTS: dict[str, Callable[[Path], str | None]] = {
    "repair": _repair,
    "render": _render,
    "proxy": _proxy,
    "engine": _engine,
}


def _as_record(row: render.Render) -> Record:
    return Record(row.account, row.case, row.engine, row.messages, row.n, row.p50_us, row.p90_us, row.p99_us)


def _texts(rows: Sequence[render.Render]) -> list[Record]:
    """Rows of the render account with the characters of their texts."""
    return [
        replace(
            _as_record(row),
            case=f"{row.case} at {row.messages:,}",
            size=row.size,
            served=row.served,
            scanned=row.scanned,
        )
        for row in rows
    ]


def _read(folder: Path, name: str) -> Sequence[Record]:
    file = folder / f"{name}.json"
    return records.read(file) if file.exists() else ()


def _renders(folder: Path) -> Sequence[render.Render]:
    file = folder / "render.json"
    return records.read(file, render.Render) if file.exists() else ()
