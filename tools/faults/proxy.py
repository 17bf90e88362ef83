"""``python -m tools.faults.proxy PLAN CONFIG``: serves like `toktier serve`, with a tier that sends wrong IDs."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

from proxy import config, serve
from proxy.loading import Loader
from proxy.registry import Loaded
from toktier.engines.reference import ReferenceEngine
from toktier.tier import ModelTier
from tools.faults import forced, plan
from tools.faults.kinds import Vocabulary
from tools.faults.tier import FaultyTier, Injector, changed_template


class FaultyLoader:
    """Loads as the proxy does, and wraps what was loaded."""

    def __init__(self, todo: plan.Plan) -> None:
        self._plan = todo
        self._loader = Loader()
        self._injector = Injector(todo)

    def load(self, *arguments: Any) -> Loaded:
        """As `Loader.load`."""
        return self._with_faults(self._loader.load(*arguments))

    def _with_faults(self, loaded: Loaded) -> Loaded:
        assert isinstance(loaded.tier, ModelTier)
        read_again = loaded.again

        def again() -> Loaded | None:
            found = read_again() if read_again is not None else None
            return None if found is None else self._with_faults(found)

        return dataclasses.replace(loaded, tier=self._wrapped(loaded.tier), again=again)

    def _wrapped(self, tier: ModelTier) -> ModelTier:
        if self._plan.engine:
            return forced.ForcedTier(tier, forced.engine(self._plan.engine, tier), self._plan.file)
        assert isinstance(tier.tokenizer.reference, ReferenceEngine)
        vocabulary = Vocabulary(tier.tokenizer.reference.tokenizer.get_vocab(with_added_tokens=False))
        return FaultyTier(tier, self._injector, changed_template(tier.template), vocabulary)

    def close(self) -> None:
        self._loader.close()


def main(arguments: list[str]) -> int:
    todo, path = plan.read(Path(arguments[0])), Path(arguments[1])
    loader = FaultyLoader(todo)
    try:
        return serve.run(config.load(path), lambda: config.load(path), loader.load)
    finally:
        loader.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
