"""What a session keeps of a request's messages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from toktier.keeping import kinds_of
from toktier.known import Known, Made, Run
from toktier.traits import together, traits_of


def test_the_traits_of_messages_of_which_some_come_again_twice() -> None:
    """As many come again as there were, and yet one of them does not."""
    old = [{"role": "user", "content": "a"}, {"role": "tool", "content": "b", "name": "x"}]
    kinds = list(map(traits_of, old))
    assert kinds[0] != kinds[1]
    made = cast(Made, SimpleNamespace(kinds=kinds, traits=together(kinds)))
    for runs, places in (
        ((Run(0, 0, 1), Run(1, 0, 1)), (0, 0)),
        ((Run(0, 1, 1), Run(1, 0, 1)), (1, 0)),
        ((Run(0, 0, 2), Run(2, 0, 1)), (0, 1, 0)),
    ):
        expected = [kinds[place] for place in places]
        assert kinds_of({"messages": [None] * len(places)}, Known(made, runs)) == (expected, together(expected))
