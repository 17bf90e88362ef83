"""Runs by itself in another process: `AutoTokenizer` on a folder, as an engine loads it.

    python -P parity_worker.py FOLDER < texts.json > ids.json

It imports nothing of TokTier. Input: a JSON list of texts. Output: ``{"version": ..., "ids": [[...], ...]}`` or
``{"error": ...}``.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys


def main() -> None:
    texts = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        os.environ["HF_HUB_OFFLINE"] = "1"
        answer: dict[str, object]
        try:
            import transformers

            tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=False)
            ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
            assert all(type(row) is list for row in ids), "encode() returned something other than lists"
            answer = {"version": transformers.__version__, "ids": ids}
        except Exception as error:  # whatever it is, it is the answer
            answer = {"error": f"{type(error).__name__}: {error}"}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
