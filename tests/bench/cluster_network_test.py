"""bench/cluster_network.py: what other clusters have left is seen, and nothing is left. In a network namespace of its own.

Exits with 77, saying why, where network namespaces cannot be made."""
import os
import signal
import subprocess
import sys
import unittest

BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench")
sys.dont_write_bytecode = True
sys.path.insert(0, BENCH)
import cluster_network  # noqa: E402

SKIPPED = 77
# Namespaces are named by files: a folder of our own for them, too.
OWN_NETWORK = ("unshare", "--net", "--mount", "sh", "-c", 'mkdir -p /run/netns && mount -t tmpfs names /run/netns && exec "$@"', "sh")
MAKES_A_CLUSTER = "ip netns add try && ip link add try0 type veth peer name e0 netns try && tc qdisc add dev try0 root tbf rate 1mbit burst 64kb latency 50ms"
# A cluster that says when it is there, and waits to be ended.
CLUSTER = "import signal, cluster_network\nwith cluster_network.Network(2, 200): print('up', flush=True); signal.pause()"


def left():
    return cluster_network.run("ip", "-o", "link", "show", "type", "bridge") + cluster_network.run("ip", "netns", "list")


def cluster():
    process = subprocess.Popen([sys.executable, "-B", "-c", CLUSTER], cwd=BENCH, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if process.stdout.readline() != "up\n":
        raise AssertionError(process.communicate()[1])
    return process


class ClusterNetworkTest(unittest.TestCase):
    def refused(self):
        with self.assertRaises(SystemExit) as refusal, cluster_network.Network(2, 200):
            pass
        self.assertRegex(str(refusal.exception), r"\Acluster: [^\n]+\Z")
        return str(refusal.exception)

    def test_a_stale_bridge_is_named(self):
        cluster_network.run("ip", "link", "add", "sl7b", "type", "bridge")
        cluster_network.run("ip", "addr", "add", "10.88.0.254/24", "dev", "sl7b")
        cluster_network.run("ip", "netns", "add", "sl7n0")
        cluster_network.run("ip", "netns", "add", "sl77n0")
        self.assertTrue(self.refused().endswith(" sl7b has 10.88.0.254/24: another benchmark is running, or was killed; if so, remove what it left: "
                                                "ip link del sl7b; ip netns del sl7n0"))
        for command in ("link del sl7b", "netns del sl7n0", "netns del sl77n0"):
            cluster_network.run("ip", *command.split())

    def test_an_address_of_somebody_else_is_named(self):
        cluster_network.run("ip", "link", "add", "other0", "type", "bridge")
        cluster_network.run("ip", "addr", "add", "10.88.0.1/16", "dev", "other0")
        self.assertIn("other0 has 10.88.0.1/16", self.refused())
        cluster_network.run("ip", "link", "del", "other0")

    def test_a_running_cluster_is_seen_and_a_killed_one_can_be_removed_as_it_says(self):
        process = cluster()
        self.assertIn(f"sl{process.pid % 100000}b", self.refused())
        process.kill()
        process.communicate()
        remedy = self.refused().split("what it left: ")[1]
        subprocess.run(remedy, shell=True, check=True)
        self.assertEqual(left(), "")

    def test_signals_leave_nothing(self):
        for number in (signal.SIGTERM, signal.SIGHUP):
            process = cluster()
            process.send_signal(number)
            self.assertIn("ended by a signal", process.communicate()[1])
            self.assertEqual(left(), "", number)


if __name__ == "__main__":
    if "OWN_NETWORK" not in os.environ:
        able = subprocess.run([*OWN_NETWORK, "sh", "-c", MAKES_A_CLUSTER], capture_output=True, text=True, check=False)
        if able.returncode != 0:
            print("skipped: no network namespaces here:", able.stderr.strip())
            sys.exit(SKIPPED)
        os.execvpe(OWN_NETWORK[0], [*OWN_NETWORK, sys.executable, *sys.argv], {**os.environ, "OWN_NETWORK": "1"})
    unittest.main()
