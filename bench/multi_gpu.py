#!/usr/bin/env python3
"""Several GPUs of one host: what their links carry, whole syncs of a model over them by each path and with gathered weights, the same weights by
NCCL broadcast, and what the cost model says of each, in one run. See docs/gpu.md.

Runs what the GPUs that are there allow, a GPU for each rank, and lists the rest; with one GPU all ranks share it, and shares mean nothing. NVLink
multicast stays off."""
import argparse
import contextlib
import os
import subprocess
import sys
import tempfile

from cluster import programs, read_json, write_json
from multi_gpu_figures import (GATHERED, MODEL, NO_MULTICAST, PATHS, READ_BY, SYNCS, WANTED_GATHERED, WANTED_SHARE, WANTED_SLICES, gpus_of,
                               memory_needed, missed, multicast_in, pattern_of, prediction, rate_of, runs_for, share_of)

MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_pml": "ob1",
       "OMPI_MCA_osc": "^ucx", "OMPI_MCA_btl": "self,vader,tcp", "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
SLICES = "experts tp2 mapped"
CHUNK = "256M"                 # what a sync in GPU memory takes by itself, and a plan has to be told
BYTES_OF_A_RANK = 6 * 10 ** 9  # slots, staging and context


class StepFailed(Exception):
    """One line of what failed, and what it printed."""


