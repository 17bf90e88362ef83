"""Benchmarks. ``python -m tools.bench SUITE --json FILE``, where SUITE is one of:

- ``repair``: changes to kept sessions beside the engines of other projects;
- ``render``: chat templates in full and incrementally;
- ``proxy``: what TokTier adds to a turn, beside a plain pass-through and vLLM's front end;
- ``engine``: time to the first token on a real vLLM, with and without TokTier;
- ``full``: full encodes of fresh text and of worst cases, on 1 and 2 cores;
- ``cuts``: distances between certified cuts, by kind of text;
- ``derive``: the time that a certificate takes.

Accounts: *library* counts from the text to the IDs, without HTTP and template; *render* from the messages to the text;
*proxy* from a request to its reply, with an engine that does nothing; *engine* with one that does. A new session serves
and scans the same characters; an append serves the whole context and scans its end. The two are never added up.

Every number is one row of JSON, a dataclass of its suite; tables in the README are generated from such files.
"""
