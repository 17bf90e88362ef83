"""Certified cuts: where a text can be cut so that its token IDs are those of its parts. `docs/proof.md` has the proofs.

- `regex`: split patterns as trees, read as one of two engines reads them (`oniguruma`, `fancy`); `follow`: lemma 1;
  `fold`: lemma 1 where case is ignored
- `stages`: a pre-tokenizer as operations (`ops`) on pieces; `predicates`: splits without a regex
- `images`: the characters at a seam after a step that rewrites the text
- `normalizer`: lemma 4, as a row of steps (`step`, `forms`, `charmaps`, `replace`, `precompiled`)
- `literals`: lemma 5; `joins`: lemma 3; `model`: which models are functions of the piece
- `classes`: character sets probed out of the engine, and their partition
- `derive`: lemmas 1 to 5 put together; `table`: the result as it is asked; `store`: kept on disk
- `certificate`: a tokenizer file to its certificate; `samples`, `selfcheck`: the certificate against the engine at load
"""

from toktier.certificate.certificate import Certificate, certify, certify_ranks

__all__ = ["Certificate", "certify", "certify_ranks"]
