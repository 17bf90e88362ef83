"""What README.md and docs/benchmarks.md show of the measurements in docs/bench: tables between markers, and plots.

A suite that was not measured yet says so; `tools.docs` puts the parts in place and its test finds old ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tools.bench import memory, plots, proxy, records, render, repair
from tools.bench.records import OURS, Record

README, PAGE = "README.md", "docs/benchmarks.md"
MAIN = f"append {repair.TURN:,}"
_RECORDS = ("repair", "proxy", "engine")
_ALONE = f"added, {proxy.named(1)}"
_BESIDE = (OURS, proxy.OVER_STREAMED, proxy.DOUBLED, proxy.VLLM_TEXT, proxy.VLLM_TOKENIZE, proxy.VLLM_IDS)
_ADDED = {OURS: f"{OURS}, over buffering", proxy.OVER_STREAMED: f"{OURS}, over streamed"}
"""What the differences are called beside each other."""


def parts(folder: Path) -> Iterator[tuple[str, str, str]]:
    """(document, marker, content) of each part, from the JSON files in ``folder``."""
    repairs, proxies, engines, renders = (*(_read(folder, name) for name in _RECORDS), _renders(folder))
    main = [row for row in repairs if row.case == MAIN]
    shipped = [row for row in renders if row.template == render.SHIPPED]
    yield README, "bench repair", _shown("repair", README, records.table(main, medians=True))
    yield README, "bench render", _shown("render", "", render.table(shipped) if shipped else "")
    yield README, "bench front end", _shown("proxy", "", _front_end(proxies))
    yield README, "bench proxy", _shown("proxy", README, _proxy_tables(_of_readme(proxies), medians=True))
    yield README, "bench engine", _shown("engine", "", records.table(engines, medians=True))
    yield PAGE, "bench library", _shown("repair", PAGE, records.table(repairs))
    yield PAGE, "bench bytes", _shown("repair", "", records.throughput(main) if main else "")
    yield PAGE, "bench render", _shown("render", PAGE, render.table(renders) if renders else "")
    yield PAGE, "bench render bytes", _shown("render", "", records.throughput(_texts(shipped)) if shipped else "")
    yield PAGE, "bench proxy", _shown("proxy", PAGE, _proxy_tables(proxies))
    yield PAGE, "bench proxy bytes", _shown("proxy", "", records.throughput(proxies) if proxies else "")
    yield PAGE, "bench engine", _shown("engine", PAGE, records.table(engines))
    yield PAGE, "bench engine bytes", _shown("engine", "", records.throughput(engines) if engines else "")
    yield PAGE, "bench memory", _shown("memory", "", _memory(folder))


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
    return plots.plot(rows, "Proxy: time added to a turn of one session", names=_ADDED) if rows else None


def _of_readme(rows: Sequence[Record]) -> list[Record]:
    found = [row for row in rows if row.case == _ALONE and row.engine in _BESIDE]
    return sorted(found, key=lambda row: (row.size, _BESIDE.index(row.engine)))


def _proxy_tables(rows: Sequence[Record], medians: bool = False) -> str:
    tables = []
    for case in dict.fromkeys(row.case for row in rows):
        names = _ADDED if case.startswith("added") else None
        tables.append(records.table([row for row in rows if row.case == case], medians, names))
    return "\n".join([*tables, proxy.verdict(rows)]).strip()


def _front_end(rows: Sequence[Record]) -> str:
    """README's first number: what a million characters cost vLLM's front end, as text and with the IDs."""
    found = {row.engine: row for row in rows if (row.case, row.size) == (_ALONE, 1_000_000) and row.n}
    if not {proxy.VLLM_TEXT, proxy.VLLM_IDS} <= found.keys():
        return ""
    text, ids = found[proxy.VLLM_TEXT], found[proxy.VLLM_IDS]
    return (
        "An agent re-sends its whole context every few seconds and adds a little. On a session of a million characters "
        f"(a body of {text.served / 1e6:.1f} MB) vLLM's\nfront end takes {records.in_words(text.p50_us)} to render and "
        f"tokenize such a request (`/render`, median of the proxy account [below](#what-it-costs));\nthe same request "
        f"with IDs takes it {records.in_words(ids.p50_us)}."
    )


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


def _memory(folder: Path) -> str:
    file = folder / "memory.json"
    return memory.table(records.read(file, memory.Memory)) if file.exists() else ""


def _renders(folder: Path) -> Sequence[render.Render]:
    file = folder / "render.json"
    return records.read(file, render.Render) if file.exists() else ()
