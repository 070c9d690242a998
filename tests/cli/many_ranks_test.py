#!/usr/bin/env python3
"""16 trainers and 16 workers on however few cores there are: right bytes, and control messages that grow with groups only.
many_ranks_test.py SLUICE MPIRUN

A rank that does not get its turn would miss heartbeats, and the run would end with exit code 4; messages are counted without them."""
import json
import os
import subprocess
import sys
import tempfile

SLUICE, MPIRUN = sys.argv[1:3]
VERSIONS = 3
NO_HEARTBEATS = {"SLUICE_HEARTBEAT_INTERVAL": "100s", "SLUICE_HEARTBEAT_DEAD_AFTER": "200s"}


def check(good, message):
    if not good:
        sys.exit(f"FAILED: {message}")


def run(scratch, layers, experts, expert_size, source, environment):
    report = os.path.join(scratch, "report.json")
    fields = {"num_hidden_layers": layers, "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16,
              "vocab_size": 1024, "num_experts": experts, "moe_intermediate_size": expert_size}
    command = [MPIRUN, "-n", "32", SLUICE, "sync", "--model", "Qwen3-30B-A3B", *(part for key, value in fields.items() for part in ("--set", f"{key}={value}")),
               "--trainer", "tp=2,pp=2,dp=4,ep=8", "--worker", "tp=4,ep=on,replicas=4", "--source", source, "--credit", "1",
               "--versions", str(VERSIONS), "--verify", "full", "--json", report]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env={**os.environ, **environment})
    check(done.returncode == 0, f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    with open(report, encoding="utf-8") as stream:
        result = json.load(stream)
    check(result["verify"]["mismatches"] == 0 and len(result["ranks"]) == 32, "all 32 ranks end with the right bytes")
    if environment == NO_HEARTBEATS:
        check(result["messages"][1] == result["messages"][2], f"every version costs the same messages: {result['messages']}")
    slices = sum(rank["chunks"] for rank in result["ranks"])
    print(f"{source}: {layers} layers of {experts} experts: {result['messages'][1]} messages in a version, {slices} chunks, "
          f"{max(version['seconds'] for version in result['versions'][1:]):.2f} s", flush=True)
    return result["messages"][1]


with tempfile.TemporaryDirectory() as directory:
    for SOURCE in ("resident", "gathered"):
        run(directory, 4, 8, 64, SOURCE, {})
        few = run(directory, 4, 8, 64, SOURCE, NO_HEARTBEATS)
        more_names = run(directory, 4, 32, 16, SOURCE, NO_HEARTBEATS)
        more_groups = run(directory, 8, 8, 64, SOURCE, NO_HEARTBEATS)
        check(more_names <= 1.05 * few, f"four times as many experts of the same bytes: {more_names} messages instead of {few}")
        # Layers are groups; embedding, and norm with head, are two more.
        check(more_groups <= 1.05 * few * (8 + 2) / (4 + 2), f"10 groups: {more_groups} messages, 6 groups: {few}")
