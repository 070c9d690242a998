"""bench/cpu.py: costs are found in figures that are made of them, and noise does not pass for a small cost."""
import os
import sys
import unittest

BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench")
sys.dont_write_bytecode = True
sys.path.insert(0, BENCH)
import cpu  # noqa: E402


def runs_of(us_per_group, us_per_chunk, **off_by_s):
    """What the four runs of a case would give, and how many seconds each is off."""
    out = {}
    for groups, count, moved in (("many", 258, 200e6), ("few", 66, 190e6)):
        for chunks, of_group in (("large", 4), ("small", 40)):
            own = count * us_per_group * 1e-6 + count * of_group * us_per_chunk * 1e-6 + moved * 1e-10
            out[groups, chunks] = {"worker": {"bytes": moved, "groups": count, "chunks": count * of_group,
                                              "own_s": own + off_by_s.get(f"{groups}_{chunks}", 0)}}
    return out


class CpuTest(unittest.TestCase):
    def test_costs_are_those_that_the_figures_are_made_of(self):
        cost = cpu.costs(runs_of(120, 9), "worker")
        self.assertAlmostEqual(cost["us_per_group"], 120)
        self.assertAlmostEqual(cost["us_per_chunk"], 9)
        for figure, limit in cpu.WANTED.items():
            self.assertAlmostEqual(cpu.noise_of(cost[f"{figure}_takes"]), 0)
            self.assertIsNone(cpu.why_missed(cost[f"{figure}_takes"], limit))
        self.assertEqual(cpu.shown(cost["us_per_group_takes"]), "120.0")

    def test_what_is_above_its_limit_is_missed(self):
        cost = cpu.costs(runs_of(420, 31), "worker")
        self.assertRegex(cpu.why_missed(cost["us_per_group_takes"], 300), r"\A420.0 ")
        self.assertRegex(cpu.why_missed(cost["us_per_chunk_takes"], 30), r"\A31.0 ")

    def test_a_large_negative_cost_is_not_met(self):
        # Both runs of few groups were slow: groups seem to cost less than nothing, and both takes agree.
        takes = cpu.costs(runs_of(100, 9, few_large=0.04, few_small=0.04), "worker")["us_per_group_takes"]
        self.assertLess(max(takes), -100)
        self.assertRegex(cpu.shown(takes), r"\Abelow noise \(\d+\.\d\)\Z")
        self.assertIn("lost in noise", cpu.why_missed(takes, 100))
        self.assertIsNone(cpu.why_missed([-20.0, 10.0], 100), "noise within the limit leaves it shown")

    def test_takes_that_differ_more_than_the_limit_show_nothing(self):
        self.assertIn("lost in noise", cpu.why_missed([-400.0, 420.0], 300))
        self.assertEqual(cpu.shown([-400.0, 420.0]), "below noise (410.0)")


if __name__ == "__main__":
    unittest.main()
