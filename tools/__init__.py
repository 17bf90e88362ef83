"""Development tools: benchmarks, the engine harness, trace generation. Not shipped in the wheel."""
