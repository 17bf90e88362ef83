"""Differential checks of folding: ``python -m tools.folding --checks N [--seed K] --json FILE``.

Every check renders one request twice, incrementally and in full, and compares the texts, or the exceptions. Templates
come from the test data, from packages that are installed, and from folders that are named; none is part of this
repository.
"""
