"""Benchmarks. ``python -m tools.bench repair --json FILE``; ``python -m tools.bench table FILE...`` prints Markdown.

Every number is one row of JSON, `tools.bench.records.Record`; tables in the README are generated from such files.
"""
