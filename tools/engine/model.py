"""A tiny Qwen3 with random weights and the real tokenizer: a few milliseconds a token, and every ID is a real one.

The weights are wide enough (deviation 0.4) that greedy decoding wanders over the whole vocabulary; with the usual 0.02
and tied embeddings it repeats one token, which would hide any difference between two prompts.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

VOCAB, HIDDEN, INTER, LAYERS, HEADS, HEAD_DIM, CONTEXT = 151936, 64, 128, 2, 2, 32, 40960
SEED, DEVIATION = 20260229, 0.4


@dataclass(frozen=True)
class Shape:
    """How long the model's context is, in tokens, and how much there is to compute for each of them."""

    context: int = CONTEXT
    layers: int = LAYERS
    heads: int = HEADS


TINY = Shape()
LONG = Shape(context=1 << 20, layers=1, heads=1)
"""For benchmarks with long sessions: a quarter of the attention, for which a first long prompt takes minutes."""

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "dtype": "float32",
    "eos_token_id": 151645,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "initializer_range": DEVIATION,
    "intermediate_size": INTER,
    "max_position_embeddings": CONTEXT,
    "max_window_layers": LAYERS,
    "model_type": "qwen3",
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": HEADS,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": VOCAB,
}


def config(shape: Shape = TINY) -> dict[str, Any]:
    """The model's ``config.json``."""
    return CONFIG | {
        "max_position_embeddings": shape.context,
        "max_window_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.heads,
    }


def shapes(shape: Shape = TINY) -> dict[str, tuple[int, ...]]:
    """Tensor names and shapes as transformers' Qwen3ForCausalLM has them."""
    width = shape.heads * HEAD_DIM
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    for layer in range(shape.layers):
        at = f"model.layers.{layer}"
        found |= {
            f"{at}.input_layernorm.weight": (HIDDEN,),
            f"{at}.post_attention_layernorm.weight": (HIDDEN,),
            f"{at}.self_attn.q_proj.weight": (width, HIDDEN),
            f"{at}.self_attn.k_proj.weight": (width, HIDDEN),
            f"{at}.self_attn.v_proj.weight": (width, HIDDEN),
            f"{at}.self_attn.o_proj.weight": (HIDDEN, width),
            f"{at}.self_attn.q_norm.weight": (HEAD_DIM,),
            f"{at}.self_attn.k_norm.weight": (HEAD_DIM,),
            f"{at}.mlp.gate_proj.weight": (INTER, HIDDEN),
            f"{at}.mlp.up_proj.weight": (INTER, HIDDEN),
            f"{at}.mlp.down_proj.weight": (HIDDEN, INTER),
        }
    return found | {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCAB, HIDDEN)}


def write_weights(path: Path, shape: Shape = TINY) -> None:
    """One safetensors file: 8 bytes of header length, the JSON header, the tensors in order."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, size in shapes(shape).items():
        start, end = end, end + 4 * int(np.prod(size))
        header[name] = {"dtype": "F32", "shape": list(size), "data_offsets": [start, end]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    rng = np.random.default_rng(SEED)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for size in shapes(shape).values():
            values = np.ones(size) if len(size) == 1 else rng.normal(0.0, DEVIATION, size)
            file.write(values.astype("<f4").tobytes())


def make_model(folder: Path, tokenizer: Path, shape: Shape = TINY) -> Path:
    """Writes the model folder unless it is there and complete. `tokenizer`: a folder with `tokenizer.json[.xz]`."""
    plain = tokenizer / "tokenizer.json"
    raw = plain.read_bytes() if plain.exists() else lzma.decompress((tokenizer / "tokenizer.json.xz").read_bytes())
    files = {"tokenizer.json": raw, "config.json": (json.dumps(config(shape), indent=1) + "\n").encode()}
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        if (tokenizer / name).exists():
            files[name] = (tokenizer / name).read_bytes()
    files["generation_config.json"] = b'{"eos_token_id": [151645, 151643], "bos_token_id": 151643}\n'
    made_from = hashlib.sha256(f"{SEED} {DEVIATION} {sorted(shapes(shape).items())}".encode())
    for name, data in sorted(files.items()):
        made_from.update(f"{name} {len(data)} ".encode() + data)
    stamp = folder / "made-from"
    if stamp.exists() and stamp.read_text() == made_from.hexdigest():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    write_weights(folder / "model.safetensors", shape)
    stamp.write_text(made_from.hexdigest())
    return folder
