"""Shadow verification: a sample of the requests is rendered and encoded again, whole, by the reference elsewhere.

The fast path keeps text and IDs between requests and proves that what it keeps may be kept. This package assumes that
the proof, or the code, is wrong somewhere, and looks.

Theory of operation. `sampling` says which requests are checked. `pool` takes them without ever holding a request up:
jobs wait in a bounded queue, threads hand them to worker processes, and what cannot be checked is dropped with a
reason. `worker` shares nothing with the fast path but the files: it reads and digests them itself, and `reference` is
no more than normalise, render, encode on the whole request. `check` compares and, where there is a difference, says
where the first one stands, down to the piece.
"""
