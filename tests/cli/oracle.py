#!/usr/bin/env python3
"""What an inference worker must hold, computed from the full checkpoint tensors by the written loader rules and by nothing of
Sluice: rules P1 to P8 for Qwen2, Qwen3, Qwen3-MoE and Llama. Compares `sluice sync --dump` files with it, byte for byte.

  oracle.py --dump DIR --version V --worker LAYOUT [--worker ...] --checkpoint DIR
  oracle.py --dump DIR --version V --worker LAYOUT [--worker ...] --catalogue FILE.json [--set KEY=VALUE ...]

Standard library only. Exit code 0: all equal; 1: not."""
import argparse
import json
import os
import sys

import safetensors_files
import tensor_values

SIZES = safetensors_files.SIZES


# ---- the checkpoint: full tensors by name -------------------------------------------------------------------------

def checkpoint_shapes(config, architecture):
    """name -> shape of every tensor that a worker reads, from the config."""
    hidden, vocab, layers = config["hidden_size"], config["vocab_size"], config["num_hidden_layers"]
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    head_dim = config.get("head_dim") or hidden // heads
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not config.get("tie_word_embeddings", False):
        shapes["lm_head.weight"] = (vocab, hidden)

    def mlp(path, width):
        shapes[path + "gate_proj.weight"] = shapes[path + "up_proj.weight"] = (width, hidden)
        shapes[path + "down_proj.weight"] = (hidden, width)

    for n in range(layers):
        layer = f"model.layers.{n}."
        shapes[layer + "input_layernorm.weight"] = shapes[layer + "post_attention_layernorm.weight"] = (hidden,)
        for name, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            shapes[layer + f"self_attn.{name}_proj.weight"] = (rows * head_dim, hidden)
            if architecture == "Qwen2ForCausalLM":
                shapes[layer + f"self_attn.{name}_proj.bias"] = (rows * head_dim,)
        shapes[layer + "self_attn.o_proj.weight"] = (hidden, heads * head_dim)
        if architecture.startswith("Qwen3"):
            shapes[layer + "self_attn.q_norm.weight"] = shapes[layer + "self_attn.k_norm.weight"] = (head_dim,)
        if architecture == "Qwen3MoeForCausalLM":
            shapes[layer + "mlp.gate.weight"] = (config["num_experts"], hidden)
            for x in range(config["num_experts"]):
                mlp(layer + f"mlp.experts.{x}.", config["moe_intermediate_size"])
        else:
            mlp(layer + "mlp.", config["intermediate_size"])
    return shapes


class Checkpoint:
    """Tensors of a directory, or generated ones, in one version."""

    def __init__(self, config, architecture, version, stored=None):
        self.config, self.architecture, self.version, self.stored = config, architecture, version, stored
        self.shapes = checkpoint_shapes(config, architecture)
        self.cache = {}

    def tensor(self, name):
        if name not in self.cache:
            shape = self.shapes[name]
            if self.stored is None:
                dtype, content = "BF16", tensor_values.generated(name, "BF16", safetensors_files.elements(shape))
            else:
                dtype, stored_shape, content = self.stored[name]
                assert stored_shape == shape, f"{name}: {stored_shape}, by the config {shape}"
            self.cache[name] = (dtype, shape, tensor_values.advanced(name, dtype, content, self.version))
        return self.cache[name]


# ---- cutting and joining tensors ----------------------------------------------------------------------------------

def rows(tensor, begin, end):
    dtype, shape, content = tensor
    row = len(content) // shape[0] if shape[0] else 0
    return dtype, (end - begin,) + shape[1:], content[begin * row:end * row]


def columns(tensor, begin, end):
    dtype, (height, width), content = tensor
    size = SIZES[dtype]
    return dtype, (height, end - begin), b"".join(
        content[(y * width + begin) * size:(y * width + end) * size] for y in range(height))


def joined(parts):
    dtype = parts[0][0]
    return dtype, (sum(p[1][0] for p in parts),) + parts[0][1][1:], b"".join(p[2] for p in parts)


def stacked(parts):
    return parts[0][0], (len(parts),) + parts[0][1], b"".join(p[2] for p in parts)


