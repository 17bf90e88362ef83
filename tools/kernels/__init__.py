"""Builds what ``cuda_src/`` is compiled to: the fatbins of the wheel, and the device core for the host.

- ``python -m tools.kernels``: the fatbins, into ``toktier/gpu/kernels`` (``make kernels``);
- `host`: the core by g++, for the tests.
"""
