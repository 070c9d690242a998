#!/usr/bin/env python3
"""One node of the cluster at a tenth of its rate: how much longer the sync of all takes, and who is held up. See docs/benchmarks.md.

First an owner whose replicas have the same bytes; then a worker, with a source that is read in place and with one that gathers."""
import collections
import json
import os
import statistics
import sys
import tempfile

from cluster import MODEL, TRAINERS, WORKERS, must, parser_of, programs, read_json, write_json
from cluster_network import Network

SLOW_TRAINER, SLOW_WORKER = 1, 2
ASKED_OF_OWNER, ASKED_OF_WORKERS = 1.45, 1.10
CASES = {"owner": "an owner of four replicas", "worker": "a worker; sources in place", "gathered": "a worker; sources that gather"}


class Cluster:
    def __init__(self, network, sluice, versions, directory):
        self.network, self.sluice, self.versions = network, sluice, versions
        self.report, self.trace = os.path.join(directory, "report.json"), os.path.join(directory, "trace.json")

    def sync(self, *options):
        program = [self.sluice, "sync", *MODEL, *options, "--versions", str(self.versions), "--timeout", "300s", "--json", self.report]
        must(self.network.launch([(node, program, {}) for node in range(TRAINERS + WORKERS)], 900), " ".join(options))
        return read_json(self.report)

    def disturbed(self, node, *options):
        """The same sync twice: undisturbed, and with one node's links at a tenth."""
        quiet = self.sync(*options)
        self.network.shape(node, self.network.mbit / 10)
        try:
            return quiet, self.sync(*options, "--trace", self.trace)
        finally:
            self.network.shape(node, self.network.mbit)

    def blamed(self):
        """What the trainers waited for, by worker, as shares of all their waits for releases."""
        with open(self.trace, encoding="utf-8") as stream:
            events = json.load(stream)
        waits = collections.Counter()
        for event in events:
            if event["name"].startswith("wait for release by worker "):
                waits[int(event["name"].rsplit(" ", 1)[1])] += event["dur"]
        total = sum(waits.values())
        return {worker: wait / total for worker, wait in sorted(waits.items())}


def seconds(report):
    return statistics.median(version["seconds"] for version in report["versions"][1:])


def others(report):
    """The slowest of the other workers."""
    return max(statistics.median(rank["pull_s"][1:]) for rank in report["ranks"] if rank["side"] == "worker" and rank["rank"] != SLOW_WORKER)


def owner(cluster):
    quiet, slow = cluster.disturbed(SLOW_TRAINER, "--trainer", "dp=4", "--worker", "tp=1,replicas=4")
    ratio = seconds(slow) / seconds(quiet)
    print(f"  the whole sync {seconds(quiet):.2f} s, then {seconds(slow):.2f} s: {ratio:.3f} times; wanted {ASKED_OF_OWNER}")
    return {"quiet_s": seconds(quiet), "disturbed_s": seconds(slow), "ratio": ratio, "met": ratio <= ASKED_OF_OWNER}


def worker(cluster):
    quiet, slow = cluster.disturbed(TRAINERS + SLOW_WORKER, "--trainer", "tp=4", "--worker", "tp=4")
    ratio = others(slow) / others(quiet)
    print(f"  the other workers' pulls {others(quiet):.2f} s, then {others(slow):.2f} s: {ratio:.3f} times; wanted {ASKED_OF_WORKERS}")
    return {"quiet_s": others(quiet), "disturbed_s": others(slow), "whole_s": seconds(slow), "ratio": ratio, "met": ratio <= ASKED_OF_WORKERS}


def gathered(cluster):
    quiet, slow = cluster.disturbed(TRAINERS + SLOW_WORKER, "--trainer", "tp=4", "--worker", "tp=4", "--source", "gathered", "--credit", "1")
    blamed = cluster.blamed()
    print(f"  the other workers' pulls {others(quiet):.2f} s, then {others(slow):.2f} s: held by the credit; "
          f"of the trainers' waits for releases {blamed.get(SLOW_WORKER, 0):.3f} name worker {SLOW_WORKER}")
    return {"quiet_s": others(quiet), "disturbed_s": others(slow), "whole_s": seconds(slow), "blamed": blamed, "met": blamed.get(SLOW_WORKER, 0) > 0.5}


def main():
    parser = parser_of(__doc__, CASES)
    parser.add_argument("--versions", type=int, default=4, help="versions of each sync; the first is not counted (4)")
    options = parser.parse_args()
    sluice, = programs(options.build, "disturbed")
    results = {"schema": 1, "bench": "disturbed", "mbit": options.mbit, "nodes": TRAINERS + WORKERS, "cases": {}}
    with tempfile.TemporaryDirectory() as directory, Network(TRAINERS + WORKERS, options.mbit) as network:
        for case in options.case or CASES:
            print(f"a tenth of the rate: {CASES[case]}", flush=True)
            measure = {"owner": owner, "worker": worker, "gathered": gathered}[case]
            results["cases"][case] = measure(Cluster(network, sluice, options.versions, directory))
    write_json(options.json, results)
    missed = [case for case, result in results["cases"].items() if not result["met"]]
    if options.check and missed:
        sys.exit(f"disturbed: missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
