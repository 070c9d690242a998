"""A cluster on one machine: a network namespace per node, joined by a bridge over links that are shaped in both directions.

Needs root, iproute2, and the kernel's tbf; nothing else of the machine is touched. See docs/benchmarks.md."""
import os
import shutil
import signal
import subprocess
import sys

SUBNET = "10.88.0"


def need(condition, what):
    if not condition:
        sys.exit(f"cluster: {what}")


def run(*command, check=True):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    need(done.returncode == 0 or not check, f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


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
        need(not self._leftovers(), f"{self.bridge} exists already: remove it with `ip link del {self.bridge}`")
        # Whoever ends us, by `timeout` say, gets a machine without our links all the same.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("cluster: ended by a signal"))
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

    def _leftovers(self):
        return subprocess.run(("ip", "link", "show", self.bridge), capture_output=True, check=False).returncode == 0

    def __exit__(self, *_):
        for number in range(self.count):
            run("ip", "netns", "del", self.node(number), check=False)  # Its end of the link goes with it, and so the other.
            run("ip", "link", "del", self.port(number), check=False)
        run("ip", "link", "del", self.bridge, check=False)
