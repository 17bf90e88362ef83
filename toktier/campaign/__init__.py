"""Differential campaigns: a tokenizer's certificate and the rope on it against the reference engine, at length.

- `corpus`, `texts`: what is tried; `seams`, `edits`: the checks, at the level of cuts and at the level of ropes;
- `minimise`: a failure made small; `plants`, `splices`: faults put in on purpose, which the checks must find;
- `worker`, `runner`: blocks of cases on all cores; `report`: what came of it.

Invariant: case ``k`` is a function of ``(seed, k)`` and of the tokenizer, so neither the number of processes nor the
order in which they end has a part in the outcome, and one case can be run again alone.
"""
