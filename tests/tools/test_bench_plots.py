"""Plots are well-formed, the same for the same rows, and show what was measured."""

from __future__ import annotations

from xml.etree import ElementTree

from tools.bench import plots
from tools.bench.records import OURS, Record

SVG = "{http://www.w3.org/2000/svg}"


def row(engine: str, size: int, p50: float, n: int = 5) -> Record:
    return Record("library", "append", engine, size, n, p50, 2 * p50, 3 * p50)


def test_a_line_for_each_engine_in_order_of_sizes() -> None:
    rows = [row(OURS, 1_000_000, 60), row(OURS, 10_000, 50), row("a & b", 10_000, 9_000), row("absent", 10_000, 1, n=0)]
    picture = plots.plot(rows, "One < two")
    assert picture == plots.plot(rows, "One < two")
    tree = ElementTree.fromstring(picture)
    lines = [line.attrib["points"].split() for line in tree.iter(f"{SVG}polyline")]
    assert [len(points) for points in lines] == [2, 1]
    (left, low), (right, high) = (tuple(map(float, point.split(","))) for point in lines[0])
    assert left < right
    assert high < low, "a longer time stands higher"
    assert float(lines[1][0].split(",")[1]) < high
    told = [element.text for element in tree.iter(f"{SVG}text")]
    assert told[0] == "One < two"
    assert {"10K", "1M", OURS, "a & b", "10 µs", "10 ms"} <= set(told)
    assert "absent" not in told


def test_nothing_measured_is_a_picture_as_well() -> None:
    for rows in ([], [row(OURS, 10, 1, n=0)], [row(OURS, 10, -3)]):
        tree = ElementTree.fromstring(plots.plot(rows, "Title"))
        assert [element.text for element in tree.iter(f"{SVG}text")] == ["Title: nothing measured"]


def test_one_value_alone_has_axes() -> None:
    tree = ElementTree.fromstring(plots.plot([Record("a", "b", OURS, 100, 1, 10, 10, 10)], "T"))
    assert len(list(tree.iter(f"{SVG}circle"))) == 1


def test_what_is_not_drawn_is_named_below() -> None:
    names = {OURS: f"{OURS}, a < b"}
    rows = [row(OURS, 10_000, 50), row(OURS, 4_000_000, -4_930.5), row("other", 10_000, 9), row("absent", 100, 0, n=0)]
    tree = ElementTree.fromstring(plots.plot(rows, "T", names=names))
    told = [element.text for element in tree.iter(f"{SVG}text")]
    assert told[-2:] == [
        f"Not drawn, as it is not above 0: {OURS}, a < b at 4M: -4.93 ms",
        "No number: absent at 100",
    ]
    assert f"{OURS}, a < b" in told
    lowest = max(float(element.attrib["y"]) for element in tree.iter(f"{SVG}text"))
    assert lowest < float(tree.attrib["height"]) == float(tree.attrib["viewBox"].split()[3])
    whole = ElementTree.fromstring(plots.plot([row(OURS, 10_000, 50)], "T"))
    assert not [e.text for e in whole.iter(f"{SVG}text") if str(e.text).startswith(("Not drawn", "No number"))]
