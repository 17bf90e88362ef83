"""Faults on purpose, to see whether the shadow verifier finds them: ``python -m tools.faults``, see docs/faults.md.

Nothing of this is in the product: `tools.faults.proxy` serves the real application with a tier that was wrapped.
"""
