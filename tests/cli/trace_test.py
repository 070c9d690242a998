#!/usr/bin/env python3
"""`sluice sync --trace`: what a trace holds and what it blames. trace_test.py SLUICE MPIRUN CASE

Every trace is checked as a whole: it parses, every rank and lane is there, spans of a thread nest, those of a link follow each other."""
import collections
import json
import os
import subprocess
import sys
import tempfile

SLUICE, MPIRUN, CASE = sys.argv[1:4]
SMALL = ["--model", "Qwen3-30B-A3B", "--set", "num_hidden_layers=4", "--set", "hidden_size=64", "--set", "num_attention_heads=8",
         "--set", "num_key_value_heads=2", "--set", "head_dim=16", "--set", "vocab_size=1024", "--set", "num_experts=4",
         "--set", "moe_intermediate_size=48", "--timeout", "30s"]
INSTANTS = {"published", "released", "landed"}
OUTER = {"sync"}
THREADS = ("transport", "copy 0", "copy 1")  # Small copies are done by the transport thread itself.


def check(good, message):
    if not good:
        sys.exit(f"FAILED: {message}")


class Trace:
    """Events by (rank, lane), spans as (begin, end, event) in nanoseconds and in order."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as stream:
            events = json.load(stream)
        ranks, lanes, threads = {}, {}, collections.Counter()
        for event in (e for e in events if e["ph"] == "M"):
            if event["name"] == "process_name":
                ranks[event["pid"]] = event["args"]["name"]
            elif event["name"] == "thread_name":
                lanes[event["pid"], event["tid"]] = event["args"]["name"]
                threads[event["tid"]] += 1
        check(max(threads.values()) == 1, "a thread number stands for one thread")
        self.lanes = {(ranks[pid], name): [] for (pid, _), name in lanes.items()}
        self.instants = collections.Counter()
        check(len(self.lanes) == len(lanes), "lanes of a rank have names of their own")
        for event in (e for e in events if e["ph"] != "M"):
            lane = ranks[event["pid"]], lanes[event["pid"], event["tid"]]
            check((event["ph"] == "i") == (event["name"] in INSTANTS), f"instants are instants: {event}")
            check(event["ts"] >= 0 and event["args"]["version"] >= 1, f"a time and a version: {event}")
            if event["ph"] == "i":
                self.instants[lane[0], event["name"]] += 1
                continue
            begin = round(event["ts"] * 1000)
            self.lanes[lane].append((begin, begin + round(event["dur"] * 1000), event))
        for lane, spans in self.lanes.items():
            spans.sort(key=lambda span: (span[0], -span[1]))
            open_spans = []
            for begin, end, event in spans:
                while open_spans and open_spans[-1][0] <= begin:
                    open_spans.pop()
                check(not open_spans or (end <= open_spans[-1][0] and open_spans[-1][1] in OUTER),
                      f"{lane}: {event['name']} at {event['ts']} overlaps {open_spans and open_spans[-1][1]}")
                open_spans.append((end, event["name"]))

    def spans(self, rank, lane, *names):
        """Of the lane and its further rows."""
        return [(begin, end, event) for (r, name), spans in self.lanes.items() if r == rank and (name == lane or name.startswith(lane + " ("))
                for begin, end, event in spans if event["name"] in names]

    def time(self, rank, lane, *names):
        return sum(end - begin for begin, end, _ in self.spans(rank, lane, *names))

    def named(self, rank, prefix):
        """Time of all spans whose name begins so, by name."""
        times = collections.Counter()
        for (r, _), spans in self.lanes.items():
            for begin, end, event in spans if r == rank else ():
                if event["name"].startswith(prefix):
                    times[event["name"]] += end - begin
        return times


def run(directory, ranks, *arguments, code=0, recovery=False, environment=None):
    trace, report = os.path.join(directory, "trace.json"), os.path.join(directory, "report.json")
    command = [MPIRUN, *(["--enable-recovery"] if recovery else []), "-n", str(ranks), SLUICE, "sync", *SMALL, *arguments, "--trace", trace, "--json", report]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, env={**os.environ, **(environment or {})})
    check(done.returncode == code, f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    with open(report, encoding="utf-8") as stream:
        result = json.load(stream)
    for version in result["versions"]:
        check(0 < version["reading_share"] <= 1, f"a share of the time with reads in flight: {version}")
    return Trace(trace), result


def lanes_of(trace, links):
    """`links`: (rank, lane) of every link. Threads are those of every rank."""
    ranks = {rank for rank, _ in links}
    expected = {(rank, lane) for rank in ranks for lane in ("caller", "transport", "copy 0", "copy 1")} | set(links)
    check({lane for lane in trace.lanes if not lane[1].endswith(")")} == expected, f"lanes {sorted(trace.lanes)}, expected {sorted(expected)}")


def reading_lanes(trainers, workers):
    return [(f"worker {w}", f"reads from trainer {t}") for w in workers for t in trainers] + [
        (f"trainer {t}", f"serves worker {w}") for w in workers for t in trainers]


def slow_worker(directory):
    """Gathered under a credit of 1, one of two workers slow: the trainers wait, and say for whom."""
    trace, _ = run(directory, 4, "--trainer", "tp=2", "--worker", "tp=1,replicas=2", "--source", "gathered", "--credit", "1", "--versions", "2",
                   "--chunk-bytes", "16K", "--slow-worker", "1:5", "--path", "packed")
    lanes_of(trace, reading_lanes((0, 1), (0, 1)) + [
        (f"trainer {t}", lane) for t in (0, 1) for lane in ("gathers from trainer 0", "gathers from trainer 1", f"serves shards to trainer {1 - t}")])
    for trainer in ("trainer 0", "trainer 1"):
        check(len(trace.spans(trainer, "caller", "sync")) == 2 and len(trace.spans(trainer, "caller", "commit")) == 2, "a sync and a commit per version")
        check(len(trace.spans(trainer, "caller", "gather")) == 2 * 6, "a gather per group and version")
        waits = trace.named(trainer, "wait for release")
        blamed = waits["wait for release by worker 1"]
        check(blamed > 0.8 * sum(waits.values()) and blamed > 0.5 * trace.time(trainer, "caller", "sync"),
              f"{trainer} was kept waiting by worker 1: {waits} of {trace.time(trainer, 'caller', 'sync')}")
        check(trace.time(trainer, "serves worker 1", "held") > 2 * trace.time(trainer, "serves worker 0", "held"), "worker 1 holds groups for longer")
        check(trace.named(trainer, "pack")["pack"] > 0 and trace.named(trainer, "hash")["hash"] > 0, "packing and hashing are there")
    quick, slow = trace.named("worker 0", "stall"), trace.named("worker 1", "stall")
    check(slow["stall: slow worker"] > 0.5 * sum(slow.values()), f"the slow worker's links wait for it: {slow}")
    check(quick["stall: publish"] + quick["stall: packed chunk"] > 0.5 * sum(quick.values()) and quick["stall: slow worker"] == 0,
          f"the other's links wait for the trainers: {quick}")
    check(all(trace.instants[f"worker {w}", "landed"] == 2 * 6 for w in (0, 1)), f"every group lands at every worker: {trace.instants}")


def slow_owner(directory):
    """One of two tensor-parallel ranks at a fiftieth of its speed, so that no other can take over its part: the other link is done early, and says so."""
    trace, result = run(directory, 3, "--trainer", "tp=2", "--worker", "tp=1", "--slow-owner", "1:2", "--chunk-bytes", "16K", "--path", "direct")
    lanes_of(trace, reading_lanes((0, 1), (0,)))
    slow, other = "reads from trainer 1", "reads from trainer 0"
    check(trace.time("worker 0", slow, "stall: slow owner") > trace.time("worker 0", slow, "read"), "the slow link rests")
    check(trace.time("worker 0", other, "stall: slow owner") == 0, "the other does not")
    check(trace.time("worker 0", other, "stall: nothing left") > 0.5 * trace.time("worker 0", slow, "stall: slow owner"),
          "the other link is done long before the slow one")
    check(all(version["reading_share"] < 0.5 for version in result["versions"]), f"the wire was idle for most of the time: {result['versions']}")
    read = sum(event["args"]["bytes"] for lane in (slow, other) for _, _, event in trace.spans("worker 0", lane, "read"))
    check(read == sum(version["bytes"] for version in result["versions"]), "every byte pulled is in a read")


def mapped(directory):
    trace, _ = run(directory, 3, "--trainer", "tp=2", "--worker", "tp=1", "--path", "mapped", environment={"SLUICE_MAPPED": "on"})
    lanes_of(trace, reading_lanes((0, 1), (0,)))
    copies = sum(len(trace.spans("worker 0", lane, "copy")) for lane in THREADS)
    reads = sum(len(trace.spans("worker 0", f"reads from trainer {t}", "read")) for t in (0, 1))
    check(copies == reads > 0, f"a mapped read is a copy: {copies} and {reads}")
    check(trace.named("worker 0", "verify")["verify"] > 0, "what was copied is verified")


def dead_worker(directory):
    """The ranks alive write what they have, up to the failure."""
    trace, result = run(directory, 4, "--trainer", "tp=2", "--worker", "tp=1,replicas=2", "--die", "3@2.3", recovery=True)
    check(result["status"] == "failed", "the run has failed")
    alive = {rank for rank, _ in trace.lanes}
    check(alive == {"trainer 0", "trainer 1", "worker 0"}, f"{alive} were alive")
    for rank in alive:
        versions = [event["args"]["version"] for _, _, event in trace.spans(rank, "caller", "sync")]
        check(versions == [1, 2], f"{rank} has tried versions {versions}")


with tempfile.TemporaryDirectory() as scratch:
    {f.__name__: f for f in (slow_worker, slow_owner, mapped, dead_worker)}[CASE](scratch)
