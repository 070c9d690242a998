#!/usr/bin/env python3
"""Gathered sources under the smallest credit, staging and slots end, every time. no_deadlock_test.py SLUICE MPIRUN CASE ROUNDS

Each round is a whole run of three versions, checked element by element, with a limit of 60 s."""
import json
import os
import subprocess
import sys
import tempfile

SLUICE, MPIRUN, CASE, ROUNDS = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
SMALL = ["--model", "Qwen3-30B-A3B", "--set", "hidden_size=64", "--set", "num_attention_heads=8", "--set", "num_key_value_heads=2",
         "--set", "head_dim=16", "--set", "vocab_size=1024", "--set", "num_experts=6", "--set", "moe_intermediate_size=48",
         "--source", "gathered", "--credit", "1", "--verify", "full", "--timeout", "50s"]
CASES = {
    "two_stages_two_replicas": (6, ["--trainer", "pp=2", "--worker", "tp=2,replicas=2", "--set", "num_hidden_layers=12"]),
    "three_stages_slow_worker": (9, ["--trainer", "pp=3,tp=2", "--worker", "tp=1,replicas=3", "--set", "num_hidden_layers=6",
                                     "--slow-worker", "1:1", "--chunk-bytes", "4K", "--staging", "4K", "--slots", "1", "--inflight", "4K"]),
    "three_stages_slow_worker_packed": (9, ["--trainer", "pp=3,tp=2", "--worker", "tp=1,replicas=3", "--set", "num_hidden_layers=6",
                                            "--slow-worker", "1:1", "--chunk-bytes", "4K", "--staging", "4K", "--slots", "1",
                                            "--inflight", "4K", "--path", "packed"]),
}

ranks, arguments = CASES[CASE]
with tempfile.TemporaryDirectory() as scratch:
    report = os.path.join(scratch, "report.json")
    for number in range(ROUNDS):
        command = [MPIRUN, "-n", str(ranks), SLUICE, "sync", *SMALL, *arguments, "--json", report]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            sys.exit(f"round {number}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        with open(report, encoding="utf-8") as stream:
            result = json.load(stream)
        if result["peak"]["trainer_groups"] > 2:
            sys.exit(f"round {number}: a trainer held {result['peak']['trainer_groups']} groups, credit + 1 is 2")
        if result["peak"]["worker_staging_bytes"] > 4096 and "4K" in arguments:
            sys.exit(f"round {number}: staging reached {result['peak']['worker_staging_bytes']} bytes, the limit is 4096")
print(f"{ROUNDS} rounds of {CASE} ended well")
