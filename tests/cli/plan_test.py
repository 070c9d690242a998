#!/usr/bin/env python3
"""`sluice plan`, `inspect` and `info` from outside: results, JSON, exit codes, one-line errors. plan_test.py SLUICE MODELS_DIR"""
import json
import os
import subprocess
import sys
import tempfile

import make_checkpoint

SLUICE, MODELS = sys.argv[1], sys.argv[2]
CHECKS = 0


def run(*arguments, code=0):
    """Runs the program; an exit code that is not `code` ends the test with what it said."""
    done = subprocess.run([SLUICE, *arguments], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != code:
        sys.exit(f"{' '.join(arguments)}: exit code {done.returncode}, expected {code}\n{done.stdout}{done.stderr}")
    if code in (2, 3):
        lines = done.stderr.strip().splitlines()
        check(len(lines) == 1 and lines[0].startswith("sluice: "), f"{arguments}: no one-line error: {done.stderr}")
    return done


def check(good, message):
    global CHECKS
    CHECKS += 1
    if not good:
        sys.exit(f"FAILED: {message}")


def plan(*arguments):
    """The JSON of a plan, from stdout; the table must be on stderr then."""
    done = run("plan", *arguments, "--json", "-")
    check(done.stderr.strip() != "", "the table goes to stderr when JSON goes to stdout")
    return json.loads(done.stdout)


def test_contract():
    result = plan("--model", "Qwen3-30B-A3B", "--set", "num_hidden_layers=2", "--set", "num_experts=8", "--trainer", "tp=2,pp=2,ep=2",
                  "--worker", "tp=2,ep=on,replicas=2", "--cluster", "gpus_per_node=4,nic_gbps=400")
    for key in ("schema", "model", "trainers", "workers", "bytes", "worker_ranks", "trainer_ranks", "coverage", "memory", "digest", "plan_seconds",
                "plan_bytes", "bound"):
        check(key in result, f"JSON has no {key}")
    check(result["schema"] == 1 and result["trainers"] == 4 and result["workers"] == 4, "counts")
    check(result["model"]["tensors"] == 3 + 2 * (2 + 6 + 1 + 8 * 3), "number of tensors")
    check(sum(result["bytes"]["by_path"].values()) == result["bytes"]["pulled"], "bytes by path sum to pulled")
    check(sum(sum(w["from"].values()) for w in result["worker_ranks"]) == result["bytes"]["pulled"], "bytes by owner sum to pulled")
    check(result["coverage"]["holes"] == 0 and result["coverage"]["overlaps"] == 0, "coverage")
    check(len(result["digest"]) == 16, "digest")
    # By hand: what one of two ranks holds, in bf16. Expert parallel: 4 of 8 experts whole.
    hidden, vocab, head = 2048, 151936, 128
    layer = (32 * head + 2 * 4 * head) // 2 * hidden + 32 * head // 2 * hidden + 2 * head + 2 * hidden + 8 * hidden + 4 * 3 * 768 * hidden
    rank = 2 * (2 * vocab // 2 * hidden + hidden + 2 * layer)
    check([w["bytes"] for w in result["worker_ranks"]] == [rank] * 4, f"bytes per worker: {[w['bytes'] for w in result['worker_ranks']]}, by hand {rank}")


def test_kv_replication():
    arguments = ("--model", "Qwen3-235B-A22B", "--set", "num_hidden_layers=1", "--set", "num_experts=8", "--trainer", "tp=1")
    eight, four = (plan(*arguments, "--worker", f"tp={t},ep=on") for t in (8, 4))
    hidden, head = 4096, 128
    # tp=8 with four KV heads pulls each k and v twice; all else but what is whole everywhere is pulled once.
    whole = 2 * (3 * hidden + 2 * head + 8 * hidden)
    extra = 2 * 2 * 4 * head * hidden
    check(eight["bytes"]["pulled"] == four["bytes"]["pulled"] + 4 * whole + extra, "KV rows are pulled by each of their replicas, and nothing else twice")


def test_vocabulary_padding():
    result = plan("--model", "Qwen3-8B", "--set", "num_hidden_layers=1", "--set", "vocab_size=1010", "--trainer", "tp=2", "--worker", "tp=2")
    check(result["coverage"]["padding_bytes"] == 2 * 14 * 4096 * 2, "padding of embedding and head")


def test_direct_run():
    arguments = ("--model", "Qwen3-30B-A3B", "--set", "num_hidden_layers=1", "--trainer", "tp=1", "--worker", "tp=2")
    # Columns of the experts' second weights (768 B) and of the attention output (4 KiB), and norms beside them.
    hidden, head, experts, expert = 2048, 128, 128, 768
    columns = {"w2": 2 * experts * hidden * expert, "o_proj": 2 * 32 * head * hidden}
    packed, digests = {}, set()
    for run_bytes in ("1K", "4K", "64K"):
        os.environ["SLUICE_DIRECT_RUN_BYTES"] = run_bytes
        result = plan(*arguments)
        packed[run_bytes] = result["bytes"]["by_path"]["packed"]
        digests.add(result["digest"])
    del os.environ["SLUICE_DIRECT_RUN_BYTES"]
    check(packed["1K"] // 2**20 == columns["w2"] // 2**20, f"runs of 768 B are packed, those of 4 KiB read: {packed}")
    check(packed["4K"] - packed["1K"] < 2**20, f"runs of 4 KiB are no shorter than 4 KiB: {packed}")
    check(packed["64K"] - packed["1K"] >= columns["o_proj"], f"runs of 4 KiB are packed by default: {packed}")
    check(len(digests) == 3, f"plans of other settings have other digests: {digests}")


def test_errors():
    base = ("plan", "--model", "Qwen3-8B", "--trainer", "tp=2", "--worker", "tp=2")
    for arguments in (("plan", "--model", "Qwen3-8", "--trainer", "tp=1", "--worker", "tp=1"), ("plan", "--trainer", "tp=1", "--worker", "tp=1"),
                      (*base, "--set", "no_such_key=1"), (*base, "--set", "hidden_size=wide"), (*base, "--set", "hidden_size=-1"),
                      (*base, "--set", "hidden_size"), (*base, "--set", "torch_dtype=fp16"), (*base, "--chunk-bytes", "4X"), (*base, "--path", "none"), (*base, "--cluster", "nodes=2"),
                      (*base, "--json", "/no/such/directory/file.json"), (*base, "--explain", "0"), (*base, "--explain", "9:model.norm.weight"),
                      (*base, "--explain", "0:model.norm.wait"), (*base, "--diff", "/no/such/file"), ("plan", "--model", "Qwen3-8B", "--trainer", "tp=0", "--worker", "tp=1"),
                      ("plan", "--model", "Qwen3-8B", "--trainer", "tp=1", "--worker", "xp=1"), ("nonsense",), (), ("inspect", "/no/such/file"),
                      ("inspect", MODELS + "/Qwen3-8B.json"), ("plan", "--model", "/dev/null", "--trainer", "tp=1", "--worker", "tp=1")):
        run(*arguments, code=2)
    run(*base, "--set", "torch_dtype=auto")
    run("plan", "--model", "Qwen3-8B", "--trainer", "tp=1", "--worker", "tp=3", code=3)
    check("Qwen3-8B" in run("plan", "--model", "qwen3_8b", "--trainer", "tp=1", "--worker", "tp=1", code=2).stderr, "a near name is suggested")


def test_help():
    for command in ("plan", "inspect", "info"):
        check("--help" in run(command, "--help").stdout, f"help of {command}")
    check("plan" in run("--help").stdout, "help lists the commands")


def test_save_diff_inspect_explain(directory):
    path = os.path.join(directory, "plan.bin")
    base = ("plan", "--model", "Qwen3-0.6B", "--set", "num_hidden_layers=2", "--trainer", "tp=2")
    run(*base, "--worker", "tp=2", "--save", path)
    run(*base, "--worker", "tp=2", "--diff", path)
    check("route" in run(*base, "--worker", "tp=2", "--chunk-bytes", "64K", "--diff", path, code=5).stdout, "differences are listed")
    run(*base, "--worker", "tp=4", "--diff", path, code=5)
    both = os.path.join(directory, "both.bin")
    run(*base, "--worker", "tp=2", "--save", both)
    run(*base, "--worker", "tp=4", "--diff", both, "--save", both, code=5)  # compared with what was there
    run(*base, "--worker", "tp=4", "--diff", both)
    text = run("inspect", path).stdout
    check("Qwen3-0.6B" in text and "tp=2" in text, f"inspect tells what plan it is: {text}")
    with open(path, "rb") as stream:
        good = stream.read()
    for bad in (good[:-1], good[:20], good[:100] + bytes([good[100] ^ 1]) + good[101:], b"SLPN"):
        with open(path, "wb") as stream:
            stream.write(bad)
        run("inspect", path, code=2)
        run(*base, "--worker", "tp=2", "--diff", path, code=2)
    with open(path, "wb") as stream:
        stream.write(good[:4] + bytes([good[4] + 1]) + good[5:])
    check("format version" in run("inspect", path, code=2).stderr, "a file of another version is told from an altered one")
    with open(path, "wb") as stream:
        stream.write(good)
    other = run("plan", "--model", "Qwen3-0.6B", "--set", "num_hidden_layers=2", "--set", "vocab_size=1024", "--trainer", "tp=2", "--worker", "tp=2",
                "--diff", path, code=5).stdout
    check("tensor model.embed_tokens.weight has shape [1024, 1024] in the present model and [151936, 1024]" in other,
          f"another catalogue is told by its first tensor: {other}")
    other = run("plan", "--model", "Qwen3-8B", "--set", "num_hidden_layers=1", "--trainer", "tp=1", "--worker", "tp=2", "--diff", path, code=5).stdout
    for part in ("model: Qwen3-0.6B", "tensors: 25", "trainer layout: tp=2", "catalogue: tensor"):
        check(part in other, f"--diff says {part}: {other}")
    saved = run("inspect", path, "--explain", "1:model.layers.1.self_attn.qkv_proj.weight").stdout
    run("inspect", path, "--explain", "1:model.layers.1.self_attn.qkv_proj.wait", code=2)
    run("inspect", path, "--explain", "2:model.norm.weight", code=2)
    run("inspect", MODELS + "/Qwen3-8B.json", "--explain", "0:model.norm.weight", code=2)
    text = run(*base, "--worker", "tp=2", "--explain", "1:model.layers.1.self_attn.qkv_proj.weight").stdout
    check(saved == text, f"a saved plan explains itself as the plan does: {saved}")
    for part in ("[0:1024, 0:1024]  <-  [1024:2048, 0:1024] of trainer 1, direct","model.layers.1.self_attn.q_proj.weight [1024:2048, 0:1024]", "model.layers.1.self_attn.k_proj.weight [512:1024, 0:1024]",
                 "from trainer"):
        check(part in text, f"--explain says {part}: {text}")


def test_expert_map(directory):
    base = ("--model", "Qwen3-30B-A3B", "--set", "num_hidden_layers=3", "--set", "num_experts=8", "--set", "hidden_size=64",
            "--set", "moe_intermediate_size=32", "--set", "vocab_size=256", "--trainer", "tp=2,dp=2,ep=2")
    pool = ("--worker", "tp=4,ep=on,redundant=4")
    files = {name: os.path.join(directory, name) for name in ("a.json", "b.json", "a.bin", "b.bin", "mapped.bin", "bad.json")}
    initial = [slot % 8 for slot in range(12)]
    moved = [initial[7], *initial[1:7], initial[0], *initial[8:]]
    for name, slots in (("a.json", initial), ("b.json", moved), ("bad.json", initial[:-1])):
        with open(files[name], "w", encoding="utf-8") as stream:
            json.dump({"physical_to_logical": {"1": slots}}, stream)
    run("plan", *base, *pool, "--expert-map", files["a.json"], "--save", files["a.bin"])
    check(plan(*base, *pool)["digest"] == plan(*base, *pool, "--expert-map", files["a.json"])["digest"], "the initial map is the initial map")
    other = run("plan", *base, *pool, "--expert-map", files["b.json"], "--diff", files["a.bin"], code=5).stdout
    for part in ("expert_map=", "fingerprint", "demand 0: 3 of", "model.layers.1.mlp.experts.w"):
        check(part in other, f"--diff of another map says {part}: {other}")
    text = run("plan", *base, *pool, "--expert-map", files["b.json"], "--replan", files["a.bin"], "--save", files["b.bin"]).stdout
    check(", 6 routed;" in text, f"two slots of gate, up and down move: {text}")
    scratch, replanned = plan(*base, *pool, "--expert-map", files["b.json"]), plan(*base, *pool, "--expert-map", files["b.json"], "--replan", files["a.bin"])
    check(scratch["digest"] == replanned["digest"] and scratch["bytes"]["pulled"] == replanned["bytes"]["pulled"], "a replanned plan is that of its map")
    check([w["bytes"] for w in scratch["worker_ranks"]] == [w["bytes"] for w in replanned["worker_ranks"]], "the same bytes for each worker")
    text = run("inspect", files["b.bin"], "--explain", "0:model.layers.1.mlp.experts.w2_weight").stdout
    check("[0:1, 0:64, 0:32]  <-  model.layers.1.mlp.experts.7.down_proj.weight" in text, f"slot 0 holds expert 7: {text}")
    on_host = (*base, *pool, "--path", "mapped", "--expert-map")
    run("plan", *on_host, files["a.json"], "--save", files["mapped.bin"])
    scratch, replanned = plan(*on_host, files["b.json"]), plan(*on_host, files["b.json"], "--replan", files["mapped.bin"])
    check(scratch["digest"] == replanned["digest"] and scratch["bytes"] == replanned["bytes"], "mapped owners stay mapped")
    run("plan", *base, *pool, "--expert-map", files["b.json"], "--replan", files["mapped.bin"], code=3)
    run("plan", *base, *pool, "--expert-map", files["bad.json"], code=2)
    run("plan", *base, *pool, "--expert-map", "1:" + files["a.json"], code=2)
    run("plan", *base, *pool, *pool, "--expert-map", files["a.json"], code=2)
    run("plan", *base, *pool, "--worker", "tp=2", "--expert-map", "0:" + files["b.json"])
    run("plan", *base, *pool, "--chunk-bytes", "64K", "--expert-map", files["b.json"], "--replan", files["a.bin"], code=3)
    run("plan", *base, "--worker", "tp=2,ep=on", "--replan", files["a.bin"], code=3)


def test_several_pools():
    base = ("--model", "Qwen3-30B-A3B", "--set", "num_hidden_layers=2", "--set", "num_experts=8", "--trainer", "tp=2,ep=2")
    one, two = ("--worker", "tp=2,ep=on,replicas=2"), ("--worker", "tp=1,dp=4")
    both, first, second = plan(*base, *one, *two), plan(*base, *one), plan(*base, *two)
    check([w["pool"] for w in both["worker_ranks"]] == [0] * 4 + [1] * 4, "ranks of the pools in order")
    for mine, alone in ((both["worker_ranks"][:4], first["worker_ranks"]), (both["worker_ranks"][4:], second["worker_ranks"])):
        check([w["bytes"] for w in mine] == [w["bytes"] for w in alone], "each pool pulls what it pulls alone")
    check(both["bytes"]["pulled"] == first["bytes"]["pulled"] + second["bytes"]["pulled"], "pools add up")
    check(sum(t["served_bytes"] for t in both["trainer_ranks"]) == both["bytes"]["pulled"], "trainers serve what is pulled")


def test_megatron():
    for model in sorted(name[:-5] for name in os.listdir(MODELS) if name.endswith(".json")):
        result = plan("--model", model, "--set", "num_hidden_layers=4", "--trainer", "tp=2,pp=2,format=megatron", "--worker", "tp=2")
        check(result["coverage"]["holes"] == 0 and result["coverage"]["overlaps"] == 0, f"{model}: coverage in megatron format")


def test_models(directory):
    name = os.path.join(MODELS, "Mixtral-8x7B.json")
    layouts = ("--trainer", "tp=2", "--worker", "tp=2")
    by_file, by_name = plan("--model", name, *layouts), plan("--model", "Mixtral-8x7B", *layouts)
    check(by_file["digest"] == by_name["digest"] and by_file["model"] == by_name["model"], "a catalogue file is the model of that name")
    for kind in ("qwen3_moe", "llama", "qwen3_tied", "qwen3_tied_stored", "single_file"):
        path = os.path.join(directory, kind)
        tensors = make_checkpoint.make(kind, path)
        result = plan("--model", path, *layouts)
        check(result["model"]["tensors"] == len(tensors), f"{kind}: tensors as stored")
        check(result["model"]["bytes"] == sum(len(t[2]) for t in tensors.values()), f"{kind}: bytes as stored")
        check(result["coverage"]["unread_tensors"] == (["lm_head.weight"] if kind == "qwen3_tied_stored" else []), f"{kind}: unread tensors")
        check(f"{len(tensors)} tensors" in run("inspect", path).stdout, f"{kind}: inspect of a directory")
    warned = run("plan", "--model", os.path.join(directory, "qwen3_tied_stored"), *layouts).stderr
    check("lm_head.weight" in warned and "warning" in warned, "a differing head of a tied model is warned of")


def test_info():
    text = run("info").stdout
    for part in ("libucp", "1.2", "MPI", "CUDA"):
        check(part in text, f"info tells {part}: {text}")
    check(all(line.isprintable() for line in text.splitlines()), f"info is text: {text!r}")


def main():
    with tempfile.TemporaryDirectory() as directory:
        test_help()
        test_errors()
        test_contract()
        test_kv_replication()
        test_vocabulary_padding()
        test_direct_run()
        test_save_diff_inspect_explain(directory)
        test_expert_map(directory)
        test_several_pools()
        test_megatron()
        test_models(directory)
        test_info()
    print(f"{CHECKS} checks")


main()
