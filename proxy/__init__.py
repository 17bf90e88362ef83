"""The HTTP side of TokTier: what a request means, where it goes, what comes back."""
