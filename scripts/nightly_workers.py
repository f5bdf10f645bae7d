"""Kill and cut off everything that a run depends on, in a random mixture, and compare what comes of it with a calm run.

    python scripts/nightly_workers.py [--seed N] [--faults worker=10,server=10,…] [--minutes 20] [--slack-s 0]
    python scripts/nightly_workers.py --ray [raylet=3,head=3] [--lease-s 3]

A real platform on a real PostgreSQL and a real S3 store, two machines that take its runs, each by a relay that can be
cut, and a model that takes its time. `kill -9` of worker, rollout server, platform, PostgreSQL, store and machine, and
cuts of half a lease and of two leases fall into run after run, some of them into what the one before left behind. What
the platform had accepted of a run must stay, nothing may stand twice, samples, their conversations and numbers must be those
of the undisturbed run; a worker that has ended leaves no process for longer than ten seconds, one that was cut off has nothing
running after two terms, and a run that can move to the other machine does so within two leases. A fault counts where
the journal of its run shows that it fell in mid-run. With ``--ray`` it is raylets and heads of a Ray cluster that are killed. Fails when anything of this does not hold.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

# What is killed and compared here is what the tests kill and compare once.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nightly.faults import KINDS, plan
from nightly.machines import LEASE_S, World
from nightly.ray_faults import RAY_KINDS, run_on_ray
from nightly.series import Series
from nightly.verdicts import Verdicts

EACH, EACH_OF_RAY = 10, 3


def read_counts(words: str, kinds: Sequence[str] = KINDS, each: int = EACH) -> dict[str, int]:
    """Return how many faults of each kind are asked for: ``worker=10,s3=2``; a kind alone is meant ``each`` times."""
    counts: dict[str, int] = {}
    for word in filter(None, words.split(",")):
        kind, _, count = word.partition("=")
        if kind not in kinds or not (count or "1").isdecimal():
            raise argparse.ArgumentTypeError(f"`{word}`: say KIND=COUNT, with a kind of {', '.join(kinds)}")
        counts[kind] = int(count or each)
    return counts


def run_series(given: argparse.Namespace, counts: Mapping[str, int]) -> Verdicts:
    """Let the faults fall; return what was found."""
    draw, verdicts = random.Random(given.seed), Verdicts()
    faults = plan(counts, draw)
    until = time.monotonic() + given.minutes * 60
    with tempfile.TemporaryDirectory(prefix="osmosis-nightly-", ignore_cleanup_errors=True) as directory:
        world = World(
            Path(directory) / "demo", rows=given.rows, attempts=given.attempts, latency_ms=given.latency_ms
        )
        try:
            series = Series(world, faults, verdicts, until=until, slack_s=given.slack_s)
            series.run(lambda: 1 + (draw.random() < 0.4))
        except BaseException:
            world.keep_logs(given.logs)
            raise
        finally:
            world.close()
        if verdicts.violations:
            world.keep_logs(given.logs)
    if faults:
        verdicts.violate(f"{len(faults)} faults did not fall within {given.minutes:g} minutes")
    return verdicts


def run_on_cluster(given: argparse.Namespace) -> Verdicts:
    """Let nodes and head of a Ray cluster fall; return what was found."""
    verdicts = Verdicts()
    sizes = {"rows": given.rows, "attempts": given.attempts, "latency_ms": given.latency_ms}
    until = time.monotonic() + given.minutes * 60
    run_on_ray(
        given.ray,
        random.Random(given.seed),
        verdicts,
        until=until,
        sizes={**sizes, "lease_s": given.lease_s},
    )
    return verdicts


def main() -> int:
    """Run the series; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument(
        "--faults",
        type=read_counts,
        default=dict.fromkeys(KINDS, EACH),
        metavar="KIND=COUNT,…",
        help=f"how many of each of {', '.join(KINDS)} (default: {EACH} each)",
    )
    parser.add_argument(
        "--ray",
        type=partial(read_counts, kinds=RAY_KINDS, each=EACH_OF_RAY),
        nargs="?",
        const=dict.fromkeys(RAY_KINDS, EACH_OF_RAY),
        metavar="KIND=COUNT,…",
        help=f"instead: kill {' and '.join(RAY_KINDS)} of a Ray cluster so often (default: {EACH_OF_RAY} each)",
    )
    parser.add_argument(
        "--lease-s", type=float, default=LEASE_S, help="of runs on the Ray cluster (default: 3)"
    )
    parser.add_argument("--minutes", type=float, default=20.0, help="no fault falls later (default: 20)")
    parser.add_argument("--slack-s", type=float, default=0.0, help="how much later a busy machine may be")
    parser.add_argument("--rows", type=int, default=100, help="of each run")
    parser.add_argument("--attempts", type=int, default=4, help="on each row")
    parser.add_argument("--latency-ms", type=float, default=200.0, help="of the model")
    parser.add_argument("--logs", type=Path, help="where logs are copied to when something did not hold")
    given = parser.parse_args()
    print(f"seed {given.seed}, faults {given.ray or given.faults}", flush=True)
    began = time.monotonic()
    verdicts = run_on_cluster(given) if given.ray else run_series(given, given.faults)
    print(verdicts.table())
    print(
        f"{time.monotonic() - began:.0f} s; a machine that was cut off had nothing running after "
        f"{verdicts.slowest_rest_s:.1f} s at most, a worker's processes outlived it by {verdicts.slowest_outlived_s:.1f} s"
    )
    for violation in verdicts.violations:
        print(f"VIOLATION: {violation}", file=sys.stderr)
    return 1 if verdicts.violations else 0


if __name__ == "__main__":
    sys.exit(main())
