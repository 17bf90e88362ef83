"""Endurance: a real proxy under everything at once, for minutes, and what is left of it afterwards.

    python -m tools.soak --seconds 180 --sessions 200 [--seed K] [--json FILE]      (make soak)

Hundreds of sessions grow to 50K characters, are edited, forked and compacted; clients leave in the middle of a request
or a reply, send rubbish, and are told apart by three keys; the engine crashes, comes back, comes back as another
version or with another tokenizer; shadow workers are killed. Every request with IDs is checked by the shadow, and a
sample of what the engine received by transformers in a process of its own.

Exit code 1 where anything is found: a wrong ID, a check that was dropped, a request without its one log line, a 5xx
that nobody provoked, a session, descriptor, thread or process that is left, memory that grows, an audit that fails.
"""
