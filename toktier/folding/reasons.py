"""Why something is rendered in full, or a loop kept as it is: shared by code, counters, `toktier template` and docs."""

from __future__ import annotations

from enum import StrEnum


class Unfolds(StrEnum):
    """Why a whole template is not folded. Found by reading it."""

    NO_LOOP = "no_loop"
    INHERITANCE = "inheritance"
    IDENTITY = "identity"
    INNER_MACRO = "inner_macro"
    MACRO_AS_VALUE = "macro_as_value"
    SHARED_NAMESPACE = "shared_namespace"
    BROKEN = "broken"


class Kept(StrEnum):
    """Why one loop of a folded template stays an ordinary loop. Found by reading it."""

    FILTERED = "filtered"
    ELSE = "else"
    RECURSIVE = "recursive"
    UNPACKS = "unpacks"
    LOOP_OBJECT = "loop_object"
    SPECIAL_NAME = "special_name"
    SYNTAX = "syntax"
    FILTER = "filter"
    TEST = "test"


class Fallback(StrEnum):
    """Why a request was rendered in full. Found while rendering."""

    UNFOLDABLE = "unfoldable"
    ERROR = "error"
    NOT_PLAIN = "not_plain"
    STATEFUL = "stateful"
    STATE = "state"
    SEQUENCE = "sequence"
    PAUSED = "paused"


HELP: dict[Unfolds | Kept | Fallback, str] = {
    Unfolds.NO_LOOP: "no loop at the level of the template can be folded",
    Unfolds.INHERITANCE: "it includes, imports or extends templates, or has blocks",
    Unfolds.IDENTITY: "it asks whether two values are the same object (`sameas`)",
    Unfolds.INNER_MACRO: "a macro is defined inside a loop, a macro, a block or a condition",
    Unfolds.MACRO_AS_VALUE: "a macro is used as a value, or its name is assigned to as well",
    Unfolds.SHARED_NAMESPACE: "a namespace that is written may have a second name",
    Unfolds.BROKEN: "what folding makes of it cannot be compiled, which is an error of TokTier's",
    Kept.FILTERED: "the loop has an `if` of its own",
    Kept.ELSE: "the loop has an `else`",
    Kept.RECURSIVE: "the loop is recursive",
    Kept.UNPACKS: "the loop unpacks its items",
    Kept.LOOP_OBJECT: "the loop object is used other than by its plain attributes",
    Kept.SPECIAL_NAME: "the body names varargs, kwargs, caller or self",
    Kept.SYNTAX: "the body has a construct that is not on the list of those understood",
    Kept.FILTER: "the body uses a filter that is not on the list of pure ones",
    Kept.TEST: "the body uses a test that is not on the list of pure ones",
    Fallback.UNFOLDABLE: "the template that counts for this request is not folded",
    Fallback.ERROR: "the incremental path raised; the full render raises the genuine error, or succeeds",
    Fallback.NOT_PLAIN: "an argument is not plain JSON data",
    Fallback.STATEFUL: "a loop's body reads an object that may change while it runs (a generator, a cycler)",
    Fallback.STATE: "a loop leaves too much in a namespace, or hands on what is not plain data",
    Fallback.SEQUENCE: "a loop runs over something that cannot be numbered from its start",
    Fallback.PAUSED: "the incremental path failed several times in a row; it is tried again later",
}
"""For people, one for each member."""
