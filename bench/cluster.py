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

# 256 layers, 0.79 MB each: at most 0.5 MB of a group per worker in every case, about 20 ms at 200 Mbit/s.
MODEL = ["--model", "Qwen3-30B-A3B"] + [part for key, value in {
    "num_hidden_layers": 256, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96, "vocab_size": 1024}.items() for part in ("--set", f"{key}={value}")]

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


def sluice_arguments(case, trainer=None, source=None):
    """Model and layouts; those of the case where nothing else is given."""
    layout = ["--trainer", trainer or CASES[case][0], "--source", source or CASES[case][2]]
    workers = CASES[case][1]
    for worker in workers:
        layout += ["--worker", worker]
    return MODEL + layout


def must(done, what):
    if done.returncode != 0:
        sys.exit(f"cluster: {what} ended with {done.returncode}\n{done.stdout}{done.stderr}")


def raw_get(network, pull, directory):
    """What a get between two nodes is: bytes per second, and what a byte costs the transport threads of both sides."""
    path = os.path.join(directory, "raw.json")
    program = [pull, "--raw-only", "--bytes", "48M", "--repetitions", "3", "--json", path]
    must(network.launch([(0, program, {}), (TRAINERS, program, {})], 120), "the raw get")
    return read_json(path)["raw_get"]


def cpu_beside_copying(report, per_byte):
    """Of the ranks of each side the one that pays most: microseconds of its transport thread per group and per chunk, over
    and above what a raw get of the same bytes costs it. Each is charged with all of it, so both are upper bounds; `allowance` is
    the share of what 300 us per group and 30 us per chunk add up to."""
    costs = {}
    # What a trainer gathers it reads from its peers, which serve as much.
    gathered = sum(report["gather_bytes"].values()) / TRAINERS * (per_byte["owner"] + per_byte["reader"])
    for rank in report["ranks"]:
        side = rank["side"]
        moved = sum(link["bytes"] for link in report["links"] if link[side] == rank["rank"])
        carried = moved * per_byte["owner"] + gathered if side == "trainer" else moved * per_byte["reader"]
        own = max(0.0, statistics.median(rank["transport_cpu_s"][1:]) - carried)
        cost = {"cpu_s": own + carried, "carrying_s": carried, "groups": rank["groups"], "chunks": rank["chunks"],
                "us_per_group": own / rank["groups"] * 1e6, "us_per_chunk": own / rank["chunks"] * 1e6,
                "allowance": own * 1e6 / (300 * rank["groups"] + 30 * rank["chunks"])}
        if side not in costs or cost["us_per_group"] > costs[side]["us_per_group"]:
            costs[side] = cost
    return costs


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
            "cpu": cpu_beside_copying(report, raw["cpu_s_per_byte"]),
            "transport": sorted({link["transport"] for link in links}), "one_sided": all(link["one_sided"] for link in links), "report": report}


def parser_of(description, helper, cases):
    """What every benchmark on the cluster can be told; `helper` is the program that it needs beside sluice."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", help=f"build folder, with cli/sluice and {helper}")
    parser.add_argument("--case", action="append", choices=sorted(cases), help="which layouts; repeatable; default: all")
    parser.add_argument("--mbit", type=float, default=200, help="rate of every link and direction in Mbit/s (200)")
    parser.add_argument("--json", metavar="FILE", help="write the results to FILE")
    parser.add_argument("--check", action="store_true", help="end with 1 when a wanted figure is missed")
    return parser


def programs(build, bench, helper):
    """Paths of sluice and of `helper`; ends the benchmark when one is not built."""
    paths = [os.path.join(os.path.abspath(build), name) for name in ("cli/sluice", helper)]
    for program in paths:
        if not os.access(program, os.X_OK):
            sys.exit(f"{bench}: {program} is missing; build it with `make build`")
    return paths


def write_json(path, results):
    if path:
        with open(path, "w", encoding="utf-8") as stream:
            json.dump(results, stream, indent=1)


def main():
    parser = parser_of(__doc__, "bench/bench_pull", CASES)
    parser.add_argument("--versions", type=int, default=6, help="versions per case; the first is not counted (6)")
    options = parser.parse_args()
    sluice, pull = programs(options.build, "cluster", "bench/bench_pull")
    results = {"schema": 1, "bench": "cluster", "mbit": options.mbit, "nodes": TRAINERS + WORKERS, "cases": []}
    with tempfile.TemporaryDirectory() as directory, Network(TRAINERS + WORKERS, options.mbit) as network:
        raw = results["raw_get"] = raw_get(network, pull, directory)
        rate = raw["bytes_per_second"]["median"]
        print(f"raw get between two nodes: {rate / 1e6:.2f} MB/s, {rate * 8 / 1e6 / options.mbit:.3f} of {options.mbit:g} Mbit/s")
        print(f"{'case':5}{'trainer':16}{'workers':22}{'source':10}{'MB':>8}{'bound s':>9}{'median s':>10}{'share':>8}{'spread':>15}{'wanted':>8}"
              f"{'us/group':>12}{'us/chunk':>11}{'allowance':>11}")
        for case in options.case or sorted(CASES):
            row = measure(network, sluice, case, raw, options.versions, directory)
            results["cases"].append(row)
            cpu = ["/".join(f"{row['cpu'][side][key]:.0f}" for side in ("trainer", "worker")) for key in ("us_per_group", "us_per_chunk")]
            allowance = "/".join(f"{row['cpu'][side]['allowance']:.2f}" for side in ("trainer", "worker"))
            spread = f"{min(row['share_of_each']):.3f}-{max(row['share_of_each']):.3f}"
            print(f"{case:5}{row['trainer']:16}{' + '.join(row['workers']):22}{row['source']:10}{row['bytes'] / 1e6:8.1f}{row['wire_s']:9.3f}"
                  f"{row['median_s']:10.3f}{row['share']:8.3f}{spread:>15}{row['wanted_share']:8.2f}{cpu[0]:>12}{cpu[1]:>11}{allowance:>11}", flush=True)
    write_json(options.json, results)
    missed = [row["case"] for row in results["cases"] if row["share"] < row["wanted_share"]]
    if options.check and missed:
        sys.exit(f"cluster: below the wanted share: {', '.join(missed)}")


if __name__ == "__main__":
    main()
