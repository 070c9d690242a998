"""bench/multi_gpu.py: what it runs where, what it makes of figures, and that it refuses what it must. Needs no GPU.

    multi_gpu_test.py BUILD"""
import os
import subprocess
import sys
import unittest

BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench")
sys.dont_write_bytecode = True
sys.path.insert(0, BENCH)
import multi_gpu_figures as figures  # noqa: E402

BUILD = sys.argv.pop() if len(sys.argv) > 1 else None


def link(pattern, way, rate, egress_over_ingress=1.0):
    return {"pattern": pattern, "way": way, "ingress_bytes_per_second": {"median": rate}, "egress_over_ingress": egress_over_ingress}


def sync(**changed):
    return {"case": "1 -> 1", "path": "mapped", "shared": False, "share": 0.9, "wanted_share": 0.88, "prediction_off": 0.05, "predicted_s": 1.05, "median_s": 1.0,
            **changed}


class FiguresTest(unittest.TestCase):
    def test_gpus_are_read_from_info(self):
        # tests/cuda/cuda_probe_test.cc holds describe() to these two lines.
        described = ("CUDA 13.0, driver for 13.1, NCCL 2.28.9 (library 2.28.3); 0: NVIDIA H200, 9.0, 139.8 GiB; "
                     "1: NVIDIA B200, 10.0, 180.0 GiB")
        self.assertEqual(figures.gpus_of(f"UCX   1.22.0 (x)\nCUDA  {described}\n"), [("NVIDIA H200", 139.8 * 2 ** 30), ("NVIDIA B200", 180.0 * 2 ** 30)])
        described = "CUDA 13.0, NCCL 2.28.9 (no library here); no CUDA driver"
        self.assertEqual(figures.gpus_of(f"CUDA  {described}\n"), described)
        self.assertIsInstance(figures.gpus_of(""), str)

    def test_every_case_is_run_or_listed_with_the_gpus_it_needs(self):
        for gpus, able, needs in ((1, ["1 -> 1", "2 -> 2", "4 -> 4"], {}), (2, ["1 -> 1"], {"2 -> 2": 4, "4 -> 4": 8}),
                                  (4, ["1 -> 1", "2 -> 2"], {"4 -> 4": 8}), (8, ["1 -> 1", "2 -> 2", "4 -> 4"], {})):
            runs, without = figures.runs_for(gpus, figures.SYNCS)
            self.assertEqual((list(runs), without), (able, needs), gpus)

    def test_patterns_are_those_that_links_are_measured_in(self):
        self.assertEqual([figures.pattern_of(case, 8) for case in figures.SYNCS.values()], ["0 -> 1", "2:2", "4:4"])
        self.assertEqual({figures.pattern_of(case, 1) for case in figures.SYNCS.values()}, {"0 -> 1"})

    def test_the_bound_is_the_fastest_way_over_the_busier_side(self):
        rows = [link("0 -> 1", "one kernel", 380e9), link("0 -> 1", "gets of 256 MiB", 300e9), link("1:2", "one kernel", 190e9, 2.0), link("all", "one copy", 1e9)]
        self.assertEqual(figures.rate_of(rows, "0 -> 1"), 380e9)
        self.assertEqual(figures.rate_of(rows, "0 -> 1", figures.READ_BY["direct"]), 300e9)
        self.assertEqual(figures.rate_of(rows, "1:2"), 380e9)
        share = figures.share_of(0.9, [1.0, 1.2, 0.9])
        self.assertEqual((share["median_s"], share["share"], share["share_of_each"][2]), (1.0, 0.9, 1.0))
        self.assertAlmostEqual(figures.prediction(0.95, [1.0, 1.2, 0.9])["prediction_off"], -0.05)

    def test_what_shares_a_gpu_needs_the_memory_of_all_ranks(self):
        plan = {"trainer_ranks": [{"rank": 0, "owned_bytes": 100, "served_bytes": 7}], "worker_ranks": [{"rank": 0, "bytes": 60}, {"rank": 1, "bytes": 40}]}
        self.assertEqual(figures.memory_needed(plan, 10), 230)

    def test_misses_are_named_and_shared_gpus_are_not_judged(self):
        results = {"syncs": [sync(), sync(share=0.87), sync(prediction_off=-0.11), sync(share=0.1, prediction_off=3, shared=True)],
                   "gathered": [sync(case="fsdp=4", path="gather nccl", wanted_share=1 / 1.2, share=0.84)],
                   "slices": {"share": 0.84, "shared": False}}
        lines = figures.missed(results)
        self.assertEqual(len(lines), 3, lines)
        self.assertRegex(lines[0], "share 0.870, wanted 0.880")
        self.assertRegex(lines[1], "predicted 1050.0 ms, measured 1000.0 ms")
        self.assertRegex(lines[2], "slices mapped: share 0.840")
        self.assertEqual(figures.missed({"syncs": [], "gathered": [], "slices": None}), [])

    def test_multicast_is_seen_in_the_environment(self):
        for environment in ({}, {"NCCL_NVLS_ENABLE": "0"}, {"NCCL_ALGO": "Ring"}, {"NCCL_ALGO": "^NVLS"}):
            self.assertIsNone(figures.multicast_in(environment), environment)
        for environment in ({"NCCL_NVLS_ENABLE": "1"}, {"NCCL_NVLS_ENABLE": ""}, {"NCCL_MNNVL_ENABLE": "2"}, {"NCCL_ALGO": "nvlstree"}):
            self.assertIsNotNone(figures.multicast_in(environment), environment)


class RefusalTest(unittest.TestCase):
    def refused(self, **environment):
        done = subprocess.run([sys.executable, os.path.join(BENCH, "multi_gpu.py"), BUILD], capture_output=True, text=True, timeout=50, check=False,
                              env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment})
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertRegex(done.stderr, r"\Amulti_gpu: [^\n]+\n\Z")
        return done.stderr

    def test_without_a_gpu_it_says_so(self):
        self.assertIn("no GPU", self.refused())

    def test_multicast_has_to_stay_off(self):
        self.assertIn("NCCL_NVLS_ENABLE=1", self.refused(NCCL_NVLS_ENABLE="1"))


if __name__ == "__main__":
    unittest.main()
