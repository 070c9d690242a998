#!/usr/bin/env python3
"""`sluice sync` under mpirun against the oracle. sync_test.py SLUICE MPIRUN MODELS_DIR SCENARIO

Each scenario moves a small model, dumps what the workers hold, and compares it byte for byte with what the written rules give."""
import json
import os
import subprocess
import sys
import tempfile

import kernel_format
import make_checkpoint
import oracle

SLUICE, MPIRUN, MODELS = sys.argv[1:4]
SMALL = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1010, "intermediate_size": 96}
SMALL_MOE = {**SMALL, "head_dim": 16, "num_experts": 6, "moe_intermediate_size": 48}


def world(layout, keys):
    size = 1
    for part in layout.split(","):
        key, value = part.split("=")
        size *= int(value) if key in keys else 1
    return size


def started(ranks, *arguments):
    return [MPIRUN, "-n", str(ranks), SLUICE, "sync", *arguments]


def sides(trainers, workers, base, trainer_options=(), worker_options=()):
    return [MPIRUN, "-n", str(trainers), SLUICE, "sync", *base, "--role", "trainer", *trainer_options, ":",
            "-n", str(workers), SLUICE, "sync", *base, "--role", "worker", *worker_options]


def launch(command):
    """mpirun ends with the ranks' exit code."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def moved(model, trainer, workers, directory, *, versions=3, sets=None, options=(), mpmd=False, verify="full", expert_maps=None,
          kept_as=lambda parameters: parameters):
    """Moves it, checks JSON and dump, and returns the JSON."""
    dump, report = os.path.join(directory, "dump"), os.path.join(directory, "report.json")
    arguments = ["--model", model, "--trainer", trainer, "--versions", str(versions), "--dump", dump, "--json", report, "--verify", verify, *options]
    for layout in workers:
        arguments += ["--worker", layout]
    for pool, layers in (expert_maps or {}).items():
        path = os.path.join(directory, f"experts-{pool}.json")
        with open(path, "w", encoding="utf-8") as stream:
            json.dump({"physical_to_logical": layers}, stream)
        arguments += ["--expert-map", f"{pool}:{path}"]
    for key, value in (sets or {}).items():
        arguments += ["--set", f"{key}={json.dumps(value)}"]
    trainers, receivers = world(trainer, ("tp", "pp", "dp", "fsdp")), sum(world(w, ("tp", "dp", "replicas")) for w in workers)
    done = launch(sides(trainers, receivers, arguments) if mpmd else started(trainers + receivers, *arguments))
    with open(report, encoding="utf-8") as stream:
        result = json.load(stream)
    if result["status"] != "ok" or [v["version"] for v in result["versions"]] != list(range(1, versions + 1)):
        sys.exit(f"the report says {result['status']} of versions {result['versions']}")
    if result["verify"]["mismatches"] != 0:
        sys.exit(f"{result['verify']['mismatches']} mismatches")
    if os.path.isdir(model):
        stored, config = oracle.safetensors_files.read_checkpoint(model)
        checkpoint = oracle.Checkpoint(config, config["architectures"][0], versions, stored)
    else:
        with open(os.path.join(MODELS, model + ".json"), encoding="utf-8") as stream:
            catalogue = json.load(stream)
        assert set(sets) <= set(catalogue["config"]), sets
        checkpoint = oracle.Checkpoint({**catalogue["config"], **sets}, catalogue["architecture"], versions)
    complaints = oracle.check_dump(dump, checkpoint, workers, expert_maps, kept_as)
    if complaints:
        sys.exit("\n".join(complaints[:20]))
    return result, done


def check(good, message):
    if not good:
        sys.exit(f"FAILED: {message}")


def checkpoint(kind, directory):
    path = os.path.join(directory, kind)
    make_checkpoint.make(kind, path)
    return path


def moe_directory(directory):
    result, _ = moved(checkpoint("qwen3_moe", directory), "tp=2,pp=2,ep=2", ["tp=4,ep=on"], directory)
    check(result["gather_bytes"]["tp"] == 0, "a resident source gathers nothing")
    check(result["registrations"][1:] == [0, 0], "no registration after set-up")
    check(result["plan_wire_bytes"][1:] == [0, 0], "no plan on the wire after set-up")
    check(result["allocations"][1:] == [0, 0], "pools do not grow")


def moe_experts_cut(directory):
    moved(checkpoint("qwen3_moe", directory), "dp=2,ep=2", ["tp=2,dp=2", "tp=1,ep=on"], directory, versions=1)


def llama_directory(directory):
    moved(checkpoint("llama", directory), "tp=2", ["tp=2", "tp=4"], directory)


def single_file(directory):
    moved(checkpoint("single_file", directory), "pp=2", ["tp=1,replicas=2"], directory, versions=2)


def tied_directory(directory):
    moved(checkpoint("qwen3_tied", directory), "pp=2,tp=2", ["tp=2"], directory)


def tied_stored_head(directory):
    _, done = moved(checkpoint("qwen3_tied_stored", directory), "tp=2", ["tp=2"], directory, versions=1)
    check("lm_head.weight" in done.stderr and "warning" in done.stderr, "a differing head of a tied model is warned of")


def biases(directory):
    moved(checkpoint("qwen2", directory), "tp=2", ["tp=4"], directory, versions=2)


def generated_moe(directory):
    moved("Qwen3-30B-A3B", "tp=2,pp=2,ep=2", ["tp=2,ep=on,replicas=2"], directory, sets=SMALL_MOE)


def gathered_moe(directory):
    result, _ = moved("Qwen3-30B-A3B", "tp=2,pp=2,ep=2", ["tp=4,ep=on"], directory, sets=SMALL_MOE, options=("--source", "gathered", "--credit", "1"))
    check(result["gather_bytes"]["tp"] > 0, "dense tensors are gathered over tp")
    check(result["gather_bytes"]["ep"] == 0 and result["gather_bytes"]["pp"] == 0, "nothing is gathered over ep or pp")
    check(result["peak"]["trainer_groups"] <= 2, "credit + 1 groups at most")


def on_one_host(directory, *arguments, **options):
    """As between a trainer and an engine of one host: everything is mapped."""
    os.environ["SLUICE_MAPPED"] = "on"
    result, _ = moved(*arguments, directory, **options)
    check(all(link["bytes"] == link["mapped_bytes"] for link in result["links"]), "all bytes are copied from mapped memory")
    check(result["copied_on_trainer_bytes"] == [0, 0, 0] and result["peak"]["worker_staging_bytes"] == 0, "neither packed nor staged")
    return result


def mapped_resident(directory):
    on_one_host(directory, checkpoint("qwen3_moe", directory), "tp=2,pp=2,ep=2", ["tp=4,ep=on"])
    on_one_host(directory, checkpoint("llama", directory), "fsdp=2", ["tp=2,replicas=2"], verify="digest")


def mapped_gathered(directory):
    result = on_one_host(directory, "Qwen3-30B-A3B", "tp=2,pp=2,ep=2", ["tp=2,replicas=2"], sets=SMALL_MOE, options=("--source", "gathered", "--path", "mapped"))
    check(result["peak"]["trainer_groups"] <= 2, "credit + 1 groups at most")


def generated_llama(directory):
    moved("Llama-3.1-8B", "fsdp=2,tp=2", ["tp=2", "tp=1"], directory, sets=SMALL, versions=2)


def uneven_experts(directory):
    moved("Qwen3-30B-A3B", "tp=1", ["tp=4,ep=on,redundant=1"], directory, sets={**SMALL_MOE, "num_hidden_layers": 2}, versions=1)


def unlike_pools_with_expert_map(directory):
    """A pool whose engine has rebalanced two layers, beside one that cuts experts."""
    maps = {0: {0: [5, 4, 3, 2, 1, 0, 0, 5], 2: [0, 0, 1, 2, 3, 3, 4, 5]}}
    moved("Qwen3-30B-A3B", "tp=2,pp=2,ep=2,format=megatron", ["tp=2,ep=on,redundant=2", "tp=1,dp=2"], directory, sets=SMALL_MOE, expert_maps=maps,
          versions=2)


def direct_small_chunks(directory):
    result, _ = moved(checkpoint("qwen3_moe", directory), "tp=2", ["tp=2"], directory, options=("--path", "direct", "--chunk-bytes", "4K"))
    check(result["copied_on_trainer_bytes"] == [0, 0, 0], "direct reads copy nothing on the trainer")


def packed_smallest_limits(directory):
    moved(checkpoint("qwen3_moe", directory), "tp=2", ["tp=4,ep=on"], directory,
          options=("--path", "packed", "--chunk-bytes", "4K", "--slots", "1", "--staging", "4K", "--inflight", "4K"))


def kernel_format_by_hooks(directory):
    """Blocks of 128 x 128 and parts of them; two stages, experts and dense layers from several owners."""
    sets = {**SMALL_MOE, "hidden_size": 160, "num_experts": 4, "moe_intermediate_size": 144}
    result, _ = moved("Qwen3-30B-A3B", "tp=2,pp=2,ep=2", ["tp=2,ep=on"], directory, sets=sets, versions=2,
                      options=("--hook", "fp8-blocks", "--source", "gathered"), kept_as=kernel_format.kernel_format)
    layer = 2 * (96 * 160 + 160 * 64 + 2 * (288 * 160 + 160 * 144))  # bytes of qkv_proj, o_proj, w13 and w2 of a worker
    check(3 * layer <= result["peak"]["worker_layer_bytes"] <= 3 * (layer + 4 * 256), f"stages + 1 layers: {result['peak']}, one has {layer}")
    check(result["registrations"][1:] == [0] and result["allocations"][1:] == [0], "nothing is taken after set-up")


def kernel_format_smallest_limits(directory):
    moved("Qwen3-30B-A3B", "tp=2,pp=2", ["tp=2,replicas=2"], directory, sets=SMALL_MOE, versions=2, kept_as=kernel_format.kernel_format,
          options=("--hook", "fp8-blocks", "--layers-in-flight", "1", "--path", "packed", "--chunk-bytes", "4K", "--slots", "1", "--staging", "4K", "--inflight", "4K"))


def two_programs(directory):
    moved(checkpoint("llama", directory), "tp=2", ["tp=2"], directory, versions=2, mpmd=True)


def ended(command, directory, code):
    """Every rank ends with `code`, and one line says why: that line."""
    codes = os.path.join(directory, "codes")
    os.makedirs(codes, exist_ok=True)
    # mpirun would end the others when one rank ends badly.
    record = ["sh", "-c", f'"$@"; echo $? > "{codes}/$OMPI_COMM_WORLD_RANK"', "record"]
    recorded = [part for word in command for part in ([*record, word] if word == SLUICE else [word])]
    done = subprocess.run(recorded, capture_output=True, text=True, timeout=50, check=False)
    ends = {}
    for rank in os.listdir(codes):
        with open(os.path.join(codes, rank), encoding="utf-8") as stream:
            ends[int(rank)] = int(stream.read())
        os.remove(os.path.join(codes, rank))
    check(ends == {rank: code for rank in range(len(ends))} and len(ends) > 1, f"all ranks end with {code}: {ends}\n{done.stderr}")
    lines = [line for line in done.stderr.splitlines() if line.startswith("sluice: ")]
    check(len(lines) == 1, f"one line says why: {done.stderr}")
    return lines[0]


def unlike_programs(directory):
    """What both programs of one mpirun must do alike is compared; a report is written wherever it was asked for."""
    base = ["--model", checkpoint("llama", directory), "--trainer", "tp=2", "--worker", "tp=2", "--timeout", "20s"]
    for name, one, other in (("--versions", "3", "2"), ("--versions", "2", "3"), ("--verify", "full", "digest"), ("--verify", "off", "digest")):
        line = ended(sides(2, 2, base, (name, one), (name, other)), directory, 2)
        check(f"{name}: rank 0 has {one} and rank 2 has {other}" in line, f"both are named: {line}")
    report, trace, other = (os.path.join(directory, name) for name in ("report.json", "trace.json", "other.json"))
    done = subprocess.run(sides(2, 2, base, (), ("--json", report, "--trace", trace)), capture_output=True, text=True, timeout=50, check=False)
    check(done.returncode == 0, f"workers alone may ask for results: {done.stderr}")
    for path in (report, trace):
        with open(path, encoding="utf-8") as stream:
            check(json.load(stream), f"{path} is written")
    line = ended(sides(2, 2, base, ("--json", report), ("--json", other)), directory, 2)
    check(report in line and other in line and not os.path.exists(other), f"both are named: {line}")


def refused(directory):
    path = checkpoint("llama", directory)
    base = ["--model", path, "--trainer", "tp=2"]
    ended(started(3, *base, "--worker", "tp=2"), directory, 2)                         # world size
    ended(started(5, *base, "--worker", "tp=3"), directory, 3)                         # indivisible
    line = ended(started(4, *base, "--worker", "tp=2", "--path", "mapped"), directory, 3)
    check("SLUICE_MAPPED" in line, f"what cannot be mapped is refused with the remedy: {line}")
    ended(started(4, "--model", path + "x", "--trainer", "tp=2", "--worker", "tp=2"), directory, 2)
    for wrong in (["--modell", path], ["--versions"], ["--versions", "0"], ["--staged"], ["--device", "1"], ["--weights", "published"]):
        line = ended(started(4, *base, "--worker", "tp=2", *wrong), directory, 2)
        check(wrong[0].removesuffix("l") in line, f"{wrong} is named: {line}")
    line = ended(sides(2, 2, [*base, "--worker", "tp=2"], (), ("--slots", "x")), directory, 2)
    check("rank 2" in line and "--slots x" in line, f"who was given it is named: {line}")
    line = ended([*started(4, *base, "--worker", "tp=2")[:3], "-x", "SLUICE_SLOTS=x", *started(4, *base, "--worker", "tp=2")[3:]], directory, 2)
    check("SLUICE_SLOTS" in line, f"the variable is named: {line}")
    for option in ("--json", "--trace"):
        line = ended(started(4, *base, "--worker", "tp=2", option, os.path.join(directory, "none", "x.json")), directory, 2)
        check(f"{option}: cannot write" in line, f"it is noticed before anything is moved: {line}")
    with open(os.path.join(path, "config.json"), encoding="utf-8") as stream:
        config = json.load(stream)
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as stream:
        json.dump({**config, "intermediate_size": 128}, stream)
    line = ended(started(4, *base, "--worker", "tp=2"), directory, 2)
    check("[96, 64]" in line and "[128, 64]" in line or "[64, 96]" in line and "[64, 128]" in line, f"both shapes are named: {line}")


def dump_refused(directory):
    """One worker cannot write its file: all ranks end alike, and one line says why."""
    dump, report = (os.path.join(directory, name) for name in ("dump", "report.json"))
    os.makedirs(os.path.join(dump, "worker-1.safetensors"))
    base = ["--model", checkpoint("llama", directory), "--trainer", "tp=2", "--worker", "tp=2", "--versions", "1", "--json", report]
    # Workers alone dump: of two programs, only theirs may have been given it.
    for run in (started(4, *base, "--dump", dump), sides(2, 2, base, (), ("--dump", dump))):
        line = ended(run, directory, 2)
        check("worker-1.safetensors: cannot write" in line, f"it says what could not be written: {line}")
        with open(report, encoding="utf-8") as stream:
            result = json.load(stream)
        check(result["status"] == "failed" and result["error"]["rank"] == "worker 1", f"the report names worker 1: {result['error']}")


SCENARIOS = {f.__name__: f for f in (moe_directory, moe_experts_cut, llama_directory, single_file, tied_directory, tied_stored_head, biases,
                                     generated_moe, gathered_moe, mapped_resident, mapped_gathered, generated_llama, uneven_experts, unlike_pools_with_expert_map, direct_small_chunks,
                                     packed_smallest_limits, kernel_format_by_hooks, kernel_format_smallest_limits, two_programs, unlike_programs, refused, dump_refused)}

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        SCENARIOS[sys.argv[4]](scratch)
