#!/usr/bin/env python3
"""`sluice doctor` on this machine, with what UCX may use taken away from it. doctor_test.py SLUICE"""
import json
import os
import subprocess
import sys
import tempfile

SLUICE = sys.argv[1]


def check(good, message):
    if not good:
        sys.exit(f"FAILED: {message}")


def doctor(directory, **settings):
    path = os.path.join(directory, "doctor.json")
    done = subprocess.run([SLUICE, "doctor", "--json", path], capture_output=True, text=True, timeout=100, check=False,
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
