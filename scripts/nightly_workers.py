"""Kill or cut off everything that a run depends on, in random order, and compare the results with an undisturbed run.

    python scripts/nightly_workers.py [--seed N] [--faults worker=10,server=10,…] [--minutes 20] [--slack-s 0]
    python scripts/nightly_workers.py --ray [raylet=3,head=3] [--lease-s 3]

A platform with PostgreSQL and an S3 store, two worker machines behind relays that can be cut, and a slow model execute one
evaluation after another. Faults are `kill -9` of worker, rollout server, platform, PostgreSQL, store and machine, and network
cuts of half a lease and of two leases; some follow the previous one at once. A fault counts if the journal shows that it was
in mid-run. With ``--ray``, raylets and heads of a Ray cluster are killed instead. The exit status is 1 unless all of this holds:

- Accepted records are never lost, changed or doubled; samples, conversations and metrics equal those of an undisturbed run.
- A run that can move to the other machine does so within two leases.
- No process outlives its worker by more than ten seconds; a machine that was cut off runs no rollout after two leases.
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

# The helpers are those of the tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nightly.faults import KINDS, plan
from nightly.machines import LEASE_S, World
from nightly.series import Series
from nightly.verdicts import Verdicts

EACH, EACH_OF_RAY = 10, 3
RAY_KINDS = ("raylet", "head")


def read_counts(words: str, kinds: Sequence[str] = KINDS, each: int = EACH) -> dict[str, int]:
    """Read the number of faults of each kind: ``worker=10,s3=2``; a kind without a number has ``each``."""
    counts: dict[str, int] = {}
    for word in filter(None, words.split(",")):
        kind, _, count = word.partition("=")
        if kind not in kinds or not (count or "1").isdecimal():
            raise argparse.ArgumentTypeError(
                f"`{word}` is not KIND=COUNT with one of the kinds {', '.join(kinds)}"
            )
        counts[kind] = int(count or each)
    return counts


def run_series(given: argparse.Namespace, counts: Mapping[str, int]) -> Verdicts:
    """Inject the faults; return the results."""
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
        verdicts.violate(f"{len(faults)} faults were not injected within {given.minutes:g} minutes")
    return verdicts


def run_on_cluster(given: argparse.Namespace) -> Verdicts:
    """Kill nodes and the head of a Ray cluster; return the results."""
    from nightly.ray_faults import run_on_ray

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
    """Execute the series; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument(
        "--faults",
        type=read_counts,
        default=dict.fromkeys(KINDS, EACH),
        metavar="KIND=COUNT,…",
        help=f"number of faults of each kind: {', '.join(KINDS)} (default: {EACH} each)",
    )
    parser.add_argument(
        "--ray",
        type=partial(read_counts, kinds=RAY_KINDS, each=EACH_OF_RAY),
        nargs="?",
        const=dict.fromkeys(RAY_KINDS, EACH_OF_RAY),
        metavar="KIND=COUNT,…",
        help=f"kill {' and '.join(RAY_KINDS)} of a Ray cluster instead (default: {EACH_OF_RAY} each)",
    )
    parser.add_argument(
        "--lease-s", type=float, default=LEASE_S, help="lease for runs on the Ray cluster (default: 3)"
    )
    parser.add_argument("--minutes", type=float, default=20.0, help="time limit for the faults (default: 20)")
    parser.add_argument("--slack-s", type=float, default=0.0, help="added to time limits, for a busy machine")
    parser.add_argument("--rows", type=int, default=100, help="rows of each run")
    parser.add_argument("--attempts", type=int, default=4, help="attempts on each row")
    parser.add_argument("--latency-ms", type=float, default=200.0, help="latency of the model")
    parser.add_argument("--logs", type=Path, help="directory for the logs if a check fails")
    given = parser.parse_args()
    print(f"seed {given.seed}, faults {given.ray or given.faults}", flush=True)
    began = time.monotonic()
    verdicts = run_on_cluster(given) if given.ray else run_series(given, given.faults)
    print(verdicts.table())
    print(
        f"{time.monotonic() - began:.0f} s; machines that were cut off ended their rollouts after at most "
        f"{verdicts.slowest_rest_s:.1f} s; processes outlived their worker by at most {verdicts.slowest_outlived_s:.1f} s"
    )
    for violation in verdicts.violations:
        print(f"VIOLATION: {violation}", file=sys.stderr)
    return 1 if verdicts.violations else 0


if __name__ == "__main__":
    sys.exit(main())
