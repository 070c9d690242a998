"""What bench/multi_gpu.py runs on how many GPUs, and what it makes of what was measured. Nothing here runs anything."""
import re
import statistics

MODEL = "Qwen3-30B-A3B"
PATHS = ("mapped", "direct", "packed")
# The whole sync over the bound that the links' rates give.
WANTED_SHARE = {"mapped": 0.88, "direct": 0.80, "packed": 0.80}
WANTED_SLICES = 0.85     # tensor-parallel slices, mapped, over one link
WANTED_GATHERED = 1.2    # at most: a sync that gathers, over the trainers' egress
WANTED_PREDICTION = 0.1  # at most: how far the cost model is off

# Trainers first: (trainer layout, worker layout, ranks of each side).
SYNCS = {
    "1 -> 1": ("tp=1", "tp=1", 1),
    "2 -> 2": ("tp=2,ep=2", "dp=2,ep=on", 2),
    "4 -> 4": ("tp=2,dp=2,ep=4", "dp=4,ep=on", 4),
}
GATHERED = {
    "fsdp=2": ("fsdp=2", "dp=2,ep=on", 2),
    "fsdp=4": ("fsdp=4", "dp=4,ep=on", 4),
}
# Ways of bench_gpu links by which each path reads: packed chunks pass through slots.
READ_BY = {"mapped": ("one kernel", "kernels of 256 MiB"), "direct": ("gets of 256 MiB",), "packed": ("gets of 256 MiB in 4 GiB",)}
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "NCCL_MNNVL_ENABLE": "0", "NVSHMEM_DISABLE_NVLS": "1", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}


def gpus_of(info):
    """[(name, bytes of memory)] of the GPUs in what `sluice info` prints, or why there are none."""
    lines = [line for line in info.splitlines() if line.startswith("CUDA ")]
    found = re.findall(r"; \d+: ([^,;]+), \d+\.\d+, ([\d.]+) GiB", lines[0]) if lines else []
    return [(name, float(size) * 2 ** 30) for name, size in found] or (lines[0][len("CUDA "):].strip() if lines else "sluice info says nothing of CUDA")


def multicast_in(environment):
    """The variable of the user's that turns NVLink multicast on, if there is one."""
    for name, off in NO_MULTICAST.items():
        if environment.get(name, off) != off:
            return f"{name}={environment[name]}"
    algorithms = environment.get("NCCL_ALGO", "")
    return f"NCCL_ALGO={algorithms}" if "nvls" in algorithms.lower() and "^" not in algorithms else None


def memory_needed(plan, extra_bytes_of_a_rank):
    """Of a GPU that all ranks share."""
    ranks = plan["trainer_ranks"] + plan["worker_ranks"]
    return sum(rank.get("owned_bytes", rank.get("bytes")) for rank in ranks) + len(ranks) * extra_bytes_of_a_rank


def runs_for(gpus, cases):
    """(those that can be run, {those that cannot: GPUs that they need}): a GPU for each rank, or, where there is only one, all on that one."""
    able = {name: case for name, case in cases.items() if 2 * case[2] <= gpus or gpus == 1}
    return able, {name: 2 * case[2] for name, case in cases.items() if name not in able}


def rate_of(rows, pattern, ways=None):
    """Bytes per second over the busier side of the links of a pattern, of its fastest way."""
    rates = [row["ingress_bytes_per_second"]["median"] * max(1.0, row["egress_over_ingress"])
             for row in rows if row["pattern"] == pattern and (ways is None or row["way"] in ways)]
    return max(rates)


def pattern_of(case, gpus):
    """How bench_gpu links calls what the workers of a case read at once; of one worker, and where all share a GPU, it is the pair."""
    return "0 -> 1" if case[2] == 1 or gpus == 1 else f"{case[2]}:{case[2]}"


def share_of(bound_s, seconds):
    return {"bound_s": bound_s, "seconds": seconds, "median_s": statistics.median(seconds), "share": bound_s / statistics.median(seconds),
            "share_of_each": [bound_s / s for s in seconds]}


def prediction(predicted_s, seconds):
    """How far off it is, relative to what was measured; above 0: too slow."""
    return {"predicted_s": predicted_s, "prediction_off": predicted_s / statistics.median(seconds) - 1}


def missed(results):
    """What was measured on GPUs of its own and is not as wanted, one line each."""
    out = []
    for row in results["syncs"] + results["gathered"]:
        name = f"{row['case']} {row['path']}"
        if row["shared"]:
            continue
        if row["share"] < row["wanted_share"]:
            out.append(f"{name}: share {row['share']:.3f}, wanted {row['wanted_share']:.3f}")
        if abs(row["prediction_off"]) > WANTED_PREDICTION:
            out.append(f"{name}: predicted {row['predicted_s'] * 1e3:.1f} ms, measured {row['median_s'] * 1e3:.1f} ms")
    slices = results["slices"]
    if slices is not None and not slices["shared"] and slices["share"] < WANTED_SLICES:
        out.append(f"slices mapped: share {slices['share']:.3f}, wanted {WANTED_SLICES:.3f}")
    return out
