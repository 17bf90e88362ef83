"""A real vLLM on the CPU with a tiny random model, for tests: build it once, start it, stop it."""
