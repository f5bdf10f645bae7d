"""Kill what works on an evaluation, again and again in mid-run, and compare the outcome with that of a calm run.

    python scripts/kill_series.py [--kills 15] [--seed N]

`kill -9` at moments read from the run's journal: of `osmosis eval run` and its rollout server, then of the platform,
its worker and the rollout server, and of `osmosis eval rubric`, each KILLS times. No acknowledged result may be lost, doubled or changed, and the
numbers must be those of the undisturbed run. The test suite does the same with one kill each.
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
    "tests/e2e/test_eval_rubric.py::test_kills_at_any_moment_lose_no_score_and_repeat_none",
)


def main() -> int:
    """Run the series; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--kills", type=int, default=15, help="how often each process is killed (default: 15)"
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    given = parser.parse_args()
    print(f"{given.kills} kills each, seed {given.seed}", flush=True)
    environment = {**os.environ, "OSMOSIS_KILLS": str(given.kills), "KILL_SEED": str(given.seed)}
    return subprocess.run([sys.executable, "-m", "pytest", "-q", "-s", *TESTS], env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
