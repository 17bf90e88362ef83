"""Whatever a configuration holds, it is either accepted or refused with one line per problem; never a traceback."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.config import ConfigError, Settings, load
from proxy.config_checks import warnings
from proxy.config_sources import fields

PLACES = [place for place, _, _ in fields(Settings)]
WORDS = sorted({part for place in PLACES for part in place} | {"x", "", "a.b", "Qwen/Qwen3-8B", "é", "prot"})
CANARY = "CANARY-SECRET"
# No path of these exists, and none is written to: keys that name files only meet words.
VALUES = st.one_of(
    st.sampled_from(
        ["", "embedded", "http://h", "http://h:99999", "https://a:b@h", "http://[::1", "tenant", "keys", CANARY]
    ),
    st.sampled_from(
        ["http://h:1x", "http://\x00", "//h", "http://h/\n", "none", "passthrough", "\x00", "a\nb", "~nobody-here/x"]
    ),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.booleans(),
    st.lists(st.sampled_from(["a", "b", "", 3]), max_size=3),
    st.dictionaries(st.sampled_from(WORDS), st.one_of(st.none(), st.integers(), st.text(max_size=5)), max_size=3),
)


@st.composite
def trees(draw: st.DrawFn) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for place in draw(st.lists(st.sampled_from(PLACES), max_size=8)):
        node: Any = tree
        path = [
            draw(st.sampled_from(["m", "n", "", "a b", "a\nb", "\x00"])) if part == "<name>" else part for part in place
        ]
        if draw(st.integers(0, 9)) == 0:
            path[-1] = draw(st.sampled_from(WORDS))
        if draw(st.integers(0, 9)) == 0:
            path = path[: draw(st.integers(1, len(path)))]
        for key in path[:-1]:
            node = node.setdefault(key, {})
            if not isinstance(node, dict):
                break
        else:
            node[path[-1]] = draw(VALUES)
    return tree


def check(path: Path | None, cli: dict[str, Any], environ: dict[str, str]) -> None:
    try:
        assert warnings(load(path, cli, environ)) is not None
    except ConfigError as error:
        refused = error.problems
    else:
        return
    assert refused
    for problem in refused:
        assert problem.place
        assert problem.problem
        assert problem.remedy
        assert len(str(problem).splitlines()) == 1


@settings(max_examples=250, deadline=None)
@given(tree=trees())
def test_any_tree_of_options(tree: dict[str, Any]) -> None:
    check(None, tree, {})


@settings(max_examples=120, deadline=None)
@given(
    environ=st.dictionaries(
        st.lists(st.sampled_from(WORDS + [w.upper() for w in WORDS]), min_size=1, max_size=4).map(
            lambda parts: "TOKTIER_" + "__".join(parts)
        ),
        st.sampled_from(["1", "x", "[", "{}", '["a"]', "http://h", "tcp://h", "\udcff", "a,b"]),
        max_size=4,
    ),
    tree=trees(),
)
def test_any_variables_over_any_tree(environ: dict[str, str], tree: dict[str, Any]) -> None:
    check(None, tree, environ)


@settings(max_examples=120, deadline=None)
@given(text=st.text(st.sampled_from('[]={}".#\n abcmodels013\x00\r\t\\'), max_size=40))
def test_any_file(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.toml")
        path.write_text(text, "utf-8", newline="")
        check(path, {}, {"TOKTIER_AUTH__STATE_DIR": folder})


@settings(max_examples=60, deadline=None)
@given(data=st.sampled_from([place for place in PLACES if place[-1] in ("hmac_key", "api_key")]), junk=VALUES)
def test_a_secret_of_the_wrong_kind_is_not_repeated(data: tuple[str, ...], junk: Any) -> None:
    tree: dict[str, Any] = {}
    node = tree
    for key in data[:-1]:
        node = node.setdefault("m" if key == "<name>" else key, {})
    node[data[-1]] = {CANARY: junk} if isinstance(junk, int) else [CANARY]
    try:
        shown = repr(load(None, tree, {}))
    except ConfigError as error:
        shown = str(error) + json.dumps([vars(p) for p in error.problems])
    assert CANARY not in shown
