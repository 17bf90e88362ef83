"""Certified cuts: where a text can be cut so that its token IDs are those of its parts. `docs/proof.md` has the proofs.

- `regex`: split patterns as trees; `follow`: lemma 1; `stages`: a pre-tokenizer as a sequence of split stages
- `classes`: character sets probed out of the engine, and their partition; `fold`: lemma 1 where case is ignored
- `normalizer`: lemma 4; `literals`: lemma 5; `certificate`: lemma 2, the table, the cuts
- `samples`, `selfcheck`: hostile text, and the certificate against the engine at load
"""

from toktier.certificate.certificate import Certificate, certify

__all__ = ["Certificate", "certify"]
