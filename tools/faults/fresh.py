"""``python fresh.py TOKENIZER_JSON``: a text on standard input, its IDs by fastokens (uint32) on standard output.

One text, one process. It imports nothing else, since each text pays for it.
"""

import sys
from array import array

import fastokens


def main() -> None:
    tokenizer = fastokens.Tokenizer.from_file(sys.argv[1])
    ids = tokenizer.encode(sys.stdin.buffer.read().decode(), add_special_tokens=False).ids
    sys.stdout.buffer.write(array("I", ids).tobytes())


if __name__ == "__main__":
    main()
