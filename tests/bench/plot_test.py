"""bench/plot.py draws the JSON of every benchmark, which it knows by the name that each gives itself."""
import importlib.util
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


def rate(median):
    return {"median": median, "min": median / 2, "max": median * 2}


GPU_ROW = {"name": "pack 768B", "bytes_moved": 8, "bytes_per_second": rate(2e12), "copy_bytes_per_second": rate(4e12), "share": rate(0.5)}
RATES_ROW = {"name": "0 -> 1, one kernel", "ingress_bytes_per_second": rate(380e9)}
SYNC_ROW = {"case": "1 -> 1", "path": "mapped", "shared": False, "share": 0.9, "wanted_share": 0.88}
# What each benchmark writes, as far as it is drawn, and the first row of it.
SAMPLES = {
    "pull": ({"transport": "cma/memory", "series": [{"name": "tp2 packed", "share_of_raw_get": rate(1.25)}]}, ("tp2 packed", 1.25, 1.0)),
    "small": ({"bytes": 256 << 20, "rows": [{"link": "tcp", "pieces": "4 KiB", "raw_get_s": rate(0.1),
                                             **{way: {"seconds": rate(0.2)} for way in ("auto", "direct", "packed")}}]}, ("tcp, 4 KiB, auto", 0.2, 0.1)),
    "cluster": ({"nodes": 8, "mbit": 200, "cases": [{"case": "b", "trainer": "pp=4", "workers": ["tp=2", "dp=2"], "share": 0.9, "wanted_share": 0.88}]},
                ("b: pp=4 -> tp=2 + dp=2", 0.9, 0.88)),
    "ladder": ({"nodes": 8, "mbit": 200, "cases": [{"case": "b", "steps": [{"step": "pull in place", "median_s": 4.5, "bound_s": 4.2}]}]},
               ("b: pull in place", 4.5, 4.2)),
    "cpu": ({"wanted": {"us_per_group": 300, "us_per_chunk": 30}, "cases": [{"case": "d", "side": "worker", "us_per_group": 12.5, "us_per_chunk": 3}]},
            ("d, worker: a group", 12.5, 300)),
    "disturbed": ({"mbit": 200, "cases": {"owner": {"quiet_s": 2.0, "disturbed_s": 3.0}}}, ("owner, quiet", 2.0, None)),
    "sweep": ({"path": "packed", "configurations": [{"slots": 2, "chunk_bytes": "4M", "median_s": 0.5}, {"slots": 4, "chunk_bytes": "4M", "median_s": 0.4}]},
              ("2 x 4M", 0.5, 0.4)),
    "broadcast": ({"bytes": 10 ** 8, "seconds": [1.5, 1.0], "median_s": 1.25}, ("repetition 1", 1.5, 1.25)),
    "regroup": ({"bytes": 10 ** 8, "seconds": [1.5, 1.0], "median_s": 1.25}, ("repetition 1", 1.5, 1.25)),
    "gpu copy": ({"device": "NVIDIA H200", "rows": [GPU_ROW]}, ("pack 768B", 0.5, 1.0)),
    "gpu quantise": ({"device": "NVIDIA H200", "rows": [GPU_ROW]}, ("pack 768B", 0.5, 1.0)),
    "gpu checksum": ({"device": "NVIDIA H200", "rows": [GPU_ROW]}, ("pack 768B", 0.5, 1.0)),
    "gpu pull": ({"rows": [{"name": "whole model packed", "share_of_raw_get": rate(0.9)}]}, ("whole model packed", 0.9, 1.0)),
    "gpu pairs": ({"rows": [{"name": "whole model, two and two", "seconds": rate(0.2), "copy_seconds": rate(0.1)}]}, ("whole model, two and two", 0.2, 0.1)),
    "gpu links": ({"rows": [RATES_ROW]}, ("0 -> 1, one kernel", 380.0, None)),
    "gpu collectives": ({"rows": [RATES_ROW]}, ("0 -> 1, one kernel", 380.0, None)),
    "gpu broadcast": ({"rows": [{"name": "broadcast by NCCL", "seconds": rate(0.3)}]}, ("broadcast by NCCL", 0.3, None)),
    "multi gpu": ({"model": "M", "gpus": ["NVIDIA H200"], "slices": {**SYNC_ROW, "path": "tp slices"}, "syncs": [SYNC_ROW], "gathered": [],
                   "broadcasts": [{"case": "1 -> 1", "share": 0.4}]}, ("1 -> 1, tp slices", 0.9, 0.88)),
}
# Which keys belong to the names of what is measured, and not to the format.
NO_KEYS = {"owner"}


def sources():
    """Of the benchmarks; bench/plot.py is none."""
    for file in sorted(os.listdir(BENCH)):
        if file.endswith((".cc", ".h", ".py")) and file != "plot.py":
            with open(os.path.join(BENCH, file), encoding="utf-8") as stream:
                yield stream.read()


def names():
    for source in sources():
        yield from NAMED.findall(source)


def keys(data):
    if isinstance(data, dict):
        yield from data
        data = list(data.values())
    if isinstance(data, list):
        for part in data:
            yield from keys(part)


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

    def test_what_each_benchmark_writes_is_drawn(self):
        self.assertEqual(set(SAMPLES), set(plot.KINDS))
        for name, (data, first) in SAMPLES.items():
            with self.subTest(name):
                title, unit, rows = self.table({"bench": name, **data})
                self.assertEqual(rows[0], first)
                self.assertTrue(title and unit)
                self.draw(title, unit, rows)

    def draw(self, title, unit, rows):
        # matplotlib is the user's to install.
        if importlib.util.find_spec("matplotlib"):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "out.svg")
                plot.draw(title, unit, rows, path)
                self.assertGreater(os.path.getsize(path), 1000)

    def test_a_raw_get_alone_is_drawn(self):
        _, _, rows = self.table({"bench": "pull", "raw_get": {"bytes_per_second": rate(2e9)}})
        self.assertEqual(rows, [("raw get", 2e9, None)])

    def test_samples_have_the_keys_that_benchmarks_write(self):
        text = "".join(sources())
        for name, (data, _) in SAMPLES.items():
            for key in set(keys(data)) - NO_KEYS:
                self.assertIn(f'"{key}"', text, f"no benchmark writes {key} any more, of which {name} is drawn")

    def test_what_google_benchmark_writes_is_drawn(self):
        row = {"name": "BM_Copy/768", "run_type": "iteration", "real_time": 2.0, "time_unit": "ms"}
        self.assertEqual(self.table({"benchmarks": [row]})[1:], ("ms", [("BM_Copy/768", 2.0, None)]))
        self.assertEqual(self.table({"benchmarks": [{**row, "bytes_per_second": 5e9}]})[1:], ("GB/s", [("BM_Copy/768", 5.0, None)]))

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
