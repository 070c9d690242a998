#!/usr/bin/env python3
"""The steps by which weight transfers got fast, on one cluster and model in one run: packed broadcast, full gather and pull,
gather inside a stage and pull, pull pipelined with the gather, pull in place. See docs/benchmarks.md."""
import os
import statistics
import sys
import tempfile

from cluster import CASES, MODEL, TRAINERS, WORKERS, must, parser_of, programs, read_json, sluice_arguments, write_json
from cluster_network import Network

# case: (what a full gather makes of the trainers, what a gather inside the stages makes of them)
GATHERED = {"b": ("dp=4", "pp=4"), "c": ("dp=4", "dp=4,ep=4")}
ASKED_OF_BROADCAST = 0.70
ASKED_OF_PULL = 0.85


def traffic(network):
    return [count for node in range(TRAINERS + WORKERS) for count in network.counters(node)]


def busiest(before, after, syncs):
    """Bytes of one sync over the direction of a link that carried most."""
    return max(b - a for a, b in zip(before, after)) / syncs


class Rungs:
    """Runs the programs of one case; each rung is (seconds of each repetition, bytes over the busiest link of one)."""

    def __init__(self, network, sluice, mpi, directory, repetitions):
        self.network, self.repetitions, self.sluice, self.mpi = network, repetitions, sluice, mpi
        self.path = os.path.join(directory, "out.json")

    def _launch(self, program, nodes, what):
        before = traffic(self.network)
        must(self.network.launch([(node, program, {}) for node in range(nodes)], 600), what)
        return read_json(self.path), before, traffic(self.network)

    def by_mpi(self, case, into=None):
        trainer, workers, _, _ = CASES[case]
        program = [self.mpi, *MODEL, "--trainer", trainer, *(part for worker in workers for part in ("--worker", worker)),
                   "--repetitions", str(self.repetitions), "--json", self.path]
        if into:
            program += ["--into", into]
        report, before, after = self._launch(program, TRAINERS + (0 if into else WORKERS), f"bench_broadcast, case {case}")
        return report["seconds"], busiest(before, after, self.repetitions + 1)

    def pull(self, case, trainer=None, source="resident"):
        """Set-up is not a part of a sync: what one version costs is what more versions cost more."""
        amounts = []
        for versions in (1, self.repetitions + 1):
            program = [self.sluice, "sync", *sluice_arguments(case, trainer, source), "--versions", str(versions), "--verify", "digest", "--json", self.path]
            report, before, after = self._launch(program, TRAINERS + WORKERS, f"sluice sync, case {case}")
            amounts.append([b - a for a, b in zip(before, after)])
        moved = max(more - one for one, more in zip(*amounts)) / self.repetitions
        return [version["seconds"] for version in report["versions"][1:]], moved

    def gather_then_pull(self, case, trainer):
        """One after the other; the links that are busiest in each need not be the same, so that the bounds add up too."""
        seconds, moved = ([0.0] * self.repetitions, 0) if trainer == CASES[case][0] else self.by_mpi(case, trainer)
        pull_seconds, pulled = self.pull(case, trainer)
        return [a + b for a, b in zip(seconds, pull_seconds)], moved + pulled

    def all(self, case):
        full, stage = GATHERED[case]
        yield "broadcast", "gathered to rank 0, broadcast packed", self.by_mpi(case)
        yield "full gather", "full gather, then pull", self.gather_then_pull(case, full)
        yield "stage gather", "gather inside the stage, then pull", self.gather_then_pull(case, stage)
        yield "pipelined", "pull, pipelined with the gather", self.pull(case, source="gathered")
        yield "resident", "pull in place", self.pull(case)


def main():
    parser = parser_of(__doc__, GATHERED)
    parser.add_argument("--repetitions", type=int, default=5, help="of every step; one more warms up (5)")
    options = parser.parse_args()
    sluice, mpi = programs(options.build, "ladder", "bench/bench_broadcast")
    results = {"schema": 1, "bench": "ladder", "mbit": options.mbit, "nodes": TRAINERS + WORKERS, "cases": []}
    missed = []
    with tempfile.TemporaryDirectory() as directory, Network(TRAINERS + WORKERS, options.mbit) as network:
        for case in options.case or sorted(GATHERED):
            print(f"case {case}: {CASES[case][0]} -> {' + '.join(CASES[case][1])}")
            print(f"  {'step':38}{'median s':>10}{'spread':>15}{'busiest MB':>12}{'of bound':>10}{'faster':>8}{'fewer bytes':>13}")
            rungs = []
            for name, words, (seconds, moved) in Rungs(network, sluice, mpi, directory, options.repetitions).all(case):
                median, bound = statistics.median(seconds), moved * 8 / (options.mbit * 1e6)
                first = rungs[0] if rungs else {"median_s": median, "busiest_link_bytes": moved}
                rungs.append({"step": name, "seconds": seconds, "median_s": median, "busiest_link_bytes": moved, "bound_s": bound,
                              "share": bound / median, "times_faster": first["median_s"] / median,
                              "times_fewer_bytes": first["busiest_link_bytes"] / moved})
                row = rungs[-1]
                print(f"  {words:38}{median:10.3f}{f'{min(seconds):.3f}-{max(seconds):.3f}':>15}{moved / 1e6:12.1f}{row['share']:10.3f}"
                      f"{row['times_faster']:8.2f}{row['times_fewer_bytes']:13.2f}", flush=True)
            kept = rungs[-1]["times_faster"] / rungs[-1]["times_fewer_bytes"]
            print(f"  the pull in place is {kept:.3f} times as many times faster as its busiest link carries fewer bytes; wanted {ASKED_OF_PULL}")
            results["cases"].append({"case": case, "trainer": CASES[case][0], "workers": CASES[case][1], "steps": rungs, "faster_over_fewer": kept})
            if rungs[0]["share"] < ASKED_OF_BROADCAST:
                missed.append(f"{case}: the broadcast reaches {rungs[0]['share']:.3f} of its bound")
            if kept < ASKED_OF_PULL:
                missed.append(f"{case}: the pull in place reaches {kept:.3f}")
    write_json(options.json, results)
    if options.check and missed:
        sys.exit(f"ladder: {'; '.join(missed)}")


if __name__ == "__main__":
    main()
