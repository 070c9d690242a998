"""A cluster on one machine: a network namespace per node, joined by a bridge over links that are shaped in both directions.

Needs root, iproute2, and the kernel's tbf; nothing else of the machine is touched. See docs/benchmarks.md."""
import os
import re
import shutil
import signal
import subprocess
import sys

SUBNET = "10.88.0"
SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def need(condition, what):
    if not condition:
        sys.exit(f"cluster: {what}")


def run(*command, check=True):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    need(done.returncode == 0 or not check, f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def end(*_):
    # A shell that is hung up tells its jobs once more: that must not stop what removes the links.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    sys.exit("cluster: ended by a signal")


def refuse_other_clusters():
    """Two bridges of one address would split what is sent to it: none of the nodes would find the others."""
    # "5: sl123b    inet 10.88.0.254/24 scope global sl123b"
    for line in run("ip", "-o", "addr", "show", "to", f"{SUBNET}.0/24").splitlines():
        device, _, address = line.split()[1:4]
        prefix = re.fullmatch(r"(sl\d+)b", device)
        need(prefix, f"{device} has {address}, and {SUBNET}.0/24 is to be the nodes': take it from {device}, or change SUBNET in {__file__}")
        nodes = [name for name in (words.split()[0] for words in run("ip", "netns", "list").splitlines()) if re.fullmatch(rf"{prefix[1]}n\d+", name)]
        remedy = "; ".join([f"ip link del {device}", *(f"ip netns del {node}" for node in nodes)])
        sys.exit(f"cluster: {device} has {address}: another benchmark is running, or was killed; if so, remove what it left: {remedy}")


class Network:
    """`count` nodes whose NIC carries `mbit` Mbit/s per direction. A context: everything is removed on leaving it."""

    def __init__(self, count, mbit):
        need(os.geteuid() == 0, "network namespaces need root; run it as root, or in a container that is root")
        for tool in ("ip", "tc"):
            need(shutil.which(tool), f"{tool} is missing; install iproute2")
        self.count, self.mbit = count, mbit
        self.prefix = f"sl{os.getpid() % 100000}"
        self.bridge = f"{self.prefix}b"

    def node(self, number):
        return f"{self.prefix}n{number}"

    def port(self, number):
        return f"{self.prefix}p{number}"

    def __enter__(self):
        refuse_other_clusters()
        # Whoever ends us, by `timeout` say, gets a machine without our links all the same. Under nohup SIGHUP stays ignored.
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, end)
        try:
            run("ip", "link", "add", self.bridge, "type", "bridge")
            run("ip", "addr", "add", f"{SUBNET}.254/24", "dev", self.bridge)
            run("ip", "link", "set", self.bridge, "up")
            for number in range(self.count):
                self._add_node(number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _add_node(self, number):
        node, port = self.node(number), self.port(number)
        run("ip", "netns", "add", node)
        run("ip", "link", "add", port, "type", "veth", "peer", "name", "e0", "netns", node)
        run("ip", "link", "set", port, "master", self.bridge, "up")
        for command in (("addr", "add", f"{SUBNET}.{number + 1}/24", "dev", "e0"), ("link", "set", "e0", "up"), ("link", "set", "lo", "up")):
            run("ip", "-n", node, *command)
        self.shape(number, self.mbit)

    def shape(self, number, mbit):
        """Sets the rate of one node's NIC, both directions."""
        limit = ("root", "tbf", "rate", f"{mbit}mbit", "burst", "64kb", "latency", "50ms")
        run("tc", "qdisc", "replace", "dev", self.port(number), *limit)
        run("tc", "-n", self.node(number), "qdisc", "replace", "dev", "e0", *limit)

    def counters(self, number):
        """(bytes received, bytes sent) by the node's NIC so far."""
        base = f"/sys/class/net/{self.port(number)}/statistics"
        values = []
        for name in ("tx_bytes", "rx_bytes"):  # The port's side of the link sees the opposite directions.
            with open(f"{base}/{name}", encoding="ascii") as stream:
                values.append(int(stream.read()))
        return tuple(values)

    def launch(self, programs, timeout):
        """mpirun with one rank per program, `programs` = [(node, command, environment)]; returns the finished process."""
        environment = {**os.environ, "PMIX_MCA_ptl_tcp_if_include": self.bridge, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                       "OMPI_MCA_pml": "ob1", "OMPI_MCA_osc": "^ucx"}
        command = ["mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", f"{SUBNET}.0/24"]
        for place, (node, program, extra) in enumerate(programs):
            settings = {"UCX_NET_DEVICES": "e0", "UCX_TLS": "tcp,self", **extra}  # All nodes are one kernel: no shared memory, no CMA.
            command += [":"] if place else []
            command += ["-n", "1", "ip", "netns", "exec", self.node(node), "env", *(f"{key}={value}" for key, value in settings.items()), *program]
        try:
            return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, env=environment)
        except subprocess.TimeoutExpired:
            sys.exit(f"cluster: {' '.join(programs[0][1][:2])} did not end within {timeout} s")

    def __exit__(self, *_):
        for number in range(self.count):
            run("ip", "netns", "del", self.node(number), check=False)  # Its end of the link goes with it, and so the other.
            run("ip", "link", "del", self.port(number), check=False)
        run("ip", "link", "del", self.bridge, check=False)
