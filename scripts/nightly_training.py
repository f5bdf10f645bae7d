"""Kill training runs in mid-run, at one moment after another, and hold each against a run that nobody killed.

    python scripts/nightly_training.py [--kills 6] [--seed N] [--only trainer|server|platform]

`kill -9` of the trainer at KILLS moments, then of its rollout server at a third as many; each moment is read from the
records of a run of its own, which has to end with the curve, the final validation, the checkpoints and the adapter of
the undisturbed run. Then one run of a platform, whose platform, worker and rollout server are each killed a third as
often. The test suite kills each of them once. Fails when a run ends differently.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What is killed and checked here is what the tests kill and check once.
sys.path.insert(0, str(ROOT))

_PLATFORM_TEST = "tests/e2e/test_training_platform_kill.py"


def nightly_sessions(kills_of: Mapping[str, int], seed: int) -> Iterator[str]:
    """Kill each victim so many times, each time in a run of its own; yields what failed."""
    from tests.e2e.training_kills import moments, training_bench

    with tempfile.TemporaryDirectory(prefix="osmosis-nightly-") as name, training_bench(Path(name)) as bench:
        checks = {"trainer": bench.check_trainer_kill, "server": bench.check_server_kill}
        for victim, kills in kills_of.items():
            for number, moment in enumerate(moments(seed, kills), start=1):
                what = f"{victim} killed, {number} of {kills}"
                began = time.monotonic()
                try:
                    told = checks[victim](Path(name) / f"{victim}-{number}", moment)
                except AssertionError as error:
                    print(f"{what}: FAILED", flush=True)
                    yield f"{what}, at {moment}: {error}"
                else:
                    print(f"{what}: {told}, the same run ({time.monotonic() - began:.1f} s)", flush=True)


def nightly_platform(kills: int, seed: int) -> Iterator[str]:
    """Kill a platform, its worker and the rollout server during one run; yields what failed."""
    environment = {**os.environ, "NIGHTLY": "1", "OSMOSIS_KILLS": str(kills), "KILL_SEED": str(seed)}
    command = [sys.executable, "-m", "pytest", "-q", "-s", _PLATFORM_TEST]
    if subprocess.run(command, cwd=ROOT, env=environment).returncode:
        yield f"a platform's training run, {kills} kills each: see above"


def main() -> None:
    """Run the series and say what failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--kills",
        type=int,
        default=6,
        help="how often the trainer, or what --only names, is killed (default: 6)",
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--only", choices=("trainer", "server", "platform"))
    given = parser.parse_args()
    fewer = max(1, given.kills // 3)
    kills_of = {"trainer": given.kills, "server": fewer, "platform": fewer}
    if given.only is not None:
        kills_of = {given.only: given.kills}
    told = ", ".join(f"{kills} of the {victim}" for victim, kills in kills_of.items())
    print(f"kills: {told}; seed {given.seed}", flush=True)
    platform = kills_of.pop("platform", 0)
    failures = list(nightly_sessions(kills_of, given.seed)) if kills_of else []
    failures += nightly_platform(platform, given.seed) if platform else []
    for failure in failures:
        print(f"\n{failure}", file=sys.stderr)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
