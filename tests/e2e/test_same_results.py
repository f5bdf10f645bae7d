"""One evaluation, wherever its rows, its files and its worker are: one `metrics.json`, the same samples.

Two databases, two stores of files, workers here and on another machine, one rollout server and four: whatever two of
these are taken together, a run had them, and each is compared with one of the plainest platform.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import NIGHTLY
from tests.e2e.platform_checkout import prepare_scratch
from tests.e2e.platform_process import Platform, Run, connected_platform, write_config
from tests.e2e.test_demo_platform import samples, timeless
from tests.e2e.test_platform_kill import published
from tests.platform.databases import postgres_database
from tests.platform.s3_server import CREDENTIALS, new_bucket
from tests.warm_osmosis import warm_osmosis

pytestmark = pytest.mark.e2e

ROWS, ATTEMPTS = 20, 2
PLACES, SERVERS = ("here", "elsewhere"), (1, 4)
TOKEN = "gpu.token"
OF_ONE_RUN = {"id", "name", "started_at", "completed_at"}


class Results(NamedTuple):
    """What an evaluation came to, without its times and ids."""

    metrics: Any
    published: list[tuple[Any, ...]]
    samples: dict[str, Any]


def config_of(place: str, servers: int) -> str:
    return f"configs/eval/{place}_{servers}.toml"


@contextmanager
def platform_on(directory: Path, database: str, files: str) -> Iterator[Platform]:
    """Run a platform with these stores, connected to a repository with a config for each run."""
    with ExitStack() as stack:
        settings = {}
        if database == "postgresql":
            settings["OSMOSIS_DATABASE_URL"] = stack.enter_context(postgres_database())
        if files == "s3":
            settings |= {"OSMOSIS_BLOBS_URL": new_bucket(), **CREDENTIALS}
        scratch = prepare_scratch(directory / "demo")
        for place, servers in product(PLACES, SERVERS):
            pool = 'pool = "gpu"\n' if place == "elsewhere" else ""
            more = f"\n[advanced.execution]\nservers = {servers}\n{pool}"
            write_config(scratch, config_of(place, servers), rows=ROWS, more=more, n=ATTEMPTS)
        platform = stack.enter_context(connected_platform(scratch, settings=settings))
        platform.command("platform", "worker-token", "create", "--pool", "gpu", "--output", TOKEN)
        yield platform


def evaluated(platform: Platform, place: str, servers: int) -> Results:
    """Make a run by a worker there with so many servers, and return what the platform has of it."""
    run = platform.submit(config_of(place, servers))
    if place == "elsewhere":
        work_elsewhere(platform, run)
    assert run.finish()["status"] == "finished"
    return results_of(run)


def work_elsewhere(platform: Platform, run: Run) -> None:
    """Have a machine that knows the platform's URL and a token, and nothing of its stores, take the run."""
    knows = {name: value for name, value in platform.env.items() if name not in CREDENTIALS}
    knows = {
        name: value
        for name, value in knows.items()
        if name not in ("OSMOSIS_DATABASE_URL", "OSMOSIS_BLOBS_URL")
    }
    done = subprocess.run(
        [*warm_osmosis(), "platform", "worker", "--json", "--pool", "gpu", "--token-file", TOKEN, "--once"],
        cwd=platform.workspace,
        env={**knows, "OSMOSIS_HOME": str(platform.home.parent / "elsewhere")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert [each["id"] for each in json.loads(done.stdout)["resource"]["runs"]] == [run.id]


def results_of(run: Run) -> Results:
    metrics = json.loads((run.results / "metrics.json").read_text())
    metrics["eval_run"] = {key: value for key, value in metrics["eval_run"].items() if key not in OF_ONE_RUN}
    return Results(timeless(metrics), published(run.results), samples(run.results))


@pytest.fixture(scope="module")
def plainest(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What the evaluation comes to on one machine with one server, and files beside an SQLite database."""
    with platform_on(tmp_path_factory.mktemp("plainest"), "sqlite", "files") as platform:
        results = evaluated(platform, "here", 1)
    assert results.metrics["summary"]["graded"] == ROWS * ATTEMPTS
    assert 0 < results.metrics["summary"]["passed"] < ROWS * ATTEMPTS
    assert len(results.published) == len(results.samples) == ROWS * ATTEMPTS
    return results


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("files", ["files", pytest.param("s3", marks=pytest.mark.nightly)])
def test_an_evaluation_comes_to_the_same_wherever_it_is_made_and_kept(
    database: str, files: str, plainest: Results, tmp_path: Path
) -> None:
    with platform_on(tmp_path, database, files) as platform:
        every = NIGHTLY and (database, files) == ("sqlite", "files")
        for place, servers in (
            product(PLACES, SERVERS) if every else zip(PLACES, reversed(SERVERS), strict=True)
        ):
            found = evaluated(platform, place, servers)
            assert found.metrics == plainest.metrics, (place, servers)
            assert found.published == plainest.published, (place, servers)
            assert found.samples == plainest.samples, (place, servers)
        kept = [path for path in platform.home.rglob("blobs/objects/**/*") if path.is_file()]
        assert bool(kept) == (files == "files")
        assert (platform.home / "platform.db").exists() == (database == "sqlite")
