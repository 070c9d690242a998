#!/usr/bin/env python3
"""What a group and a chunk cost the transport threads, beside carrying the bytes.

On the cluster of cluster.py. perf looks at every other rank, which slows it down; the clock of the ranks between counts. Samples of the transport threads in the network stack (the emulated links are served on
whatever thread runs) and in copying or hashing are set aside; the rest is protocol, and waking up for what arrives. The same bytes are moved
in many groups and in few, in large chunks and in small ones: what the rest grows by is what a group and a chunk cost."""
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

from cluster import CASES, TRAINERS, WORKERS, must, parser_of, programs, read_json, shrunk_model, sluice_arguments, write_json
from cluster_network import Network

WANTED = {"us_per_group": 300, "us_per_chunk": 30}
# As many bytes in 258 groups and in 66.
MODELS = {"many": shrunk_model(256, 96), "few": shrunk_model(64, 472)}
# Slots are counted in chunks: as much memory for packed chunks with both.
CHUNKS = {"large": ("4M", 8), "small": ("32K", 1024)}
# Anywhere in a stack: the kernel carries bytes. On top of one: bytes are copied, hashed, or memory is given out for them.
CARRYING = ("tcp_", "softirq", "__sys_sendmsg", "__sys_sendto", "__sys_recvfrom", "__sys_recvmsg")
COPYING = ("sluice::kernels::", "XXH3", "memmove", "memcpy", "_copy_from_iter", "_copy_to_iter", "clear_page")


def protocol_share(samples):
    """Of the samples of a transport thread those that neither carry nor copy bytes."""
    script = subprocess.run(["perf", "script", "-i", samples, "--comm", "sluice-net", "-F", "ip,sym"], capture_output=True, text=True, check=False)
    must(script, "perf script")
    # perf puts a line without a name before each stack; a sample without a stack is an empty one.
    stacks = [stack for stack in ([line for line in text.splitlines() if line.strip()] for text in script.stdout.split("\n\n")) if stack]
    protocol = sum(1 for stack in stacks
                   if not any(name in line for line in stack for name in CARRYING) and not any(name in stack[0] for name in COPYING))
    return protocol / len(stacks)


def measure(network, sluice, case, model, chunks, versions, directory):
    """Means over the ranks of each side."""
    path = os.path.join(directory, "sync.json")
    samples = os.path.join(directory, "samples")
    sync = [sluice, "sync", *sluice_arguments(case, model=model), "--versions", str(versions), "--chunk-bytes", chunks[0], "--slots", str(chunks[1]), "--json", path]
    # Neighbours do the same work in every case.
    programs_of = [(node, sync if node % 2 else ["perf", "record", "-q", "-F", "997", "-g", "-o", f"{samples}.{node}", *sync], {})
                   for node in range(TRAINERS + WORKERS)]
    must(network.launch(programs_of, 300), f"case {case}")
    report = read_json(path)
    out = {}
    for side in ("trainer", "worker"):
        ranks = [(node, rank) for node, rank in enumerate(report["ranks"]) if rank["side"] == side]
        cpu = statistics.mean(statistics.median(rank["transport_cpu_s"][1:]) for node, rank in ranks if node % 2)
        share = statistics.mean(protocol_share(f"{samples}.{node}") for node, _ in ranks if not node % 2)
        out[side] = {"bytes": report["versions"][-1]["bytes"], "cpu_s": cpu, "own_s": cpu * share,
                     "groups": statistics.mean(rank["groups"] for _, rank in ranks), "chunks": statistics.mean(rank["chunks"] for _, rank in ranks)}
    return out


def costs(runs, side):
    """Differences between the four runs, and the two takes of each; what the fewer groups carry is scaled to as many bytes."""
    def per_chunk(groups):
        large, small = (runs[groups, chunks][side] for chunks in CHUNKS)
        return (small["own_s"] - large["own_s"]) / (small["chunks"] - large["chunks"])

    chunk_takes = [per_chunk(groups) for groups in MODELS]
    of_chunk = statistics.mean(chunk_takes)

    def per_group(chunks):
        many, few = (runs[groups, chunks][side] for groups in MODELS)
        scale = many["bytes"] / few["bytes"]
        without_chunks = [run["own_s"] - of_chunk * run["chunks"] for run in (many, few)]
        return (without_chunks[0] - scale * without_chunks[1]) / (many["groups"] - scale * few["groups"])

    takes = {"us_per_group": [per_group(chunks) * 1e6 for chunks in CHUNKS], "us_per_chunk": [take * 1e6 for take in chunk_takes]}
    return {figure: statistics.mean(both) for figure, both in takes.items()} | {f"{figure}_takes": both for figure, both in takes.items()}


def noise_of(takes):
    """The takes of a cost differ by noise alone, and one below zero is off by at least as much."""
    return max(abs(takes[0] - takes[1]) / 2, -statistics.mean(takes))


def shown(takes):
    cost, noise = statistics.mean(takes), noise_of(takes)
    return f"{cost:.1f}" if cost > noise else f"below noise ({noise:.1f})"


def why_missed(takes, limit):
    """None when it is shown that a cost is within its limit: noise that could hide as much shows nothing."""
    if statistics.mean(takes) > limit:
        return f"{statistics.mean(takes):.1f} where at most {limit} is wanted"
    if max(abs(take) for take in takes) > limit:
        return f"lost in noise of {noise_of(takes):.1f} where at most {limit} is wanted"
    return None


def main():
    parser = parser_of(__doc__, CASES)
    parser.add_argument("--versions", type=int, default=6, help="versions per run; the first is not counted (6)")
    options = parser.parse_args()
    if not shutil.which("perf"):
        sys.exit("cpu: perf is missing; install linux-perf (or linux-tools of the running kernel)")
    sluice, = programs(options.build, "cpu")
    results = {"schema": 1, "bench": "cpu", "mbit": options.mbit, "wanted": WANTED, "cases": []}
    missed = []
    print(f"{'case':6}{'side':9}{'groups':>8}{'chunks':>8}{'CPU ms':>8}{'own ms':>8}{'us/group':>22}{'us/chunk':>22}")
    with tempfile.TemporaryDirectory() as directory, Network(TRAINERS + WORKERS, options.mbit) as network:
        for case in options.case or sorted(CASES):
            runs = {(groups, chunks): measure(network, sluice, case, MODELS[groups], CHUNKS[chunks], options.versions, directory)
                    for groups in MODELS for chunks in CHUNKS}
            for side in ("trainer", "worker"):
                cost = costs(runs, side)
                for (groups, chunks), run in ((key, run[side]) for key, run in runs.items()):
                    last = (groups, chunks) == (list(MODELS)[-1], list(CHUNKS)[-1])
                    figures = "".join(f"{shown(cost[f'{figure}_takes']):>22}" for figure in WANTED) if last else ""
                    print(f"{case:6}{side:9}{run['groups']:8.0f}{run['chunks']:8.0f}{run['cpu_s'] * 1e3:8.0f}{run['own_s'] * 1e3:8.0f}{figures}", flush=True)
                results["cases"].append({"case": case, "side": side, **cost, "runs": [{"groups_are": groups, "chunks_are": chunks, **run[side]}
                                                                                      for (groups, chunks), run in runs.items()]})
                missed += [f"{case} {side} {figure}: {why}" for figure, limit in WANTED.items() if (why := why_missed(cost[f"{figure}_takes"], limit))]
    write_json(options.json, results)
    if options.check and missed:
        sys.exit(f"cpu: not shown to be within what is wanted: {'; '.join(missed)}")


if __name__ == "__main__":
    main()
