"""Runs by itself in another process: `AutoTokenizer` on a folder, as an engine loads it.

    python -P parity_worker.py FOLDER TEXTS.json IDS.json

It imports nothing of TokTier. TEXTS: a JSON list of texts. IDS, which it writes: ``{"version": ..., "ids": [[...]],
"special": [[...]]}``, the IDs without and with special tokens, or ``{"error": ...}``. Nothing comes by standard input;
its end says that whoever asked is gone, and ends this too.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path


def _end_with_the_parent() -> None:
    os.read(0, 1)
    os._exit(1)


def main() -> None:
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    folder, texts, out = sys.argv[1:]
    os.environ["HF_HUB_OFFLINE"] = "1"
    answer: dict[str, object]
    try:
        import transformers

        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        probes = json.loads(Path(texts).read_text("utf-8"))
        ids = [tokenizer.encode(text, add_special_tokens=False) for text in probes]
        special = [tokenizer.encode(text, add_special_tokens=True) for text in probes]
        assert all(type(row) is list for row in ids + special), "encode() returned something other than lists"
        answer = {"version": transformers.__version__, "ids": ids, "special": special}
    except Exception as error:  # whatever it is, it is the answer
        answer = {"error": f"{type(error).__name__}: {error}"}
    Path(out).write_text(json.dumps(answer), "utf-8")
    os._exit(0)  # what transformers leaves to be taken apart is not waited for


if __name__ == "__main__":
    main()
