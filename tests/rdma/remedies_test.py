#!/usr/bin/env python3
"""Each finding of `sluice doctor` that a node with verbs can have: brought about, found with its remedy, and gone when that is applied.
In the guest of run.sh, as root. remedies_test.py SLUICE"""
import glob
import json
import os
import subprocess
import sys
import time

SLUICE = sys.argv[1]
NODES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "guest", "nodes.sh")
LIMIT_S = 90
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
OLD_UCX = "/usr/lib/x86_64-linux-gnu"
UCX_MODULES = "/opt/ucx/lib/ucx"
VERBS = "/tmp/verbs-module"  # while UCX has none
HIDDEN = "/dev/hidden"


def run(command):
    subprocess.run(command, shell=True, check=True, timeout=LIMIT_S)


def doctor(prefix=(), **variables):
    """What doctor finds on node 0: the findings, and its page."""
    settings = {"UCX_NET_DEVICES": "rxe0:1,d0", **variables}
    command = ["ip", "netns", "exec", "n0", *prefix, "env", *(f"{key}={value}" for key, value in settings.items()), SLUICE, "doctor", "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode not in (0, 1):
        sys.exit(f"FAILED: exit code {done.returncode} of {' '.join(command)}\n{done.stdout}{done.stderr}")
    report = json.loads(done.stdout)
    if done.returncode != (0 if report["fit"] else 1):
        sys.exit(f"FAILED: exit code {done.returncode}, fit: {report['fit']}\n{done.stderr}")
    return report["findings"], done.stderr


def ports_up():
    for _ in range(50):
        states = [open(path, encoding="ascii").read() for path in glob.glob("/sys/class/infiniband/rxe[01]/ports/1/state")]
        if len(states) == 2 and all("ACTIVE" in state for state in states):
            return
        time.sleep(0.1)
    sys.exit("FAILED: the ports do not come up again")


def interfaces(state):
    for node in (0, 1):
        run(f"bash {NODES} interface {node} {state}")


def hide_files():
    os.makedirs(HIDDEN)
    for path in glob.glob("/dev/infiniband/uverbs*"):
        os.rename(path, os.path.join(HIDDEN, os.path.basename(path)))


def show_files():
    for path in glob.glob(HIDDEN + "/*"):
        os.rename(path, os.path.join("/dev/infiniband", os.path.basename(path)))
    os.rmdir(HIDDEN)


def nothing():
    """What is changed is what doctor is started with."""


class Case:
    """spoil, doctor(spoiled), heal, doctor(healed). `expected`: subject, severity, part of what is found, part of the remedy."""

    def __init__(self, how, applied, expected, spoil=nothing, heal=nothing, spoiled=None, healed=None):
        self.how, self.applied, self.expected = how, applied, expected
        self.spoil, self.heal = spoil, heal
        self.spoiled, self.healed = spoiled or {}, healed or {}


def without(capability, *limits):
    return {"prefix": (*limits, "setpriv", f"--bounding-set=-{capability}")}


CASES = [
    Case("LD_LIBRARY_PATH of UCX 1.13", "the UCX of UCX_ROOT again",
         [("UCX", "bad", "1.13", "UCX_ROOT")], spoiled={"LD_LIBRARY_PATH": OLD_UCX}),
    Case("a UCX without verbs", "a UCX with verbs",
         [("UCX", "bad", "uses none of this node's verbs devices", "built with verbs"),
          ("pull", "bad", "between hosts: tcp/d0, emulated", "see UCX")],
         spoil=lambda: run(f"mkdir {VERBS} && mv {UCX_MODULES}/libuct_ib* {VERBS}"), heal=lambda: run(f"mv {VERBS}/* {UCX_MODULES}")),
    Case("UCX_TLS=tcp,self", "UCX_TLS unset",
         [("pull", "bad", "within the host: tcp/d0, emulated", "let UCX use cma"),
          ("pull", "bad", "between hosts: tcp/d0, emulated", "unset UCX_TLS")], spoiled={"UCX_TLS": "tcp,self"}),
    Case("UCX_TLS=ud_verbs,self", "UCX_TLS=rc,self",
         [("pull", "bad", "between hosts: ud_verbs/rxe0:1, emulated", "UCX_TLS=rc,self")],
         spoiled={"UCX_TLS": "ud_verbs,self"}, healed={"UCX_TLS": "rc,self"}),
    Case("ulimit -l 64, no CAP_IPC_LOCK", "ulimit -l unlimited",
         [("memory", "bad", "locked memory: at most 64 KiB", "ulimit -l unlimited"),
          ("pull", "bad", "the limit for locked memory is 64 KiB", "raise the limit of locked memory")],
         spoiled=without("ipc_lock", "prlimit", "--memlock=65536:65536"),
         healed=without("ipc_lock", "prlimit", "--memlock=unlimited:unlimited")),
    Case("/dev/shm of 64 MiB", "mount -o remount,size=8g /dev/shm",
         [("memory", "note", "/dev/shm", "remount,size=8g")],
         spoil=lambda: run("mount -o remount,size=64m /dev/shm"), heal=lambda: run("mount -o remount,size=8g /dev/shm")),
    Case("kernel.yama.ptrace_scope=2, no CAP_SYS_PTRACE", "sysctl kernel.yama.ptrace_scope=0",
         [("ptrace", "note", "so cma does not work (mapped copies do)", "ptrace_scope=0")],
         spoil=lambda: run("echo 2 >/proc/sys/kernel/yama/ptrace_scope"),
         heal=lambda: run("echo 0 >/proc/sys/kernel/yama/ptrace_scope"),
         spoiled=without("sys_ptrace"), healed=without("sys_ptrace")),
    Case("uverbs files of mode 0600, another user", "mode 0666",
         [("devices", "bad", "may not open /dev/infiniband/uverbs*", "0666")],
         spoil=lambda: run("chmod 600 /dev/infiniband/uverbs*"), heal=lambda: run("chmod 666 /dev/infiniband/uverbs*"),
         spoiled={"prefix": NOBODY}, healed={"prefix": NOBODY}),
    Case("no uverbs files", "the files in /dev/infiniband again, as --device does",
         [("devices", "bad", "there is no /dev/infiniband/uverbs*", "--device=/dev/infiniband")], spoil=hide_files, heal=show_files),
    Case("both interfaces down", "ip link set d0 up",
         [("devices", "note", "rxe0:1 DOWN", "ip link set NAME up"),
          ("pull", "bad", "between hosts", "no port is active: see devices")],
         spoil=lambda: interfaces("down"), heal=lambda: (interfaces("up"), ports_up())),
    Case("no driver (rdma link delete)", "the driver again (rdma link add)",
         [("devices", "note", "no verbs devices", "load the driver"),
          ("pull", "bad", "between hosts: tcp/d0, emulated", "no verbs device")],
         spoil=lambda: [run(f"ip netns exec n{node} rdma link delete rxe{node}") for node in (0, 1)],
         heal=lambda: ([run(f"ip netns exec n{node} rdma link add rxe{node} type rxe netdev d{node}") for node in (0, 1)], ports_up())),
]


def matching(findings, expected):
    subject, severity, what, remedy = expected
    return [f for f in findings if f["subject"] == subject and f["severity"] == severity and what in f["what"] and remedy in f["remedy"]]


failures = []
good, good_page = doctor()
if any(finding["severity"] == "bad" for finding in good):
    failures.append(f"the node is not fit to begin with:\n{good_page}")
for case in CASES:
    case.spoil()
    try:
        found, page = doctor(**case.spoiled)
    finally:
        case.heal()
    for expected in case.expected:
        if not matching(found, expected):
            failures.append(f"{case.how}: not found: {expected}\n{page}")
    # Without what it was started with, and nothing else changed, it is as it was at first.
    as_before = case.heal is nothing and not case.healed
    findings, page = (good, good_page) if as_before else doctor(**case.healed)
    for expected in case.expected:
        if [f for f in findings if f["subject"] == expected[0] and f["severity"] != "ok" and expected[2] in f["what"]]:
            failures.append(f"{case.applied}: does not help against: {expected}\n{page}")
        else:
            remedy = next((f["remedy"] for f in matching(found, expected)), "")
            print(f"measured: doctor | {case.how} | {expected[0]}: {expected[2]} | {remedy} | applied: {case.applied}: gone", flush=True)
if failures:
    sys.exit("FAILED: " + "\n".join(failures))
