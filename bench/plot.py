#!/usr/bin/env python3
"""Draws the JSON of any of the benchmarks: one bar per row, and beside it what it is measured against."""
import argparse
import json
import os
import sys


def of_pull(data):
    if "series" not in data:
        rate = data["raw_get"]["bytes_per_second"]
        return "Raw get", "bytes per second", [("raw get", rate["median"], None)]
    rows = [(row["name"], row["share_of_raw_get"]["median"], 1.0) for row in data["series"]]
    return f"A real plan over a raw get of the same bytes ({data['transport']})", "share of the raw get", rows


def of_cluster(data):
    rows = [(f"{row['case']}: {row['trainer']} -> {' + '.join(row['workers'])}", row["share"], row["wanted_share"]) for row in data["cases"]]
    return f"Whole sync over the wire bound, {data['nodes']} nodes, {data['mbit']:g} Mbit/s", "share of the bound (mark: wanted)", rows


def of_ladder(data):
    rows = [(f"{case['case']}: {step['step']}", step["median_s"], step["bound_s"]) for case in data["cases"] for step in case["steps"]]
    return f"Ways to hand weights over, {data['nodes']} nodes, {data['mbit']:g} Mbit/s", "seconds (mark: the step's own bound)", rows


def of_small(data):
    rows = [(f"{row['link']}, {row['pieces']}, {way}", row[way]["seconds"]["median"], row["raw_get_s"]["median"])
            for row in data["rows"] for way in ("auto", "direct", "packed")]
    return f"{data['bytes'] >> 20} MiB in pieces", "seconds (mark: one raw get)", rows


def of_cpu(data):
    rows = [(f"{case['case']}, {case['side']}: {name}", case[figure], data["wanted"][figure])
            for case in data["cases"] for figure, name in (("us_per_group", "a group"), ("us_per_chunk", "a chunk"))]
    return "What the transport thread pays", "microseconds (mark: wanted at most)", rows


def of_disturbed(data):
    rows = [(f"{name}, {how}", case[f"{how}_s"], None) for name, case in data["cases"].items() for how in ("quiet", "disturbed")]
    return f"One node at a tenth of {data['mbit']:g} Mbit/s", "seconds", rows


def of_sweep(data):
    rows = data["configurations"]
    best = min(row["median_s"] for row in rows)
    return f"Slots x chunk limit, {data['path']}", "seconds (mark: the best)", [(f"{row['slots']} x {row['chunk_bytes']}", row["median_s"], best) for row in rows]


def of_gpu_kernels(data):
    rows = [(row["name"], row["share"]["median"], 1.0) for row in data["rows"]]
    return f"{data['bench']}, {data['device']}", "share of a device-to-device copy", rows


def of_gpu_pull(data):
    rows = [(row["name"], row["share_of_raw_get"]["median"], 1.0) for row in data["rows"]]
    return "Pulls between two processes on one GPU", "share of the raw get", rows


def of_gpu_pairs(data):
    rows = [(row["name"], row["seconds"]["median"], row["copy_seconds"]["median"]) for row in data["rows"]]
    return "Two trainers and two workers on one GPU", "seconds (mark: copies of as many bytes)", rows


def of_gpu_rates(data):
    rows = [(row["name"], row["ingress_bytes_per_second"]["median"] / 1e9, None) for row in data["rows"]]
    return f"{data['bench']}: what comes into a GPU from others", "GB/s", rows


def of_gpu_broadcast(data):
    return "Weights by NCCL", "seconds", [(row["name"], row["seconds"]["median"], None) for row in data["rows"]]


def of_multi_gpu(data):
    rows = [row for row in [data["slices"], *data["syncs"], *data["gathered"]] if row]
    bars = [(f"{row['case']}, {row['path']}{' (GPUs shared)' if row['shared'] else ''}", row["share"], row["wanted_share"]) for row in rows]
    bars += [(f"{row['case']}, NCCL broadcast", row["share"], None) for row in data["broadcasts"]]
    return f"{data['model']} between {len(data['gpus'])} GPUs", "share of what the links carry (mark: wanted)", bars


def of_mpi(data):
    return f"{data['bench']}, {data['bytes'] / 1e6:.0f} MB", "seconds", [(f"repetition {i + 1}", s, data["median_s"]) for i, s in enumerate(data["seconds"])]


def of_google(data):
    """bench_copy and bench_plan, run with --benchmark_out=FILE --benchmark_out_format=json."""
    rows = [row for row in data["benchmarks"] if row.get("run_type") != "aggregate" or row.get("aggregate_name") == "median"]
    if all("bytes_per_second" in row for row in rows):
        return "Throughput", "GB/s", [(row["name"], row["bytes_per_second"] / 1e9, None) for row in rows]
    return "Time", rows[0]["time_unit"], [(row["name"], row["real_time"], None) for row in rows]


KINDS = {"pull": of_pull, "cluster": of_cluster, "cpu": of_cpu, "ladder": of_ladder, "disturbed": of_disturbed, "sweep": of_sweep, "small": of_small,
         "broadcast": of_mpi, "regroup": of_mpi, "gpu copy": of_gpu_kernels, "gpu quantise": of_gpu_kernels, "gpu checksum": of_gpu_kernels,
         "gpu pull": of_gpu_pull, "gpu pairs": of_gpu_pairs, "gpu links": of_gpu_rates, "gpu collectives": of_gpu_rates,
         "gpu broadcast": of_gpu_broadcast, "multi gpu": of_multi_gpu}


def table_of(path):
    """(title, unit, [(label, value, mark or None)])"""
    try:
        with open(path, encoding="utf-8") as stream:
            data = json.load(stream)
    except (OSError, ValueError) as error:
        sys.exit(f"plot: {path}: {error}")
    kind = of_google if isinstance(data, dict) and "benchmarks" in data else KINDS.get(data.get("bench") if isinstance(data, dict) else None)
    if kind is None:
        sys.exit(f"plot: {path}: it is not the JSON of a benchmark; use what --json FILE wrote")
    title, unit, rows = kind(data)
    if not rows:
        sys.exit(f"plot: {path}: it has no rows; nothing was measured")
    return title, unit, rows


def draw(title, unit, rows, target):
    try:
        import matplotlib
    except ImportError:
        sys.exit("plot: matplotlib is missing; install python3-matplotlib, or run `pip install matplotlib`")
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.35 * len(rows)), layout="constrained")
    places = range(len(rows))
    axes.barh(places, [value for _, value, _ in rows], color="#4878a8")
    for place, (_, value, mark) in enumerate(rows):
        axes.text(value, place, f" {value:.3g}", va="center")
        if mark is not None:
            axes.plot([mark, mark], [place - 0.4, place + 0.4], color="#b04030")
    axes.set_yticks(places, [label for label, _, _ in rows])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel(unit)
    axes.set_title(title)
    figure.savefig(target)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("json", help="what a benchmark's --json (or --benchmark_out) wrote")
    parser.add_argument("-o", "--output", metavar="FILE", help="a .svg or .png (default: beside the JSON, .svg)")
    options = parser.parse_args()
    target = options.output or os.path.splitext(options.json)[0] + ".svg"
    if os.path.splitext(target)[1] not in (".svg", ".png"):
        sys.exit(f"plot: --output {target}: name it .svg or .png")
    draw(*table_of(options.json), target)
    print(target)


if __name__ == "__main__":
    main()
