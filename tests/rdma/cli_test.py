#!/usr/bin/env python3
"""`sluice` on two nodes over verbs lanes, in the guest of run.sh. cli_test.py SLUICE MPIRUN CASE

Trainers are on node 0, workers on node 1, and what they hold at the end is compared byte for byte with what the written rules give."""
import json
import os
import re
import subprocess
import sys
import tempfile
import time

SLUICE, MPIRUN, CASE = sys.argv[1:4]
SOURCES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(SOURCES, "tests", "cli"))
import oracle  # noqa: E402  (from the folder above)

MODEL = "Qwen3-30B-A3B"
SETS = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1010, "intermediate_size": 96,
        "head_dim": 16, "num_experts": 6, "moe_intermediate_size": 48}
TRAINER, WORKER = "tp=2,ep=2", "tp=2,ep=on"
RANKS_PER_NODE = 2
LIMIT_S = 90


def check(good, message):
    if not good:
        sys.exit(f"FAILED: {message}")


def on_node(node, *command, **settings):
    """A command on that node, with UCX settings; UCX_TLS leaves no way around verbs."""
    variables = {"TLS": "rc,self", **settings}
    return ["ip", "netns", "exec", f"n{node}", "env", *(f"UCX_{key}={value}" for key, value in variables.items()), *command]


