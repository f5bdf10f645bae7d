"""Kill the processes of evaluations repeatedly in mid-run, and compare the results with those of an undisturbed run.

    python scripts/kill_series.py [--kills 15] [--seed N]

`kill -9` of `osmosis eval run` and its rollout server, of the platform, its worker and the rollout server, and of `osmosis eval
rubric`, each KILLS times, at moments of the run's journal. No acknowledged result may be lost, doubled or changed, and the
metrics must equal those of the undisturbed run. The tests do the same with one kill each.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys

TESTS = (
    "tests/e2e/test_kill_and_resume.py",
    "tests/e2e/test_platform_kill.py",
    "tests/e2e/test_eval_rubric.py::test_kills_and_resume",
)


def main() -> int:
    """Execute the series; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=15, help="kills of each process (default: 15)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    given = parser.parse_args()
    print(f"{given.kills} kills each, seed {given.seed}", flush=True)
    environment = {**os.environ, "OSMOSIS_KILLS": str(given.kills), "KILL_SEED": str(given.seed)}
    return subprocess.run([sys.executable, "-m", "pytest", "-q", "-s", *TESTS], env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
