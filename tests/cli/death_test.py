#!/usr/bin/env python3
"""A rank that dies ends the sync on all others: exit code 4 within 4 s, with the peer named. death_test.py SLUICE MPIRUN CASE

mpirun --enable-recovery returns 0 whatever its processes did, so each rank runs under a small recorder of its own exit code and time."""
import json
import os
import subprocess
import sys
import tempfile

if sys.argv[1] == "--record":
    folder, program = sys.argv[2], sys.argv[3:]
    import time
    code = subprocess.run(program, check=False).returncode
    with open(os.path.join(folder, os.environ["OMPI_COMM_WORLD_RANK"]), "w", encoding="utf-8") as out:
        json.dump({"code": code, "time": time.time()}, out)
    sys.exit(0)

SLUICE, MPIRUN, CASE = sys.argv[1:4]
RANKS = 6
SMALL = ["--model", "Qwen3-30B-A3B", "--set", "hidden_size=256", "--set", "num_experts=8", "--set", "moe_intermediate_size=128",
         "--set", "vocab_size=2048", "--set", "num_hidden_layers=8", "--trainer", "tp=2", "--worker", "tp=2,replicas=2", "--timeout", "30s"]
# Who dies, and where: world rank @ version . place in the group order.
CASES = {
    "coordinator": (0, "0@2.3", []),
    "trainer": (1, "1@2.3", []),
    "worker": (3, "3@2.5", []),
    "gathering_trainer": (1, "1@2.4", ["--source", "gathered"]),
    "worker_of_gathered": (4, "4@1.2", ["--source", "gathered"]),
    "packed_over_tcp": (2, "2@2.1", ["--path", "packed"]),
    "mapped_trainer": (1, "1@2.4", ["--source", "gathered", "--path", "mapped"]),
    "mapped_worker": (2, "2@2.2", ["--path", "mapped"]),
}
LIMIT_S = 4.0

dead, where, options = CASES[CASE]
environment = dict(os.environ)
if CASE.endswith("tcp"):
    environment["UCX_TLS"] = "tcp,self"
if CASE.startswith("mapped"):
    environment["SLUICE_MAPPED"] = "on"
name = f"trainer {dead}" if dead < 2 else f"worker {dead - 2}"
with tempfile.TemporaryDirectory() as scratch:
    report = os.path.join(scratch, "report.json")
    recorder = [sys.executable, "-B", os.path.abspath(__file__), "--record", scratch]
    command = [MPIRUN, "--enable-recovery", "-n", str(RANKS), *recorder, SLUICE, "sync", *SMALL, "--die", where, "--json", report, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    ends = {}
    for rank in range(RANKS):
        path = os.path.join(scratch, str(rank))
        if not os.path.exists(path):
            sys.exit(f"rank {rank} has not ended\n{done.stdout}{done.stderr}")
        with open(path, encoding="utf-8") as stream:
            ends[rank] = json.load(stream)
    if ends[dead]["code"] != -9:
        sys.exit(f"rank {dead} was to be killed but ended with {ends[dead]['code']}\n{done.stdout}{done.stderr}")
    for rank in set(range(RANKS)) - {dead}:
        if ends[rank]["code"] != 4:
            sys.exit(f"rank {rank} ended with {ends[rank]['code']} instead of 4\n{done.stdout}{done.stderr}")
        after = ends[rank]["time"] - ends[dead]["time"]
        if after > LIMIT_S:
            sys.exit(f"rank {rank} ended {after:.1f} s after the death of rank {dead}, the limit is {LIMIT_S}")
    with open(report, encoding="utf-8") as stream:
        result = json.load(stream)
    if result["status"] != "failed" or result["error"]["peer"] != name:
        sys.exit(f"the report says {result['status']}, {result['error']}; expected {name} to be named")
    if not any(line.startswith("sluice: ") and name in line for line in done.stderr.splitlines()):
        sys.exit(f"no line names {name}:\n{done.stderr}")
    last = int(where.split("@")[1].split(".")[0]) - 1
    if [v["version"] for v in result["versions"]] != list(range(1, last + 1)):
        sys.exit(f"versions {result['versions']} were committed, expected 1 to {last}")
print(f"{CASE}: survivors ended at most {max(ends[r]['time'] for r in ends) - ends[dead]['time']:.2f} s later")
