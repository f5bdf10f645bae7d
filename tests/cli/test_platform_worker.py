"""`osmosis platform worker`: what it is told, and what it refuses before it asks anybody."""

from __future__ import annotations

import io
import json
import shlex
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from osmosis_ai.api.wire.workers import Assignment, WorkerOffer
from osmosis_ai.platform.runs.execute import worker_process
from osmosis_ai.platform.runs.execute.executor import WantedJob
from osmosis_ai.platform.runs.execute.ray_jobs import TICKET_VARIABLE, worker_entrypoint
from osmosis_ai.platform.runs.work.host_terms import HostTerms
from osmosis_ai.platform.runs.work.hosting import host_runs
from osmosis_ai.platform.runs.work.http_link import HttpLink
from osmosis_ai.platform.runs.work.platform_link import CredentialRefusedError, StoreAwayError
from osmosis_ai.platform.runs.work.worked_runs import Ending, WorkedRun
from osmosis_ai.sandbox import IsolationUnavailableError, SandboxCapability
from tests.cli.conftest import Cli
from tests.platform.runs.granted_processors import servers_of_a_run, with_processors
from tests.platform.runs.played_hosts import assignment

pytestmark = pytest.mark.integration

URL = "https://osmosis.fern.example"
TOKEN = "osmw_canary-4711"


