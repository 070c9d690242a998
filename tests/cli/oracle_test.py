#!/usr/bin/env python3
"""The oracle itself, against worked numbers written down elsewhere: known hashes, the slices of reference tables, and that it notices faults."""
import os
import sys
import tempfile

import make_checkpoint
import oracle
import safetensors_files
import tensor_values


def check(good, message):
    if not good:
        sys.exit(f"FAILED: {message}")


def test_hash():
    for text, value in ((b"", 0xEF46DB3751D8E999), (b"a", 0xD24EC4F1A98C6E5B), (b"abc", 0x44BC2CF5AD770999),
                        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1)):
        check(tensor_values.xxh64(text) == value, f"XXH64 of {text}")
    # Reference vector of splitmix64: the first output of seed 0 is the finaliser of its increment.
    check(tensor_values.mix64(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF, "splitmix64")


class Numbered:
    """A checkpoint whose rows say where they come from: one column, element = row number."""

    def __init__(self, architecture, config, shapes):
        self.architecture, self.config, self.shapes, self.version = architecture, config, shapes, 1

    def tensor(self, name):
        shape = self.shapes[name]
        return "U32", shape, b"".join(i.to_bytes(4, "little") for i in range(safetensors_files.elements(shape)))


def first_column(tensor):
    _, shape, content = tensor
    width = safetensors_files.elements(shape[1:])
    return [int.from_bytes(content[y * width * 4:y * width * 4 + 4], "little") // width for y in range(shape[0])]


def test_worked_numbers():
    # Qwen3-0.6B at t=16, r=3: q 384-511 is rows 3*128.., k and v of head 1 (two replicas each). One column stands for all.
    config = {"hidden_size": 1, "vocab_size": 1010, "num_hidden_layers": 1, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
              "intermediate_size": 32, "tie_word_embeddings": True}
    shapes = oracle.checkpoint_shapes(config, "Qwen3ForCausalLM")
    shapes["model.layers.0.self_attn.o_proj.weight"] = (1, 2048)
    got = oracle.worker_parameters(Numbered("Qwen3ForCausalLM", config, shapes), oracle.parse_layout("tp=16"), 3)
    rows = first_column(got["model.layers.0.self_attn.qkv_proj.weight"])
    check(rows == list(range(384, 512)) + list(range(128, 256)) * 2, "qkv of Qwen3-0.6B at t=16, r=3")
    check("lm_head.weight" not in got, "a tied model has no head")
    got = oracle.worker_parameters(Numbered("Qwen3ForCausalLM", config, shapes), oracle.parse_layout("tp=2"), 1)
    rows = first_column(got["model.embed_tokens.weight"])
    check(rows == list(range(512, 1010)) + [0] * 14, "a vocabulary of 1010 at t=2: 498 rows and 14 of zeros")


def test_placement():
    spread = [oracle.local_experts(128, 0, 3, q, "linear", 1) for q in range(3)]
    check([len(x) for x in spread] == [43, 43, 42] and sum(spread, []) == list(range(128)), "128 experts over 3")
    check(oracle.local_experts(256, 32, 32, 28, "linear", 8) == [252, 253, 254, 255, 0, 1, 2, 3, 4], "DeepSeek-V3 with 32 redundant, rank 28")
    check(oracle.local_experts(256, 32, 32, 31, "linear", 8) == list(range(23, 32)), "DeepSeek-V3 with 32 redundant, rank 31")
    check(oracle.local_experts(8, 0, 2, 1, "round_robin", 4) == [1, 3, 5, 7], "round robin")
    check(oracle.local_experts(8, 0, 2, 1, "round_robin", 1) == [4, 5, 6, 7], "round robin falls back without expert groups")


def test_notices_faults():
    with tempfile.TemporaryDirectory() as directory:
        model, dump = os.path.join(directory, "model"), os.path.join(directory, "dump")
        tensors = make_checkpoint.make("qwen3_moe", model)
        stored, config = safetensors_files.read_checkpoint(model)
        check(stored == tensors, "what was written is read back")
        checkpoint = oracle.Checkpoint(config, config["architectures"][0], 2, stored)
        os.makedirs(dump)
        files = [oracle.worker_parameters(checkpoint, oracle.parse_layout("tp=2"), r) for r in range(2)]

        def complaints(change=None):
            for rank, parameters in enumerate(files):
                parameters = dict(parameters)
                if change and rank == 1:
                    change(parameters)
                safetensors_files.write(os.path.join(dump, f"worker-{rank}.safetensors"), parameters, {"version": "2", "rank": str(rank)})
            return oracle.check_dump(dump, checkpoint, ["tp=2"])

        check(complaints() == [], "what the rules give is accepted")
        name = "model.layers.3.mlp.experts.w2_weight"

        def flip(parameters):
            dtype, shape, content = parameters[name]
            parameters[name] = (dtype, shape, content[:100] + bytes([content[100] ^ 1]) + content[101:])

        check(complaints(flip) == [f"worker 1: {name} differs first at [0, 2, 2]"], "one bit")
        check(len(complaints(lambda p: p.pop(name))) == 1, "a missing parameter")
        check(len(complaints(lambda p: p.update(extra=("U8", (1,), b"0")))) == 1, "a parameter too many")
        check(len(complaints(lambda p: p.update({name: (p[name][0], (6, 24, 64), p[name][2])}))) == 1, "a shape")


test_hash()
test_worked_numbers()
test_placement()
test_notices_faults()
print("good")
