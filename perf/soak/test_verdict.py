"""python3 -m unittest discover -s perf/soak"""

import unittest

import verdict

HELD = {"processes": 5, "server_threads": 10, "server_descriptors": 36, "server_bytes": 30 << 20, "all_bytes": 90 << 20}


def samples(**growth):
    """Ten minutes of samples, one a second, in which these grow evenly by so much."""
    return [
        {"at_s": at, **{name: held + growth.get(name, 0) * at / 600 for name, held in HELD.items()}} for at in range(601)
    ]


def load(wrong=0, errors=0, status="503"):
    return {
        "totals": {"sent": 1000, "ok": 1000 - errors, "errors": errors},
        "mismatches": {"wrong": wrong, "double": 0},
        "tiers": [{"statuses": [{"status": "200", "count": 1000 - errors}, {"status": status, "count": errors}]}],
    }


def findings(grown=None, after=None, counted=1000, raised=0, exit_code=0, left=(), **about):
    grown = grown or samples()
    after = {**HELD, **(after or {})}
    return verdict.findings(grown, HELD, after, load(**about), counted, raised, exit_code, list(left), 0.01)


class Verdict(unittest.TestCase):
    def test_a_steady_run_passes(self):
        self.assertEqual(findings(), [])
        self.assertEqual(findings(errors=10), [])

    def test_whatever_grows_is_found(self):
        for name, growth in [("processes", 3), ("server_threads", 3), ("server_descriptors", 8), ("server_bytes", 8 << 20)]:
            found = findings(samples(**{name: growth}))
            self.assertEqual(len(found), 1, found)
            self.assertIn(name, found[0])

    def test_growth_during_the_warm_up_is_none(self):
        steps = samples()
        for sample in steps[:120]:
            sample["server_bytes"] = 1 << 20
        self.assertEqual(findings(steps), [])

    def test_growth_in_a_moment_is_chance(self):
        self.assertEqual(findings(samples(processes=100)[:18]), [])

    def test_what_stays_behind_is_found(self):
        self.assertEqual(len(findings(after={"server_descriptors": 37})), 1)
        self.assertEqual(len(findings(left=["4711: python3"])), 1)
        self.assertEqual(len(findings(exit_code=None)), 1)

    def test_answers_must_be_right_and_counted_once(self):
        self.assertEqual(len(findings(wrong=1)), 1)
        self.assertEqual(len(findings(counted=1001)), 1)
        self.assertEqual(len(findings(errors=1, status="500")), 1)
        self.assertEqual(len(findings(errors=11)), 1)

    def test_one_input_is_blamed_for_each_raise_at_most(self):
        self.assertEqual(findings(errors=2, status="422", raised=2), [])
        self.assertEqual(len(findings(errors=2, status="422", raised=1)), 1)


if __name__ == "__main__":
    unittest.main()
