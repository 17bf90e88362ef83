"""TokTier's tier: exact incremental tokenization as a library. No HTTP, no asyncio, no environment."""

__version__ = "0.1.0"
