"""Kill training runs at different moments, and compare each with an undisturbed run.

    python scripts/nightly_training.py [--kills 6] [--seed N] [--only trainer|server|platform]

`kill -9` of the trainer at KILLS moments and of its rollout server at a third as many, each in a run of its own. The run must end
with the curve, final validation, checkpoints and adapter of the undisturbed run. Then platform, worker and rollout server are
killed during one run of a platform, each a third as often. The tests kill each of them once. The exit status is 1 if a run
ends differently.
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
# The helpers are those of the tests.
sys.path.insert(0, str(ROOT))

_PLATFORM_TEST = "tests/e2e/test_training_platform_kill.py"


def nightly_sessions(kills_of: Mapping[str, int], seed: int) -> Iterator[str]:
    """Kill each victim the given number of times, each in a run of its own; yields the failures."""
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
    """Kill a platform, its worker and the rollout server during one run; yields the failures."""
    environment = {**os.environ, "NIGHTLY": "1", "OSMOSIS_KILLS": str(kills), "KILL_SEED": str(seed)}
    command = [sys.executable, "-m", "pytest", "-q", "-s", _PLATFORM_TEST]
    if subprocess.run(command, cwd=ROOT, env=environment).returncode:
        yield f"a platform's training run, {kills} kills each: see above"


def main() -> None:
    """Execute the series and print the failures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--kills",
        type=int,
        default=6,
        help="kills of the trainer, or of the victim of --only (default: 6)",
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
