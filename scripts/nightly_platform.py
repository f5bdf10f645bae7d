"""Kill uploads and Git syncs of a platform at critical moments, and send random requests to its routes.

    python scripts/nightly_platform.py [--seconds 300] [--seed 0] [--only uploads|syncs|routes]

A multipart upload is killed at eight moments and a Git sync at three; each must then complete and leave nothing behind. For
``--seconds``, schemathesis sends requests to every route of the platform's OpenAPI description, with a new seed in each
round; no reply may be a server error. The exit status is 1 if a check fails.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

# The helpers are those of the tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

_EXAMPLES = 20


def nightly_uploads() -> Iterator[str]:
    """Kill an upload at each moment; yields the failures."""
    from tests.e2e.upload_kills import MOMENTS, upload_bench

    for moment in MOMENTS:
        with _scratch() as directory, upload_bench(directory) as bench:
            yield from _checked(f"upload killed: {moment}", partial(bench.check_kill, moment))


def nightly_syncs() -> Iterator[str]:
    """Kill a sync at each moment; yields the failures."""
    from tests.e2e.git_kills import MOMENTS, check_kill

    for moment in MOMENTS:
        with _scratch() as directory:
            yield from _checked(f"sync killed: {moment}", partial(check_kill, directory, moment))


def nightly_routes(seconds: float, first_seed: int) -> Iterator[str]:
    """Send requests to every route for a time; yields the first failure of each route."""
    import schemathesis
    from hypothesis import HealthCheck, given, seed, settings
    from tests.platform.conftest import World
    from tests.platform.routes.test_schema import check_reply

    from osmosis_ai.platform.app import create_app
    from osmosis_ai.platform.config import PlatformConfig
    from osmosis_ai.platform.services import PlatformServices

    statuses: Counter[int] = Counter()
    failed: dict[str, str] = {}
    deadline, round_number = time.monotonic() + seconds, 0
    with _scratch() as directory:
        services = PlatformServices(PlatformConfig(home=directory / "platform"))
        headers = World(services).member().headers
        described = schemathesis.openapi.from_asgi("/api/openapi.json", create_app(services))
        operations = [found.ok() for found in described.get_all_operations()]
        while time.monotonic() < deadline:
            for operation in operations:

                @seed(first_seed + round_number)
                @given(case=operation.as_strategy())
                @settings(
                    max_examples=_EXAMPLES,
                    deadline=None,
                    database=None,
                    suppress_health_check=list(HealthCheck),
                )
                def check(case: schemathesis.Case) -> None:
                    reply = case.call(headers=headers)
                    statuses[reply.status_code] += 1
                    check_reply(case, reply)

                if operation.label in failed:
                    continue
                try:
                    check()
                except AssertionError as error:
                    failed[operation.label] = f"{operation.label}, seed {first_seed + round_number}: {error}"
                if time.monotonic() >= deadline:
                    break
            round_number += 1
        services.db.dispose()
    kinds = Counter({f"{status // 100}xx": 0 for status in statuses})
    for status, count in statuses.items():
        kinds[f"{status // 100}xx"] += count
    shown = ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items()))
    print(
        f"routes: {statuses.total():,} requests to {len(operations)} routes in {round_number} rounds: {shown}"
    )
    yield from failed.values()


def _checked(what: str, check: Callable[[], None]) -> Iterator[str]:
    began = time.monotonic()
    try:
        check()
    except AssertionError as error:
        print(f"{what}: FAILED", flush=True)
        yield f"{what}: {error}"
    else:
        print(f"{what}: completed afterwards ({time.monotonic() - began:.1f} s)", flush=True)


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="osmosis-nightly-") as name:
        yield Path(name)


def main() -> None:
    """Execute the chosen parts and print the failures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300.0, help="duration of the requests to routes")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first round of requests")
    parser.add_argument("--only", choices=("uploads", "syncs", "routes"))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    parts = {
        "uploads": nightly_uploads,
        "syncs": nightly_syncs,
        "routes": lambda: nightly_routes(arguments.seconds, arguments.seed),
    }
    chosen = [arguments.only] if arguments.only else list(parts)
    failures = [failure for name in chosen for failure in parts[name]()]
    for failure in failures:
        print(f"\n{failure}", file=sys.stderr)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
