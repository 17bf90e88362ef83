"""The GPU path: a tokenizer as tables that kernels walk, and the launcher of those kernels.

- `automaton`: a split pattern as an ordered automaton over character classes;
- `transducer`: automata as one machine that reads every byte once and tells where pieces begin;
- `synchronise`: from where on that machine's state is known whatever came before;
- `merges`: which merges a BPE can ever make, and the proof that they may be made in batches;
- `hashing`, `vocabulary`, `adjacency`: the tables of whole pieces, of pairs, and of characters side by side;
- `tables`: all of it for one tokenizer, in the layout of ``cuda_src/tables.cuh``; `store` keeps it on disk.
"""