class Bench:
    def __init__(self, options, gpus, directory):
        self.options, self.gpus = options, gpus
        self.sluice, self.gpu = programs(options.build, "multi_gpu", "bench/bench_gpu")
        self.path = os.path.join(directory, "out.json")
        self.environment = {**MPI, **os.environ, **NO_MULTICAST}
        self.model = ["--model", MODEL] + [part for one in options.set for part in ("--set", one)]
        self.results = {"schema": 1, "bench": "multi gpu", "model": " ".join(self.model[1:]), "gpus": [name for name, _ in gpus],
                        "no_multicast": NO_MULTICAST, "links": [], "collectives": [], "syncs": [], "broadcasts": [], "gathered": [], "slices": None,
                        "not_run": [], "failed": []}

    def _run(self, command, what):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.environment) as process:
            try:
                output, _ = process.communicate(timeout=self.options.timeout)
            except subprocess.TimeoutExpired as late:
                process.terminate()  # mpirun then ends its ranks, which would keep their memory
                raise StepFailed(f"{what} did not end within {self.options.timeout:g} s") from late
        if process.returncode != 0:
            raise StepFailed(f"{what} ended with {process.returncode}\n{output}")
        if not os.path.exists(self.path):
            raise StepFailed(f"{what} left no results\n{output}")
        return read_json(self.path)

    def attempt(self, step, *arguments):
        """One failure does not cost the figures of the other steps."""
        try:
            return step(*arguments)
        except StepFailed as failure:
            self.results["failed"].append(str(failure))
            print(f"failed: {failure}", flush=True)
            return None

    def ranks(self, count, command, what):
        return self._run(["mpirun", "--bind-to", "none", "-n", str(count), *command, "--json", self.path], what)

    def layouts(self, case, more=()):
        return [*self.model, "--trainer", case[0], "--worker", case[1], *more]

    def plan(self, case, rate, more):
        """What the cost model says when every GPU is a node whose links carry `rate` bytes per second."""
        cluster = f"gpus_per_node=1,nic_gbps={rate * 8 / 1e9:.6f}"
        return self._run([self.sluice, "plan", *self.layouts(case, more), "--chunk-bytes", CHUNK, "--cluster", cluster, "--json", self.path], "sluice plan")

    def not_run(self, what, needs):
        self.results["not_run"].append({"what": what, "needs_gpus": needs})

    def shared(self, ranks):
        return ranks > len(self.gpus)

    def links(self, patterns):
        ranks = max(2, len(self.gpus))
        print(f"links, {ranks} ranks on {len(self.gpus)} GPUs; bytes per second into a reader, the slowest of those at a time")
        at_once = [part for pattern in patterns for part in ("--at-once", pattern)]
        report = self.ranks(ranks, [self.gpu, "links", "--bytes", self.options.bytes, *at_once], "bench_gpu links")
        self.results["links"] = report["rows"]
        for row in report["rows"]:
            rate = row["ingress_bytes_per_second"]
            print(f"  {row['pattern']:10}{row['way']:34}{rate['median'] / 1e9:9.1f} GB/s   {rate['min'] / 1e9:.1f}-{rate['max'] / 1e9:.1f}")

    def collectives(self):
        if len(self.gpus) < 2:
            self.not_run("NCCL broadcast and all-gather rates", 2)
            return
        report = self.ranks(len(self.gpus), [self.gpu, "collectives"], "bench_gpu collectives")
        self.results["collectives"] = report["rows"]
        print(f"NCCL over {len(self.gpus)} GPUs; bytes per second into a rank")
        for row in report["rows"]:
            rate = row["ingress_bytes_per_second"]
            print(f"  {row['name']:44}{rate['median'] / 1e9:9.1f} GB/s   {rate['min'] / 1e9:.1f}-{rate['max'] / 1e9:.1f}")

    def sync(self, name, case, path, rates, more, wanted, side="wire_s"):
        """One row: a sync measured, over its bound, beside its prediction. `rates` are of the bound and of the prediction."""
        versions = ["--versions", str(self.options.versions + 1), "--verify", "full", "--memory", "cuda"]
        report = self.ranks(2 * case[2], [self.sluice, "sync", *self.layouts(case, more), *versions], f"sluice sync, {name} {path}")
        counted = report["versions"][1:]
        seconds = [version["seconds"] for version in counted]
        planned = [part for part in more if part not in ("--gather", "nccl", "pull")]
        limit = self.plan(case, rates[0], planned)["bound"]
        predicted = self.plan(case, rates[1], planned)["bound"]["predicted_s"]
        row = {"case": name, "trainer": case[0], "worker": case[1], "path": path, "shared": self.shared(2 * case[2]), "bytes": counted[-1]["bytes"],
               "worst_link": limit["worst_link"], **share_of(limit[side], seconds), "wanted_share": wanted, **prediction(predicted, seconds),
               "verified": report["verify"], "report": report}
        self.print_row(row)
        return row

    @staticmethod
    def print_header():
        print(f"{'case':10}{'path':14}{'GB':>7}{'bound ms':>10}{'median ms':>11}{'share':>8}{'spread':>15}{'wanted':>8}{'predicted':>11}{'off':>8}")

    @staticmethod
    def print_row(row):
        spread = f"{min(row['share_of_each']):.3f}-{max(row['share_of_each']):.3f}"
        predicted = f"{row['predicted_s'] * 1e3:11.1f}{row['prediction_off']:8.1%}" if "predicted_s" in row else ""
        print(f"{row['case']:10}{row['path']:14}{row['bytes'] / 1e9:7.1f}{row['bound_s'] * 1e3:10.1f}{row['median_s'] * 1e3:11.1f}{row['share']:8.3f}"
              f"{spread:>15}{row['wanted_share']:8.2f}{predicted}{'  GPUs shared' if row['shared'] else ''}", flush=True)

    def fits(self, case):
        """Where all ranks share the one GPU."""
        if len(self.gpus) > 1:
            return True
        plan = self._run([self.sluice, "plan", *self.layouts(case), "--json", self.path], "sluice plan")
        return memory_needed(plan, BYTES_OF_A_RANK) <= self.gpus[0][1]

    def syncs(self, cases):
        for name, case in cases.items():
            if not self.attempt(self.fits, case):
                self.not_run(f"{name}: more memory than one GPU has", 2 * case[2])
                continue
            pattern = pattern_of(case, len(self.gpus))
            bound = rate_of(self.results["links"], pattern)
            for path in PATHS:
                rates = (bound, rate_of(self.results["links"], pattern, READ_BY[path]))
                row = self.attempt(self.sync, name, case, path, rates, ("--path", path), WANTED_SHARE[path])
                self.results["syncs"] += [row] if row else []
            self.attempt(self.broadcast, name, case, bound)

    def broadcast(self, name, case, rate):
        ranks = 2 * case[2]
        if self.shared(ranks):
            self.not_run(f"{name}: NCCL broadcast", ranks)
            return
        command = [self.gpu, "broadcast", *self.layouts(case), "--repetitions", str(self.options.versions)]
        measured = self.ranks(ranks, command, f"bench_gpu broadcast, {name}")["rows"][0]
        seconds = measured["seconds"]["median"]
        pulls = {row["path"]: row["median_s"] for row in self.results["syncs"] if row["case"] == name}
        row = {"case": name, **measured, "bound_s": measured["bytes"] / rate, "share": measured["bytes"] / rate / seconds,
               "pull_times_faster": {path: seconds / pull for path, pull in pulls.items()}}
        self.results["broadcasts"].append(row)
        faster = ", ".join(f"{path} {times:.2f}" for path, times in row["pull_times_faster"].items())
        print(f"{name:10}{'broadcast':14}{row['bytes'] / 1e9:7.1f}{row['bound_s'] * 1e3:10.1f}{seconds * 1e3:11.1f}{row['share']:8.3f}"
              f"   pulls are times faster: {faster}", flush=True)

    def gathered(self, cases):
        """Over what the trainers send, the gather included, at the rate of all links at once."""
        rate = rate_of(self.results["links"], "all")
        for name, case in cases.items():
            for how in ("nccl", "pull"):
                more = ("--source", "gathered", "--gather", how)
                row = self.attempt(self.sync, name, case, f"gather {how}", (rate, rate), more, 1 / WANTED_GATHERED, "egress_s")
                self.results["gathered"] += [row] if row else []

    def slices(self):
        """The mapped slices of one worker of two: runs of 768 bytes in experts."""
        shared = len(self.gpus) == 1
        placed = [["-n", "1", self.gpu, "pull", "--series", SLICES, "--device", device, "--json", self.path] for device in ("0", "0" if shared else "1")]
        row = self._run(["mpirun", "--bind-to", "none", *placed[0], ":", *placed[1]], "bench_gpu pull")["rows"][0]
        rate = rate_of(self.results["links"], "0 -> 1")
        shares = [row["pull_bytes_per_second"][figure] / rate for figure in ("median", "min", "max")]
        self.results["slices"] = {"case": "1 -> 1", "path": "tp slices", "bytes": row["bytes"], "bound_s": row["bytes"] / rate, "share": shares[0],
                                  "share_of_each": shares, "median_s": row["seconds"]["median"], "wanted_share": WANTED_SLICES, "shared": shared}
        self.print_row(self.results["slices"])

    def gather_cases(self):
        """NCCL needs a GPU for each trainer; with two or three GPUs the workers share them with the trainers."""
        gpus = len(self.gpus)
        able = {}
        for name, case in GATHERED.items():
            alone = 2 * case[2] <= gpus
            if alone or (case[2] == 2 and gpus > 1):
                able[name] = case
            if not alone:
                self.not_run(f"{name}: gathered by NCCL{', workers on GPUs of their own' if name in able else ''}", 2 * case[2])
        return able

    def run(self):
        gpus = len(self.gpus)
        syncs, without = runs_for(gpus, SYNCS)
        for name, needs in without.items():
            self.not_run(f"{name}: syncs, NCCL broadcast", needs)
        self.links([*(pattern_of(case, gpus) for case in syncs.values() if case[2] > 1 and gpus > 1), "all"])
        self.attempt(self.collectives)
        self.print_header()
        self.attempt(self.slices)
        self.syncs(syncs)
        self.gathered(self.gather_cases())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", help="the build folder, build/release")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="shrink the model (num_hidden_layers=4); repeatable")
    parser.add_argument("--bytes", default="16G", help="that a reader reads where links are measured (16G)")
    parser.add_argument("--versions", type=int, default=3, help="of every sync; one more warms up (3)")
    parser.add_argument("--timeout", type=float, default=300, help="of every step, in seconds (300)")
    parser.add_argument("--json", metavar="FILE", help="write the results to FILE")
    parser.add_argument("--check", action="store_true", help="end with 1 when a wanted figure is missed")
    options = parser.parse_args()
    if multicast := multicast_in(os.environ):
        sys.exit(f"multi_gpu: {multicast} turns NVLink multicast on, which has to stay off; unset it")
    sluice, = programs(options.build, "multi_gpu")
    gpus = gpus_of(subprocess.run([sluice, "info"], capture_output=True, text=True, check=False).stdout)
    if isinstance(gpus, str):
        sys.exit(f"multi_gpu: no GPU to measure ({gpus})")
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(options, gpus, directory)
        try:
            bench.run()
        except StepFailed as failure:
            sys.exit(f"multi_gpu: {failure}")
        finally:
            bench.results["missed"] = missed(bench.results)
            write_json(options.json, bench.results)
    for one in bench.results["not_run"]:
        print(f"not run: {one['what']}: needs {one['needs_gpus']} GPUs")
    for line in bench.results["missed"]:
        print(f"missed: {line}")
    if bench.results["failed"]:
        sys.exit(f"multi_gpu: failed: {'; '.join(failure.splitlines()[0] for failure in bench.results['failed'])}")
    if options.check and bench.results["missed"]:
        sys.exit(f"multi_gpu: {len(bench.results['missed'])} wanted figures are missed")


if __name__ == "__main__":
    main()