def sync(directory, *options, devices=("rxe0:1", "rxe1:1"), prefix=(), launcher=(), **settings):
    """Two trainers and two workers. Returns the finished mpirun and the JSON, if there is one."""
    report = os.path.join(directory, "report.json")
    program = [*prefix, SLUICE, "sync", "--model", MODEL, "--trainer", TRAINER, "--worker", WORKER, "--json", report, "--timeout", "60s", *options]
    for key, value in SETS.items():
        program += ["--set", f"{key}={value}"]
    # The ranks reach their launcher by a network of its own.
    environment = {**os.environ, "PMIX_MCA_ptl_tcp_if_include": "control"}
    command = [MPIRUN, *launcher, "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "10.99.0.0/24"]
    for node, role in enumerate(("trainer", "worker")):
        device = ["--net-device", devices[node]] if devices[node] else []
        command += [":"] if node else []
        command += ["-n", str(RANKS_PER_NODE), *on_node(node, *program, "--role", role, *device, **settings)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment)
    result = None
    if os.path.exists(report):
        with open(report, encoding="utf-8") as stream:
            result = json.load(stream)
    return done, result


def moved(directory, source, path):
    dump = os.path.join(directory, "dump")
    done, result = sync(directory, "--source", source, "--path", path, "--versions", "3", "--verify", "full", "--dump", dump)
    check(done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}{done.stderr}")
    check(result["status"] == "ok" and [v["version"] for v in result["versions"]] == [1, 2, 3], f"{result['status']}: {result['versions']}")
    check(result["verify"] == {"mode": "full", "mismatches": 0}, result["verify"])
    check(result["registrations"][1:] == [0, 0], f"memory is registered once, at set-up: {result['registrations']}")
    for link in result["links"]:
        check(link["one_sided"] and link["transport"] == "rc_verbs/rxe1:1" and link["bytes"] > 0, f"reads of a worker go by its node's device: {link}")
    copied = sum(result["copied_on_trainer_bytes"])
    check(copied == 0 if path == "direct" else copied > 0, f"{path}: {copied} bytes were copied on trainers")
    with open(os.path.join(SOURCES, "models", MODEL + ".json"), encoding="utf-8") as stream:
        catalogue = json.load(stream)
    complaints = oracle.check_dump(dump, oracle.Checkpoint({**catalogue["config"], **SETS}, catalogue["architecture"], 3), [WORKER], None)
    check(not complaints, "\n".join(complaints[:20]))


def get_tables(output, rank):
    """UCX's protocol tables of gets in a rank's tagged output: pairs of a title and rows (range, description, lanes)."""
    tables, title = [], ""
    for line in output.splitlines():
        tag = re.match(r"\[\d+,(\d+)\]<\w+>:?\s*(.*)", line)
        if not tag or int(tag.group(1)) != rank:
            continue
        cells = [cell.strip() for cell in tag.group(2).split("|")[1:-1]]
        if len(cells) == 1:
            title = cells[0]
            if "ucp_get" in title:
                tables.append((title, []))
        elif len(cells) == 3 and "ucp_get" in title and ".." in cells[0]:
            tables[-1][1].append(cells)
    return tables


def lane(directory):
    """What UCX itself says that gets go by, on each worker: zero-copy reads over the device beyond small sizes, nothing emulated, and nothing
    by anything else."""
    done, _ = sync(directory, "--path", "direct", "--versions", "1", launcher=("--tag-output",), PROTO_INFO="y", LOG_LEVEL="info")
    output = done.stdout + done.stderr
    check(done.returncode == 0, f"exit code {done.returncode}\n{output}")
    for rank in (2, 3):
        tables = get_tables(output, rank)
        print("\n".join(f"measured: UCX of worker {rank - 2}: {title}: {row}" for title, rows in tables for row in rows))
        for title, rows in tables:
            for row in rows:
                check("emulation" not in row[1] and row[2] == "rc_verbs/rxe1:1", f"rank {rank}: {title}: {row}")
            check(rows[-1][0].endswith("..inf") and rows[-1][1] == "zero-copy", f"rank {rank}: {title}: {rows}")
        check(tables, f"UCX tells nothing of rank {rank}'s gets:\n{output}")


def emulated(directory):
    """Unreliable datagrams have no reads: the bytes arrive all the same, and everybody is told."""
    done, result = sync(directory, "--versions", "2", "--verify", "full", TLS="ud_verbs,self")
    check(done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}{done.stderr}")
    check(result["verify"]["mismatches"] == 0, result["verify"])
    for link in result["links"]:
        check(not link["one_sided"] and link["transport"] == "ud_verbs/rxe1:1", f"datagrams are emulated: {link}")
    check("emulated (ud_verbs/rxe1:1)" in done.stdout, f"the table says so: {done.stdout}")
    told = next(line.strip() for line in done.stdout.splitlines() if "emulated (ud_verbs/rxe1:1)" in line)
    print(f"measured: ud_verbs alone: {told}")


def small_packets(directory):
    """Over packets of 1024 bytes, as on Ethernet of MTU 1500, messages are smaller too; here are some with many checksums."""
    for node in (0, 1):
        subprocess.run(["ip", "-n", f"n{node}", "link", "set", f"d{node}", "mtu", "1500"], check=True)
    time.sleep(1)
    sets = {"hidden_size": 256, "head_dim": 64, "num_hidden_layers": 2}
    options = [part for key, value in sets.items() for part in ("--set", f"{key}={value}")]
    try:
        done, result = sync(directory, "--versions", "2", "--path", "direct", "--chunk-bytes", "4K", "--verify", "full", *options)
    finally:
        for node in (0, 1):
            subprocess.run(["ip", "-n", f"n{node}", "link", "set", f"d{node}", "mtu", "4500"], check=True)
    check(done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}{done.stderr}")
    check(result["verify"]["mismatches"] == 0 and {link["transport"] for link in result["links"]} == {"rc_verbs/rxe1:1"}, result)


def net_device(directory):
    """A device that there is not is refused, with those that there are; each rank may have its own."""
    done, _ = sync(directory, "--versions", "1", devices=("rxe0:1", "rxe7:1"))
    check(done.returncode == 2, f"exit code {done.returncode}\n{done.stdout}{done.stderr}")
    check("'rxe7:1'" in done.stderr and "rxe1:1" in done.stderr, f"it names both: {done.stderr}")
    own = [part for rank in range(4) for part in ("--net-device", f"{rank}=rxe{rank // RANKS_PER_NODE}:1")]
    done, result = sync(directory, "--versions", "1", *own, devices=("", ""))
    check(done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}{done.stderr}")
    check({link["transport"] for link in result["links"]} == {"rc_verbs/rxe1:1"}, result["links"])


def locked_memory(directory):
    """With 64 KiB of lockable memory set-up ends with one line that names limit and remedy."""
    done, _ = sync(directory, "--versions", "1", prefix=("prlimit", "--memlock=65536:65536", "setpriv", "--bounding-set=-ipc_lock"))
    check(done.returncode in (2, 4), f"exit code {done.returncode}\n{done.stdout}{done.stderr}")
    lines = [line for line in done.stderr.splitlines() if line.startswith("sluice: ")]
    check(len(lines) == 1, f"one line says it: {done.stderr}")
    check("registering" in lines[0], f"it is the registration that is refused: {lines[0]}")
    check("64 KiB" in lines[0] and "ulimit -l unlimited" in lines[0], f"it names limit and remedy: {lines[0]}")
    print(f"measured: 64 KiB of lockable memory: {lines[0]}")


def doctor(directory):
    """A node with a working device is fit, by every transport that UCX has. remedies_test.py has what can be wrong with one."""
    path = os.path.join(directory, "doctor.json")
    for _ in range(3):
        done = subprocess.run(on_node(0, SLUICE, "doctor", "--json", path, TLS="all", NET_DEVICES="rxe0:1,d0"), capture_output=True, text=True,
                              timeout=LIMIT_S, check=False)
        print(f"{done.stdout}{done.stderr}", flush=True)
        check(done.returncode == 0, f"exit code {done.returncode}")
        with open(path, encoding="utf-8") as stream:
            result = json.load(stream)
        check(result["fit"], result)
        between = [link for link in result["links"] if link["between_hosts"]]
        check(len(between) == 1 and between[0]["one_sided"] and between[0]["transport"] == "rc_verbs/rxe0:1", between)
        check({port["name"]: port["state"] for port in result["ports"]} == {"rxe0:1": "ACTIVE", "rxe1:1": "ACTIVE"}, result["ports"])


CASES = {f"{source}_{path}": lambda directory, source=source, path=path: moved(directory, source, path)
         for source in ("resident", "gathered") for path in ("direct", "packed")}
CASES.update({case.__name__: case for case in (lane, emulated, small_packets, net_device, locked_memory, doctor)})

with tempfile.TemporaryDirectory() as scratch:
    CASES[CASE](scratch)
