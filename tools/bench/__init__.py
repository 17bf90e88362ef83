"""Benchmarks. ``python -m tools.bench SUITE --json FILE``, where SUITE is one of:

- ``repair``: appends to kept sessions beside full encodes;
- ``render``: chat templates in full and incrementally;
- ``full``: full encodes of fresh text and of worst cases, on 1 and 2 cores;
- ``cuts``: distances between certified cuts, by kind of text;
- ``derive``: the time that a certificate takes.

Accounts: *library* counts from the text to the IDs, without HTTP and template. A new session serves and scans the same
characters; an append serves the whole context and scans its end. The two are never added up.

Every number is one row of JSON, a dataclass of its suite; tables in the README are generated from such files.
"""
