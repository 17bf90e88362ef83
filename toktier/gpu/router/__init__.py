"""Texts of requests on the GPU, or a named reason (`toktier.reasons.Gpu`) for which the CPU encodes them.

From chunks to IDs: `segments` takes the literals out (`literals`) and sees to it that what is left is normal
(`normal`); `engine` asks whether the GPU is worth it, and `router` gives the segments to a device; a thread for each
device (`worker`) puts what waits for it into one launch; `segments` puts the IDs together again, with a count a chunk.
`devices` says what a device is, `cuda` opens real ones.

Invariant: nobody here fails a request. Whatever goes wrong is a `devices.Failed`, and the caller's CPU path answers.
"""
