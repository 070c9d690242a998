#!/usr/bin/env python3
"""`sluice sync` across a cluster of network namespaces with shaped links: seconds of a sync over the wire bound.

The raw rate of a get between two nodes is measured first; the bound is what `sluice plan --cluster` computes from that rate.
It is slow motion: links are slow and groups small, so that a group lasts about as long as on a real fabric, while the CPU
does its real work beside it."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from cluster_network import Network


def shrunk_model(layers, expert_width):
    """Arguments of sluice for a small model of that many layers."""
    return ["--model", "Qwen3-30B-A3B"] + [part for key, value in {
        "num_hidden_layers": layers, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": expert_width, "vocab_size": 1024}.items() for part in ("--set", f"{key}={value}")]


# 0.79 MB a layer: at most 0.5 MB of a group per worker in every case, about 20 ms at 200 Mbit/s.
MODEL = shrunk_model(256, 96)

# name: (trainer layout, worker layouts, source, share of the bound that is asked for)
CASES = {
    "a": ("tp=4", ["tp=4"], "resident", 0.90),
    "b": ("pp=4", ["tp=2,replicas=2"], "resident", 0.88),
    "c": ("dp=2,tp=2,ep=4", ["dp=4,ep=on"], "resident", 0.88),
    "d": ("fsdp=4", ["tp=4"], "resident", 0.88),
    "e": ("tp=2,pp=2", ["tp=4"], "gathered", 0.80),
    "f": ("tp=2,pp=2", ["tp=2", "dp=2,ep=on"], "resident", 0.88),
}
TRAINERS = WORKERS = 4


def read_json(path):
    with open(path, encoding="utf-8") as stream:
        return json.load(stream)


def sluice_arguments(case, trainer=None, source=None, model=None):
    """Model and layouts; those of the case where nothing else is given."""
    layout = ["--trainer", trainer or CASES[case][0], "--source", source or CASES[case][2]]
    workers = CASES[case][1]
    for worker in workers:
        layout += ["--worker", worker]
    return (model or MODEL) + layout


def must(done, what):
    if done.returncode != 0:
        sys.exit(f"cluster: {what} ended with {done.returncode}\n{done.stdout}{done.stderr}")


def raw_get(network, pull, directory):
    """What a get between two nodes is: bytes per second."""
    path = os.path.join(directory, "raw.json")
    program = [pull, "--raw-only", "--bytes", "48M", "--repetitions", "3", "--json", path]
    must(network.launch([(0, program, {}), (TRAINERS, program, {})], 120), "the raw get")
    return read_json(path)["raw_get"]


def bound(sluice, case, rate, directory):
    path = os.path.join(directory, "plan.json")
    must(subprocess.run([sluice, "plan", *sluice_arguments(case), "--cluster", f"gpus_per_node=1,nic_gbps={rate * 8 / 1e9:.6f}", "--json", path],
                        capture_output=True, text=True, check=False), "sluice plan")
    return read_json(path)["bound"]


def measure(network, sluice, case, raw, versions, directory, options=(), timeout=300):
    """Moves `versions` versions; the first warms up."""
    path = os.path.join(directory, "sync.json")
    program = [sluice, "sync", *sluice_arguments(case), "--versions", str(versions), "--verify", "digest", "--json", path, *options]
    must(network.launch([(node, program, {}) for node in range(TRAINERS + WORKERS)], timeout), f"case {case}")
    report = read_json(path)
    limits = bound(sluice, case, raw["bytes_per_second"]["median"], directory)
    seconds = [version["seconds"] for version in report["versions"][1:]]
    links = report["links"]
    return {"case": case, "trainer": CASES[case][0], "workers": CASES[case][1], "source": CASES[case][2], "wanted_share": CASES[case][3],
            "bytes": report["versions"][-1]["bytes"], "wire_s": limits["wire_s"], "worst_link": limits["worst_link"],
            "seconds": seconds, "median_s": statistics.median(seconds), "share": limits["wire_s"] / statistics.median(seconds),
            "share_of_each": [limits["wire_s"] / s for s in seconds], "phases": report["versions"][-1]["phases"],
            "transport": sorted({link["transport"] for link in links}), "one_sided": all(link["one_sided"] for link in links), "report": report}


def parser_of(description, cases):
    """What every benchmark on the cluster can be told."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", help="the build folder, build/release")
    parser.add_argument("--case", action="append", choices=sorted(cases), help="which layouts; repeatable; default: all")
    parser.add_argument("--mbit", type=float, default=200, help="rate of every link and direction in Mbit/s (200)")
    parser.add_argument("--json", metavar="FILE", help="write the results to FILE")
    parser.add_argument("--check", action="store_true", help="end with 1 when a wanted figure is missed")
    return parser


def programs(build, bench, *names):
    """Paths of sluice and of others by their names in the build folder; ends the benchmark when one is not built."""
    paths = [os.path.join(os.path.abspath(build), name) for name in ("cli/sluice", *names)]
    for program in paths:
        if not os.access(program, os.X_OK):
            sys.exit(f"{bench}: {program} is missing; build it with `make everything`")
    return paths


def write_json(path, results):
    if path:
        with open(path, "w", encoding="utf-8") as stream:
            json.dump(results, stream, indent=1)


def main():
    parser = parser_of(__doc__, CASES)
    parser.add_argument("--versions", type=int, default=6, help="versions per case; the first is not counted (6)")
    options = parser.parse_args()
    sluice, pull = programs(options.build, "cluster", "bench/bench_pull")
    results = {"schema": 1, "bench": "cluster", "mbit": options.mbit, "nodes": TRAINERS + WORKERS, "cases": []}
    with tempfile.TemporaryDirectory() as directory, Network(TRAINERS + WORKERS, options.mbit) as network:
        raw = results["raw_get"] = raw_get(network, pull, directory)
        rate = raw["bytes_per_second"]["median"]
        print(f"raw get between two nodes: {rate / 1e6:.2f} MB/s, {rate * 8 / 1e6 / options.mbit:.3f} of {options.mbit:g} Mbit/s")
        print(f"{'case':5}{'trainer':16}{'workers':22}{'source':10}{'MB':>8}{'bound s':>9}{'median s':>10}{'share':>8}{'spread':>15}{'wanted':>8}")
        for case in options.case or sorted(CASES):
            row = measure(network, sluice, case, raw, options.versions, directory)
            results["cases"].append(row)
            spread = f"{min(row['share_of_each']):.3f}-{max(row['share_of_each']):.3f}"
            print(f"{case:5}{row['trainer']:16}{' + '.join(row['workers']):22}{row['source']:10}{row['bytes'] / 1e6:8.1f}{row['wire_s']:9.3f}"
                  f"{row['median_s']:10.3f}{row['share']:8.3f}{spread:>15}{row['wanted_share']:8.2f}", flush=True)
    write_json(options.json, results)
    missed = [row["case"] for row in results["cases"] if row["share"] < row["wanted_share"]]
    if options.check and missed:
        sys.exit(f"cluster: below the wanted share: {', '.join(missed)}")


if __name__ == "__main__":
    main()
