#!/usr/bin/env python3
"""Ring depths and chunk limits: what each costs, and that none breaks a limit or a byte. See docs/benchmarks.md.

Every configuration is one `sluice sync` of the same model; configurations take turns, round by round, so that all of them
meet the same machine."""
import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile

from cluster import must, programs, read_json, write_json

MODEL = {"num_hidden_layers": 4, "num_experts": 16, "hidden_size": 2048, "vocab_size": 16384}
LAYOUT = ["--trainer", "tp=2", "--worker", "tp=2"]
SLOTS = [1, 2, 4]
CHUNKS = ["64K", "256K", "1M", "4M", "16M", "64M"]
STAGING = 64 << 20  # The default, stated so that the peak can be compared with it.
ASKED = 1.10


def launch(sluice, ranks, arguments, path):
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
    command = ["mpirun", "--bind-to", "none", "-n", str(ranks), sluice, *arguments, "--json", path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    must(done, " ".join(command))
    return read_json(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", help="the build folder, build/release")
    parser.add_argument("--path", default="packed", help="direct, packed, mapped or auto (packed: the one that uses rings on both sides)")
    parser.add_argument("--rounds", type=int, default=3, help="of all configurations, after one that checks every byte (3)")
    parser.add_argument("--versions", type=int, default=9, help="of each run; the first warms up (9)")
    parser.add_argument("--check", action="store_true", help=f"fail when the defaults take more than {ASKED} times the best of the sweep")
    parser.add_argument("--json", metavar="FILE", help="write the results as JSON")
    options = parser.parse_args()
    sluice, = programs(options.build, "sweep")

    model = ["--model", "Qwen3-30B-A3B", *(part for key, value in MODEL.items() for part in ("--set", f"{key}={value}"))]
    common = ["sync", *model, *LAYOUT, "--path", options.path, "--staging", str(STAGING)]
    # All bytes of every configuration are checked once, one by one, outside the clock; digests hold in what is timed.
    rounds = [["--versions", "2", "--verify", "full"]] + [["--versions", str(options.versions), "--verify", "digest"]] * options.rounds
    # None: what nobody has set.
    configurations = [None, *itertools.product(SLOTS, CHUNKS)]
    seconds = {configuration: [] for configuration in configurations}
    staging = dict.fromkeys(configurations, 0)
    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, "report.json")
        for number, how in enumerate(rounds):
            print(f"round {number} of {options.rounds}", file=sys.stderr, flush=True)
            for configuration in configurations:
                arguments = [] if configuration is None else ["--slots", str(configuration[0]), "--chunk-bytes", configuration[1],
                                                                  "--inflight", "64M" if configuration[1] == "64M" else "32M"]
                report = launch(sluice, 4, [*common, *arguments, *how], path)
                if number > 0:
                    seconds[configuration] += [version["seconds"] for version in report["versions"][1:]]
                staging[configuration] = max(staging[configuration], report["peak"]["worker_staging_bytes"])
                if staging[configuration] > STAGING:
                    sys.exit(f"sweep: {configuration}: staging reached {staging[configuration]} bytes; the limit is {STAGING}")
    medians = {configuration: statistics.median(values) for configuration, values in seconds.items()}
    best = min(medians.values())
    print(f"{'slots':>8}{'chunk':>8}{'median s':>10}{'spread':>15}{'of best':>9}{'staging MiB':>13}")
    rows = []
    for configuration in configurations:
        slots, chunk = configuration or ("default", "default")
        values = seconds[configuration]
        rows.append({"slots": slots, "chunk_bytes": chunk, "seconds": values, "median_s": medians[configuration],
                     "peak_staging_bytes": staging[configuration]})
        print(f"{slots:>8}{chunk:>8}{medians[configuration]:10.3f}{f'{min(values):.3f}-{max(values):.3f}':>15}{medians[configuration] / best:9.3f}"
              f"{staging[configuration] / 2**20:13.1f}")
    ratio = medians[None] / best
    print(f"the defaults take {ratio:.3f} times the best; wanted {ASKED}")
    write_json(options.json, {"schema": 1, "bench": "sweep", "path": options.path, "configurations": rows, "default_over_best": ratio})
    if options.check and ratio > ASKED:
        sys.exit("sweep: missed")


if __name__ == "__main__":
    main()
