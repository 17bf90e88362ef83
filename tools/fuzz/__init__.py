"""Fuzzing of the HTTP and JSON surface of a running proxy: ``python -m tools.fuzz --inputs N [--seed K] --json FILE``.

A real proxy process with the real tier stands between this process and the engine of `tools.traffic`. Every input is a
function of the seed and its number (``--only NUMBER`` sends one again). What counts as a finding stands in
`tools.fuzz.judge`.
"""
