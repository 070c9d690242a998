"""Tests of scripts/check_includes.py: the tree passes, each kind of planted violation is found."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts" / "check_includes.py"


def check(root):
    run = subprocess.run([sys.executable, SCRIPT, root], capture_output=True, text=True, check=False)
    return run.returncode, run.stdout + run.stderr


class CheckIncludes(unittest.TestCase):
    def planted(self, files):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            return check(folder)

    def refused(self, name, line, message):
        code, output = self.planted({name: f"#pragma once\n\n{line}\n"})
        self.assertEqual(code, 1, output)
        self.assertIn(f"{name}:3: ", output)
        self.assertIn(message, output)

    def test_this_tree_passes(self):
        code, output = check(SCRIPT.parents[1])
        self.assertEqual((code, output), (0, ""))

    def test_what_is_allowed_passes(self):
        code, output = self.planted({
            "runtime/exchange/a.h": '#pragma once\n#include "planner/p.h"\n#include "transport/t.h"\n#include <vector>\n',
            "transport/u.cc": "#include <ucp/api/ucp.h>\n",
            "runtime/services/m.cc": "#include <mpi.h>\n#include <chrono>\n",
            "tests/worker/w.cc": '#include "trainer/t.h"\n#include "worker/w.h"\n#include "tests/support/s.h"\n',
        })
        self.assertEqual((code, output), (0, ""))

    def test_upward_includes(self):
        self.refused("runtime/base/a.h", '#include "runtime/services/log.h"', "runtime/base may include only itself")
        self.refused("planner/a.cc", '#include "runtime/services/log.h"', "planner may include runtime/base")
        self.refused("transport/a.cc", '  #  include "runtime/exchange/x.h"', 'transport includes "runtime/exchange/x.h"')
        self.refused("runtime/exchange/a.h", '#include "worker/w.h"', 'runtime/exchange includes "worker/w.h"')

    def test_trainer_and_worker_do_not_meet(self):
        self.refused("trainer/a.cc", '#include "worker/w.h"', 'trainer includes "worker/w.h"')
        self.refused("worker/a.cc", '#include "trainer/t.h"', 'worker includes "trainer/t.h"')

    def test_nothing_below_includes_tests_or_programs(self):
        self.refused("worker/a.cc", '#include "tests/support/s.h"', 'worker includes "tests/support/s.h"')
        self.refused("planner/a.cc", '#include "cli/c.h"', 'planner includes "cli/c.h"')

    def test_wrapped_libraries(self):
        self.refused("runtime/exchange/a.cc", "#include <ucp/api/ucp.h>", "only transport may include it")
        self.refused("tests/transport/a.cc", "#include <ucp/api/ucp.h>", "only transport may include it")
        self.refused("planner/a.cc", "#include <mpi.h>", "<mpi.h> in planner")
        self.refused("worker/a.cc", "#include <cuda.h>", "only runtime/cuda, tests may include it")

    def test_the_planner_is_pure(self):
        self.refused("planner/a.cc", "#include <chrono>", "<chrono> in planner")
        self.refused("planner/a.cc", "#include <sys/socket.h>", "<sys/socket.h> in planner")
        self.refused("planner/a.cc", "#include <boost/asio/io_context.hpp>", "in planner")

    def test_includes_by_path_from_the_root(self):
        self.refused("worker/a.cc", '#include "b.h"', "include by the path from the root")
        self.refused("worker/a.cc", '#include "../planner/plan.h"', "include by the path from the root")
        self.refused("worker/a.cc", '#include "fmt/core.h"', "include libraries with <>")

    def test_own_header_first_and_guards(self):
        code, output = self.planted({
            "planner/a.h": "#pragma once\n",
            "planner/a.cc": '#include "planner/b.h"\n#include "planner/a.h"\n',
            "planner/b.h": "int b();\n",
        })
        self.assertEqual(code, 1)
        self.assertIn("planner/a.cc: includes planner/b.h first, must be its own header", output)
        self.assertIn("planner/b.h: lacks #pragma once", output)

    def test_a_file_outside_the_layers(self):
        code, output = self.planted({"runtime/other/a.h": "#pragma once\n"})
        self.assertEqual(code, 1)
        self.assertIn("runtime/other/a.h: lies in no layer", output)


if __name__ == "__main__":
    unittest.main()
