"""One evaluation has the same samples and metrics wherever it is executed and stored.

The reference is `osmosis eval run`. Compared with it are platforms on each database and file store, with workers on the
platform's machine and on another one, one worker and three, and one rollout server and four.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.e2e.platform_checkout import Scratch, prepare_scratch
from tests.e2e.platform_process import Platform, Run, connected_platform, write_config
from tests.e2e.test_demo_platform import samples, timeless
from tests.e2e.test_platform_kill import published
from tests.e2e.test_workers_elsewhere import TOKEN, Machine
from tests.platform.databases import postgres_database
from tests.platform.s3_server import CREDENTIALS, new_bucket
from tests.warm_osmosis import warm_osmosis

pytestmark = pytest.mark.e2e

ROWS, ATTEMPTS = 20, 2


class Execution(NamedTuple):
    """How a run is executed: whether by another machine, by how many workers, with how many rollout servers each."""

    remote: bool = False
    workers: int = 1
    servers: int = 1

    @property
    def config(self) -> str:
        return f"configs/eval/{'remote' if self.remote else 'local'}_{self.workers}_{self.servers}.toml"

    @property
    def section(self) -> str:
        pool = 'pool = "gpu"\n' if self.remote else ""
        return f"\n[advanced.execution]\nworkers = {self.workers}\nservers = {self.servers}\n{pool}"


class Results(NamedTuple):
    """The results of an evaluation, without times and ids."""

    metrics: Any
    published: list[tuple[Any, ...]]
    samples: dict[str, Any]


COMBINATIONS = [
    pytest.param("sqlite", "files", Execution(), id="plain"),
    pytest.param("sqlite", "files", Execution(workers=3), id="3-workers"),
    pytest.param("sqlite", "files", Execution(remote=True, servers=4), id="remote-4-servers"),
    pytest.param("postgresql", "s3", Execution(workers=3), id="postgresql-s3-3-workers"),
    pytest.param("postgresql", "s3", Execution(remote=True, workers=3), id="postgresql-s3-remote-3-workers"),
    pytest.param("sqlite", "s3", Execution(servers=4), id="s3", marks=pytest.mark.nightly),
    pytest.param("postgresql", "files", Execution(), id="postgresql", marks=pytest.mark.nightly),
]


def write_configs(scratch: Scratch) -> None:
    for combination in COMBINATIONS:
        execution = combination.values[2]
        assert isinstance(execution, Execution)
        write_config(scratch, execution.config, rows=ROWS, more=execution.section, n=ATTEMPTS)


def results_of(results: Path) -> Results:
    metrics = json.loads((results / "metrics.json").read_text())
    numbers = timeless({name: metrics[name] for name in ("summary", "estimates")})
    return Results(numbers, published(results), samples(results))


def run_locally(workspace: Path, environment: Mapping[str, str], config: str) -> Path:
    """Run `osmosis eval run`; return the directory of its results."""
    subprocess.run(
        [*warm_osmosis(), "--json", "eval", "run", config, "--yes", "--name", "local"],
        cwd=workspace,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=600,
        check=True,
    )
    return workspace / ".osmosis" / "evals" / "local"


@contextmanager
def platform_on(directory: Path, database: str, files: str) -> Iterator[Platform]:
    """Run a platform with these stores, connected to a repository with all configs."""
    with ExitStack() as stack:
        settings = {"OSMOSIS_EXECUTOR_SLOTS": "3"}
        if database == "postgresql":
            settings["OSMOSIS_DATABASE_URL"] = stack.enter_context(postgres_database())
        if files == "s3":
            settings |= {"OSMOSIS_BLOBS_URL": new_bucket(), **CREDENTIALS}
        scratch = prepare_scratch(directory / "demo")
        write_configs(scratch)
        platform = stack.enter_context(connected_platform(scratch, settings=settings))
        platform.command("platform", "worker-token", "create", "--pool", "gpu", "--output", TOKEN)
        yield platform


@pytest.fixture(scope="module")
def platforms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], Platform]]:
    """The platforms that are running, by database and file store."""
    with ExitStack() as stack:

        class Platforms(dict[tuple[str, str], Platform]):
            def __missing__(self, stores: tuple[str, str]) -> Platform:
                directory = tmp_path_factory.mktemp("-".join(stores))
                self[stores] = stack.enter_context(platform_on(directory, *stores))
                return self[stores]

        yield Platforms()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The results of `osmosis eval run`."""
    scratch = prepare_scratch(tmp_path_factory.mktemp("reference") / "demo")
    write_configs(scratch)
    directory = run_locally(scratch.workspace, scratch.environment(os.environ), Execution().config)
    results = results_of(directory)
    assert results.metrics["summary"]["graded"] == ROWS * ATTEMPTS
    assert 0 < results.metrics["summary"]["passed"] < ROWS * ATTEMPTS
    assert len(results.published) == len(results.samples) == ROWS * ATTEMPTS
    return results


def execute_remotely(platform: Platform, run: Run, workers: int) -> None:
    """Have other machines, which know the platform's URL and a token and nothing of its stores, execute a run."""
    hidden = {*CREDENTIALS, "OSMOSIS_DATABASE_URL", "OSMOSIS_BLOBS_URL", "OSMOSIS_EXECUTOR_SLOTS"}
    known: Any = copy(platform)
    known.env = {name: value for name, value in platform.env.items() if name not in hidden}
    for machine in [Machine(known, f"machine-{number}", "--once") for number in range(workers)]:
        status, reply, err = machine.end()
        assert status == 0, err
        assert [each["id"] for each in reply["resource"]["runs"]] == [run.id]


@pytest.mark.parametrize(("database", "files", "execution"), COMBINATIONS)
def test_a_platform_has_the_results_of_a_local_evaluation(
    database: str,
    files: str,
    execution: Execution,
    platforms: dict[tuple[str, str], Platform],
    reference: Results,
) -> None:
    platform = platforms[database, files]
    run = platform.submit(execution.config)
    if execution.remote:
        execute_remotely(platform, run, execution.workers)
    assert run.finish()["status"] == "finished"
    found = results_of(run.results)
    assert found.metrics == reference.metrics
    assert found.published == reference.published
    assert found.samples == reference.samples
    stored = [path for path in platform.home.rglob("blobs/objects/**/*") if path.is_file()]
    assert bool(stored) == (files == "files")
    assert (platform.home / "platform.db").exists() == (database == "sqlite")
