"""bench/plot.py knows the JSON of every benchmark, by the name that each gives itself."""
import json
import os
import re
import sys
import tempfile
import unittest

BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench")
sys.dont_write_bytecode = True
sys.path.insert(0, BENCH)
import plot  # noqa: E402

# In C++ {"bench", "pull"} or {"bench", "gpu " + name}, in Python {"bench": "cluster"}.
NAMED = re.compile(r'"bench"[,:] *"(\w[\w ]*)"( \+)?')


def names():
    for file in sorted(os.listdir(BENCH)):
        if file.endswith((".cc", ".py")):
            with open(os.path.join(BENCH, file), encoding="utf-8") as stream:
                yield from NAMED.findall(stream.read())


class PlotTest(unittest.TestCase):
    def table(self, data):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as stream:
            json.dump(data, stream)
            stream.flush()
            return plot.table_of(stream.name)

    def test_every_benchmark_can_be_drawn(self):
        found = list(names())
        self.assertGreaterEqual(len(found), 8)
        for name, is_prefix in found:
            known = any(kind.startswith(name) for kind in plot.KINDS) if is_prefix else name in plot.KINDS
            self.assertTrue(known, f"bench/plot.py does not know {name}")

    def test_rows_are_what_was_measured(self):
        title, unit, rows = self.table({"bench": "cpu", "wanted": {"us_per_group": 300, "us_per_chunk": 30},
                                        "cases": [{"case": "d", "side": "worker", "us_per_group": 12.5, "us_per_chunk": 3}]})
        self.assertIn("transport thread", title)
        self.assertIn("microseconds", unit)
        self.assertEqual(rows, [("d, worker: a group", 12.5, 300), ("d, worker: a chunk", 3, 30)])

    def test_what_is_no_benchmark_is_refused_in_one_line(self):
        for data in ({"bench": "nothing"}, {"bench": "cpu", "wanted": {}, "cases": []}, [1]):
            with self.assertRaises(SystemExit) as refused:
                self.table(data)
            self.assertRegex(str(refused.exception), r"\Aplot: [^\n]+\Z")


if __name__ == "__main__":
    unittest.main()