@pytest.fixture
def hosted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What this machine was asked to host, and how the worker of its one run ends."""
    told: dict[str, Any] = {"ending": "ended"}

    def host_runs(address: str, credential: str, terms: HostTerms, *, say: object) -> list[WorkedRun]:
        told.update(address=address, credential=credential, terms=terms)
        ending: Ending = told["ending"]
        return [WorkedRun("run_1", "amber-fox-12", 1, ending)]

    monkeypatch.setattr("osmosis_ai.platform.runs.work.hosting.host_runs", host_runs)
    monkeypatch.chdir(tmp_path)
    Path("gpu.token").write_text(f"{TOKEN}\n")
    return told


def test_the_machine_is_described_and_the_token_comes_from_a_file(cli: Cli, hosted: dict[str, Any]) -> None:
    options = ("--labels", "a100, west", "--cpus", "4", "--gpus", "2", "--memory-gb", "16")
    more = ("--slots", "3", "--idle-exit", "10m", "--once")
    done = cli(
        "platform", "worker", "--url", URL, "--pool", "gpu", "--token-file", "gpu.token", *options, *more
    )
    assert done.status == 0, done.err
    assert (hosted["address"], hosted["credential"]) == (URL, TOKEN)
    assert hosted["terms"] == HostTerms(
        pool="gpu", slots=3, once=True, idle_exit_s=600, labels=("a100", "west"), cpus=4, gpus=2, memory_gb=16
    )
    assert TOKEN not in done.out + done.err


def test_a_machine_that_requires_a_sandbox_and_can_make_none_takes_nothing_and_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = SandboxCapability(problem="no user namespaces", remedy="sysctl -w x=1")
    monkeypatch.setattr("osmosis_ai.platform.runs.work.hosting.check_sandbox", lambda home: found)
    monkeypatch.setenv("OSMOSIS_HOME", str(tmp_path))
    monkeypatch.setenv("OSMOSIS_ISOLATION", "required")
    with pytest.raises(IsolationUnavailableError, match="no user namespaces") as caught:
        host_runs(URL, TOKEN, HostTerms(pool="gpu"), say=print)
    assert caught.value.hint == "sysctl -w x=1"


@pytest.mark.parametrize("setting", ["auto", "off"])
def test_a_machine_says_with_each_claim_what_its_operator_set(
    setting: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    offers: list[WorkerOffer] = []

    def refuse(_link: HttpLink, offer: WorkerOffer) -> None:
        offers.append(offer)
        raise CredentialRefusedError("this machine gets no runs of 2 workspaces")

    found = SandboxCapability(problem="no user namespaces", remedy="sysctl -w x=1")
    monkeypatch.setattr("osmosis_ai.platform.runs.work.hosting.check_sandbox", lambda home: found)
    monkeypatch.setattr(HttpLink, "claim", refuse)
    monkeypatch.setenv("OSMOSIS_HOME", str(tmp_path))
    monkeypatch.setenv("OSMOSIS_ISOLATION", setting)
    with pytest.raises(CredentialRefusedError, match="no runs of 2 workspaces"):
        host_runs(URL, TOKEN, HostTerms(pool="gpu"), say=print)
    [said] = offers
    assert (said.sandbox, said.isolation) == (False, setting)
    assert said.sandbox_problem == "no user namespaces; sysctl -w x=1"


@pytest.mark.parametrize(
    ("options", "asks", "servers"),
    [
        ((), {}, 8),
        (("--cpus", "2", "--slots", "2"), {}, 1),
        (("--cpus", "6"), {}, 5),
        (("--cpus", "6"), {"cpus": 3}, 2),
        # What several runs share is granted to each in part.
        (("--slots", "4"), {}, 3),
        (("--cpus", "16", "--slots", "4"), {}, 3),
    ],
)
def test_a_run_has_servers_for_the_processors_that_its_worker_was_granted(
    options: tuple[str, ...],
    asks: dict[str, Any],
    servers: int,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    with_processors(16, monkeypatch)
    line = ("platform", "worker", "--url", URL, "--pool", "gpu", "--token-env", "TOKEN", *options)
    environment = environment_of_its_worker(line, "TOKEN", cli, monkeypatch, tmp_path)
    assert servers_of_a_run(asks, environment, monkeypatch) == servers


@pytest.mark.parametrize(
    ("asks", "servers"), [({}, 1), ({"cpus": 0.05}, 1), ({"cpus": 4}, 3), ({"servers": 5}, 5)]
)
def test_a_job_of_a_cluster_has_servers_for_the_processors_that_it_asks_for(
    asks: dict[str, Any], servers: int, cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_processors(16, monkeypatch)
    job = WantedJob("osm-first-1", "first", **{"cpus": asks["cpus"]} if "cpus" in asks else {})
    _exec, _osmosis, *line = shlex.split(worker_entrypoint(job, URL))
    environment = environment_of_its_worker(line, TICKET_VARIABLE, cli, monkeypatch, tmp_path)
    assert servers_of_a_run(asks, environment, monkeypatch) == servers


def environment_of_its_worker(
    line: Sequence[str], variable: str, cli: Cli, monkeypatch: pytest.MonkeyPatch, directory: Path
) -> dict[str, str]:
    """Return the environment in which a command line of `platform worker` starts the worker of its run."""
    answers = iter([assignment("first")])
    environments: list[dict[str, str]] = []
    begun = threading.Event()

    def claim(_link: HttpLink, offer: WorkerOffer) -> Assignment:
        if (answer := next(answers, None)) is None:
            begun.wait(60)
            raise CredentialRefusedError("this worker token has been revoked.")
        return answer

    def child(_command: list[str], *, env: dict[str, str], **_: Any) -> NoReturn:
        environments.append(env)
        begun.set()
        raise OSError("its environment is all that is asked for")

    monkeypatch.setattr(HttpLink, "claim", claim)
    monkeypatch.setattr(HttpLink, "release", lambda *_: None)
    monkeypatch.setattr(worker_process, "ChildProcess", child)
    monkeypatch.setenv("OSMOSIS_HOME", str(directory))
    monkeypatch.setenv(variable, TOKEN)
    cli(*line)
    [environment] = environments
    return environment


def test_a_ticket_comes_from_a_variable_or_stdin(
    cli: Cli, hosted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSMOSIS_WORKER_TICKET", "osmt_first")
    asked = ("platform", "worker", "--url", URL, "--run", "run_1")
    assert cli(*asked, "--token-env", "OSMOSIS_WORKER_TICKET").status == 0
    assert (hosted["credential"], hosted["terms"].run_id) == ("osmt_first", "run_1")
    monkeypatch.setattr("sys.stdin", io.StringIO("osmt_second\n"))
    assert cli(*asked, "--token-file", "-").status == 0
    assert hosted["credential"] == "osmt_second"


@pytest.mark.parametrize(("typed", "seconds"), [("90", 90), ("1.5m", 90), ("2h", 7200), ("1d", 86_400)])
def test_a_duration_may_have_a_unit(cli: Cli, hosted: dict[str, Any], typed: str, seconds: float) -> None:
    asked = ("platform", "worker", "--url", URL, "--pool", "gpu", "--token-file", "gpu.token")
    assert cli(*asked, "--idle-exit", typed).status == 0
    assert hosted["terms"].idle_exit_s == seconds


def test_a_token_that_every_user_of_the_machine_can_read_is_taken_with_a_warning(
    cli: Cli, hosted: dict[str, Any]
) -> None:
    asked = ("platform", "worker", "--url", URL, "--pool", "gpu", "--token-file", "gpu.token")
    Path("gpu.token").chmod(0o640)
    assert "every user" not in cli(*asked).err
    Path("gpu.token").chmod(0o644)
    done = cli(*asked)
    assert done.status == 0 and hosted["credential"] == TOKEN
    assert "every user of this machine can read gpu.token" in " ".join(done.err.split())
    assert "chmod 600 gpu.token" in " ".join(done.err.split()) and TOKEN not in done.err


@pytest.mark.parametrize(
    ("ending", "status"), [("left", 0), ("not_mine", 0), ("refused", 1), ("set_back", 1), ("died", 1)]
)
def test_the_exit_status_says_whether_this_machine_failed(
    cli: Cli, hosted: dict[str, Any], ending: str, status: int
) -> None:
    hosted["ending"] = ending
    assert (
        cli("platform", "worker", "--url", URL, "--pool", "gpu", "--token-file", "gpu.token").status == status
    )


@pytest.mark.parametrize(
    ("words", "status"), [("--run run_1", 80), ("--pool gpu --once", 80), ("--pool gpu", 1)]
)
def test_a_run_that_waits_for_the_store_has_an_exit_status_of_its_own(
    cli: Cli, hosted: dict[str, Any], words: str, status: int
) -> None:
    hosted["ending"] = "store_away"
    done = cli("platform", "worker", "--url", URL, "--token-file", "gpu.token", *words.split())
    assert done.status == status
    assert "amber-fox-12: waits for the platform's store" in " ".join(done.out.split())


def test_a_run_that_the_store_keeps_from_being_handed_out_has_it_too(
    cli: Cli, hosted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise StoreAwayError("the platform cannot get at its stored files now.")

    monkeypatch.setattr("osmosis_ai.platform.runs.work.hosting.host_runs", refuse)
    asked = ("platform", "worker", "--url", URL, "--token-file", "gpu.token")
    done = cli(*asked, "--run", "run_1", "--json")
    told = json.loads(done.out)
    assert (done.status, told["resource"]["runs"]) == (80, [])
    assert told["message"].endswith("cannot get at its stored files now.")
    assert cli(*asked, "--pool", "gpu").status == 1


LABELS = ",".join(f"label-{number}" for number in range(65))


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ("--token-file gpu.token", 2, "one of '--pool' and '--run'"),
        ("--pool gpu", 2, "one of '--token-file' and '--token-env'"),
        ("--pool gpu --token-env NOBODY_SET_THIS", 1, "the variable NOBODY_SET_THIS holds no worker token"),
        ("--pool gpu --token-file /dev/zero", 1, "/dev/zero holds no worker token"),
        ("--pool gpu --token-file gpu.token --idle-exit soon", 2, "'soon' is not a duration"),
        ("--pool gpu --token-file gpu.token --slots 0", 2, "--slots"),
        ("--pool gpu --token-file gpu.token --cpus nan", 2, "'--cpus': must be a number up to 1,000,000,000"),
        (f"--pool gpu --token-file gpu.token --labels {LABELS}", 2, "a machine has 64 labels at most"),
        ("--pool gpu --token-file gpu.token --labels a100,two;words", 2, "'two;words' must be a label"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_asked(
    cli: Cli, hosted: dict[str, Any], words: str, status: int, said: str
) -> None:
    done = cli("platform", "worker", "--url", URL, *words.split())
    assert done.status == status and said in done.err
    assert "address" not in hosted and done.out == ""


def test_no_token_is_sent_in_the_clear_beyond_this_machine(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSMOSIS_HOME", str(tmp_path / "home"))
    (tmp_path / "gpu.token").write_text(TOKEN)
    asked = ("platform", "worker", "--pool", "gpu", "--token-file", str(tmp_path / "gpu.token"), "--url")
    done = cli(*asked, "http://osmosis.fern.example")
    assert done.status == 1 and "insecure platform URL" in done.err and TOKEN not in done.err
