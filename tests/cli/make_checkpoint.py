#!/usr/bin/env python3
"""Writes small Hugging Face checkpoint directories: several shards, tensors in any order, an index.

  make_checkpoint.py KIND DIR     KIND: qwen3_moe, llama, qwen3_tied, qwen3_tied_stored, qwen2, single_file

Random bits from a fixed seed, so two runs write the same. Standard library only."""
import json
import os
import random
import sys

import oracle
import safetensors_files

DENSE = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 5, "num_attention_heads": 8, "vocab_size": 256,
         "rms_norm_eps": 1e-06, "hidden_act": "silu", "torch_dtype": "bfloat16"}
KINDS = {
    # KV heads fewer than tp=4, a head_dim that is not hidden / heads, a vocabulary that needs padding.
    "qwen3_moe": {**DENSE, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_key_value_heads": 2, "head_dim": 16,
                  "vocab_size": 1010, "tie_word_embeddings": False, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
                  "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True, "attention_bias": False},
    "llama": {**DENSE, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_key_value_heads": 4, "tie_word_embeddings": False,
              "attention_bias": False, "mlp_bias": False},
    "qwen3_tied": {**DENSE, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_key_value_heads": 4, "head_dim": 16,
                   "vocab_size": 1010, "tie_word_embeddings": True, "attention_bias": False},
    "qwen2": {**DENSE, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_key_value_heads": 2, "tie_word_embeddings": False},
}
KINDS["qwen3_tied_stored"] = KINDS["qwen3_tied"]  # with a head in the files that differs from the table
KINDS["single_file"] = KINDS["llama"]


def make(kind, directory, shards=3):
    """Writes the directory and returns the tensors."""
    generator = random.Random(f"sluice {kind}")
    config = KINDS[kind]
    shapes = oracle.checkpoint_shapes(config, config["architectures"][0])
    if kind == "qwen3_tied_stored":
        shapes["lm_head.weight"] = shapes["model.embed_tokens.weight"]
    names = sorted(shapes)
    generator.shuffle(names)
    tensors = {name: ("BF16", shapes[name], generator.randbytes(2 * safetensors_files.elements(shapes[name]))) for name in names}
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as stream:
        json.dump(config, stream, indent=2)
    if kind == "single_file":
        safetensors_files.write(os.path.join(directory, "model.safetensors"), tensors, {"format": "pt"})
        return tensors
    index = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        mine = names[shard::shards]
        safetensors_files.write(os.path.join(directory, file), {name: tensors[name] for name in mine}, {"format": "pt"})
        index.update({name: file for name in mine})
    total = sum(len(content) for _, _, content in tensors.values())
    with open(os.path.join(directory, "model.safetensors.index.json"), "w", encoding="utf-8") as stream:
        json.dump({"metadata": {"total_size": total}, "weight_map": index}, stream)
    return tensors


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in KINDS:
        sys.exit(__doc__)
    make(sys.argv[1], sys.argv[2])