def with_zero_rows(tensor, height):
    dtype, shape, content = tensor
    row = SIZES[dtype] * safetensors_files.elements(shape[1:])
    return dtype, (height,) + shape[1:], content + bytes((height - shape[0]) * row)


# ---- the rules ----------------------------------------------------------------------------------------------------

def parse_layout(text):
    layout = {"tp": 1, "dp": 1, "ep": "off", "replicas": 1, "placement": "linear", "redundant": 0}
    for part in text.split(","):
        key, value = part.split("=")
        assert key in layout, key
        layout[key] = value if key in ("ep", "placement") else int(value)
    return layout


def local_experts(experts, redundant, size, rank, placement, groups, physical_to_logical=None):
    """Logical experts in the slots of a rank (section 1.1); a rebalancing engine's map says what a slot holds."""
    physical = experts + redundant
    if placement == "round_robin" and groups > 1 and redundant == 0:
        return list(range(rank, experts, size))
    base, rest = divmod(physical, size)
    begin = rank * base + min(rank, rest)
    slots = range(begin, begin + base + (1 if rank < rest else 0))
    if physical_to_logical:
        return [physical_to_logical[p] for p in slots]
    return [p if p < experts else (p - experts) % experts for p in slots]


def worker_parameters(checkpoint, layout, pool_rank, expert_map=None):
    """name -> tensor of one rank of a pool. `expert_map`: layer -> logical expert of each physical slot."""
    config, get = checkpoint.config, checkpoint.tensor
    t, r, dp_rank = layout["tp"], pool_rank % layout["tp"], pool_rank // layout["tp"]
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    out = {}

    def part(tensor):  # P2
        step = tensor[1][0] // t
        return rows(tensor, r * step, (r + 1) * step)

    def column_part(tensor):  # P3
        step = tensor[1][1] // t
        return columns(tensor, r * step, (r + 1) * step)

    def vocabulary(tensor):  # P6
        size = tensor[1][0]
        step = (size + 63) // 64 * 64 // t
        return with_zero_rows(rows(tensor, min(r * step, size), min((r + 1) * step, size)), step)

    def qkv(path, kind):  # P5, P5b
        kv = max(1, kv_heads // t)
        repeat = t // kv_heads if t >= kv_heads else 1
        q_rows, kv_rows, begin = heads // t * head_dim, kv * head_dim, r // repeat * kv * head_dim
        return joined([rows(get(f"{path}q_proj.{kind}"), r * q_rows, (r + 1) * q_rows)] +
                      [rows(get(f"{path}{x}_proj.{kind}"), begin, begin + kv_rows) for x in "kv"])

    def gated_mlp(path):  # P4, P3
        out[path + "gate_up_proj.weight"] = joined([part(get(path + x)) for x in ("gate_proj.weight", "up_proj.weight")])
        out[path + "down_proj.weight"] = column_part(get(path + "down_proj.weight"))

    def experts(path, layer_map):  # P7, P8
        size = layout["tp"] * layout["dp"]
        rank, count, width = dp_rank * t + r, config["num_experts"], config["moe_intermediate_size"]
        if layout["ep"] == "on":
            mine = local_experts(count, layout["redundant"], size, rank, layout["placement"], config.get("n_group") or 1, layer_map)
            begin, end = 0, width
        else:
            mine = local_experts(count, layout["redundant"], 1, 0, "linear", 1)
            begin, end = rank * (width // size), (rank + 1) * (width // size)
        one = {x: (joined([rows(get(f"{path}{x}.{p}_proj.weight"), begin, end) for p in ("gate", "up")]),
                   columns(get(f"{path}{x}.down_proj.weight"), begin, end)) for x in set(mine)}
        out[path + "w13_weight"] = stacked([one[x][0] for x in mine])
        out[path + "w2_weight"] = stacked([one[x][1] for x in mine])

    out["model.embed_tokens.weight"] = vocabulary(get("model.embed_tokens.weight"))
    out["model.norm.weight"] = get("model.norm.weight")
    if not config.get("tie_word_embeddings", False):
        out["lm_head.weight"] = vocabulary(get("lm_head.weight"))
    for n in range(config["num_hidden_layers"]):
        layer = f"model.layers.{n}."
        for name in ("input_layernorm.weight", "post_attention_layernorm.weight", "self_attn.q_norm.weight", "self_attn.k_norm.weight"):
            if layer + name in checkpoint.shapes:
                out[layer + name] = get(layer + name)  # P1
        out[layer + "self_attn.qkv_proj.weight"] = qkv(layer + "self_attn.", "weight")
        if layer + "self_attn.q_proj.bias" in checkpoint.shapes:
            out[layer + "self_attn.qkv_proj.bias"] = qkv(layer + "self_attn.", "bias")
        out[layer + "self_attn.o_proj.weight"] = column_part(get(layer + "self_attn.o_proj.weight"))
        if checkpoint.architecture == "Qwen3MoeForCausalLM":
            out[layer + "mlp.gate.weight"] = get(layer + "mlp.gate.weight")
            experts(layer + "mlp.experts.", (expert_map or {}).get(n))
        else:
            gated_mlp(layer + "mlp.")
    return out


# ---- comparing ----------------------------------------------------------------------------------------------------

def first_difference(a, b, dtype, shape):
    at = next(i for i, (x, y) in enumerate(zip(a, b)) if x != y) // SIZES[dtype]
    coordinates = []
    for size in reversed(shape):
        coordinates.append(at % size)
        at //= size
    return list(reversed(coordinates))


def compare(expected, found):
    """Complaints about one worker's file."""
    for name in sorted(set(expected) | set(found)):
        if name not in found:
            yield f"{name} is missing"
        elif name not in expected:
            yield f"{name} should not be there"
        elif expected[name][:2] != found[name][:2]:
            yield f"{name} is {found[name][:2]}, by the rules {expected[name][:2]}"
        elif expected[name][2] != found[name][2]:
            yield f"{name} differs first at {first_difference(expected[name][2], found[name][2], *expected[name][:2])}"


def check_dump(dump, checkpoint, layouts, expert_maps=None, kept_as=lambda parameters: parameters):
    """Complaints about all workers of all pools. `expert_maps`: pool -> expert map. `kept_as`: what a worker makes of what its loader writes."""
    complaints, base = [], 0
    for number, layout in enumerate(map(parse_layout, layouts)):
        pool = layout["tp"] * layout["dp"]
        for pool_rank in range(pool):
            expected = kept_as(worker_parameters(checkpoint, layout, pool_rank, (expert_maps or {}).get(number)))
            for replica in range(layout["replicas"]):
                rank = base + replica * pool + pool_rank
                found, metadata = safetensors_files.read(os.path.join(dump, f"worker-{rank}.safetensors"))
                complaints += [f"worker {rank}: {text}" for text in compare(expected, found)]
                for key, value in (("version", str(checkpoint.version)), ("rank", str(rank))):
                    if metadata.get(key) != value:
                        complaints.append(f"worker {rank}: metadata {key} is {metadata.get(key)}, expected {value}")
        base += pool * layout["replicas"]
    files = sorted(os.listdir(dump))
    if files != sorted(f"worker-{r}.safetensors" for r in range(base)):
        complaints.append(f"files in {dump}: {files}, expected those of {base} workers")
    return complaints


def checkpoint_of(args):
    if args.checkpoint:
        stored, config = safetensors_files.read_checkpoint(args.checkpoint)
        return Checkpoint(config, config["architectures"][0], args.version, stored)
    with open(args.catalogue, encoding="utf-8") as stream:
        catalogue = json.load(stream)
    config = catalogue["config"]
    for text in args.set:
        key, value = text.split("=", 1)
        assert key in config, key
        config[key] = json.loads(value)
    return Checkpoint(config, catalogue["architecture"], args.version)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dump", required=True)
    parser.add_argument("--version", type=int, required=True)
    parser.add_argument("--worker", action="append", required=True)
    parser.add_argument("--set", action="append", default=[])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--checkpoint")
    source.add_argument("--catalogue")
    args = parser.parse_args()
    complaints = check_dump(args.dump, checkpoint_of(args), args.worker)
    for text in complaints[:20]:
        print(text)
    print(f"{len(complaints)} differences" if complaints else "all equal")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
