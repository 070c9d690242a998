#!/usr/bin/env python3
"""`sluice doctor` on this machine, with what UCX may use taken away from it. doctor_test.py SLUICE"""
import ctypes
import json
import os
import platform
import struct
import subprocess
import sys
import tempfile

SLUICE = sys.argv[1]


def check(good, message):
    if not good:
        sys.exit(f"FAILED: {message}")


def forbid_cma():
    """For this process and those that it starts process_vm_readv ends with EPERM, as seccomp profiles of containers have it."""
    load_number, if_equal, allow_or_refuse = 0x20, 0x15, 0x06
    process_vm_readv, eperm = 310, 1
    program = b"".join(struct.pack("HBBI", *step) for step in (
        (load_number, 0, 0, 0), (if_equal, 0, 1, process_vm_readv), (allow_or_refuse, 0, 0, 0x00050000 | eperm), (allow_or_refuse, 0, 0, 0x7FFF0000)))
    code = ctypes.create_string_buffer(program)
    filter_of = ctypes.create_string_buffer(struct.pack("HP", 4, ctypes.addressof(code)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(38, 1, 0, 0, 0) != 0 or prctl(22, 2, filter_of, 0, 0) != 0:  # PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP
        raise OSError(ctypes.get_errno(), "prctl")


def doctor(directory, prepare=None, **settings):
    path = os.path.join(directory, "doctor.json")
    done = subprocess.run([SLUICE, "doctor", "--json", path], capture_output=True, text=True, timeout=100, check=False, preexec_fn=prepare,
                          env={**os.environ, **{f"UCX_{key}": value for key, value in settings.items()}})
    with open(path, encoding="utf-8") as stream:
        report = json.load(stream)
    check(done.returncode == (0 if report["fit"] else 1), f"exit code {done.returncode}, fit: {report['fit']}\n{done.stdout}{done.stderr}")
    links = {("between" if link["between_hosts"] else "within", link["memory"]): link for link in report["links"]}
    return report, links, done.stdout


with tempfile.TemporaryDirectory() as scratch:
    report, links, page = doctor(scratch, TLS="tcp,cma,self", NET_DEVICES="lo")
    within, between = links["within", "host"], links["between", "host"]
    check(within["transport"] == "cma/memory" and within["one_sided"], f"CMA is one-sided: {within}\n{page}")
    check(within["bytes_per_second"] > 1e6, within)
    check(between["transport"] == "tcp/lo" and not between["one_sided"], f"TCP is emulated, and hosts have no CMA: {between}\n{page}")
    check(not report["fit"] and "remedy:" in page, page)

    _, links, page = doctor(scratch, TLS="tcp,self", NET_DEVICES="lo")
    check(not links["within", "host"]["one_sided"], f"without CMA there is TCP: {page}")

    _, links, page = doctor(scratch, TLS="cma,self", NET_DEVICES="lo")
    check(links["between", "host"]["problem"] and "fails" in page, f"nothing is left between hosts: {page}")

    if platform.machine() == "x86_64":
        report, links, page = doctor(scratch, forbid_cma, TLS="tcp,cma,self", NET_DEVICES="lo")
        found = [finding["what"] for finding in report["findings"] if finding["subject"] == "ptrace"]
        check(len(found) == 1 and "so cma does not work (mapped copies do): process_vm_readv" in found[0], f"mapped copies need no CMA: {found}\n{page}")
        check(not links["within", "host"]["one_sided"], f"without CMA there is TCP: {page}")
