"""Incremental rendering of chat templates, exact for any template: see docs/folding.md.

folded = Folded.of(template)            # or Unfoldable, with the reason
state = FoldState(folded)               # one per conversation
rendered = state.render(request)        # chunks of the text that template.render(request) gives
"""

from toktier.folding.compiled import Folded, Unfoldable
from toktier.folding.reasons import HELP, Fallback, Kept, Unfolds
from toktier.folding.rendered import Chunks, Rendered
from toktier.folding.state import FoldState

__all__ = ["HELP", "Chunks", "Fallback", "FoldState", "Folded", "Kept", "Rendered", "Unfoldable", "Unfolds"]
