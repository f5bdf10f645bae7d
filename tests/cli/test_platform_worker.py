"""`osmosis platform worker`: its options, and what it refuses before it connects."""

from __future__ import annotations

import io
import os
import shlex
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from osmosis_ai._version import __version__
from osmosis_ai.api.models.workers import Assignment, ClaimReply, ClaimRequest
from osmosis_ai.config.execution import ExecutionSection
from osmosis_ai.controller import server_process
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.ray_jobs import TICKET_VARIABLE, Job, worker_entrypoint
from osmosis_ai.platform.server import run_platform
from osmosis_ai.platform.worker import process, worker
from osmosis_ai.platform.worker.client import CredentialRefusedError, WorkerClient
from osmosis_ai.platform.worker.evaluation import EvalWork
from osmosis_ai.platform.worker.host import Ending, ExecutedShard, HostOptions, host_runs
from osmosis_ai.sandbox.isolation import IsolationUnavailableError, SandboxCapability
from tests.cli.conftest import Cli
from tests.logins import hash_passwords_quickly
from tests.platform.worker.fake_platform import assignment

pytestmark = pytest.mark.integration

URL = "https://osmosis.fern.example"
TOKEN = "osmw_canary-4711"
BASE = ("platform", "worker", "--url", URL)


@pytest.fixture
def hosted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """The arguments of the host that the command starts; ``endings`` are those of its shards, all of one run."""
    known: dict[str, Any] = {"endings": ["ended"]}

    def host_runs(address: str, token: str, options: HostOptions, *, say: object) -> list[ExecutedShard]:
        known.update(address=address, token=token, options=options)
        endings: list[Ending] = known["endings"]
        return [ExecutedShard("run_1", "amber-fox-12", 1, ending) for ending in endings]

    monkeypatch.setattr("osmosis_ai.platform.worker.host.host_runs", host_runs)
    monkeypatch.chdir(tmp_path)
    Path("gpu.token").write_text(f"{TOKEN}\n")
    return known


def test_the_machine_is_described_and_the_token_comes_from_a_file(cli: Cli, hosted: dict[str, Any]) -> None:
    machine = ("--labels", "a100, west", "--cpus", "4", "--gpus", "2", "--memory-gb", "16")
    more = ("--slots", "3", "--idle-exit", "10m", "--once")
    done = cli(*BASE, "--pool", "gpu", "--token-file", "gpu.token", *machine, *more)
    assert done.status == 0, done.err
    assert (hosted["address"], hosted["token"]) == (URL, TOKEN)
    assert hosted["options"] == HostOptions(
        pool="gpu", slots=3, once=True, idle_exit_s=600, labels=("a100", "west"), cpus=4, gpus=2, memory_gb=16
    )
    assert TOKEN not in done.out + done.err


def test_a_machine_that_requires_a_sandbox_and_has_none_claims_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = SandboxCapability(problem="no user namespaces", remedy="sysctl -w x=1")
    monkeypatch.setattr("osmosis_ai.platform.worker.host.check_sandbox", lambda home: found)
    monkeypatch.setenv("OSMOSIS_HOME", str(tmp_path))
    monkeypatch.setenv("OSMOSIS_ISOLATION", "required")
    with pytest.raises(IsolationUnavailableError, match="no user namespaces") as caught:
        host_runs(URL, TOKEN, HostOptions(pool="gpu"), say=print)
    assert caught.value.hint == "sysctl -w x=1"


@pytest.mark.parametrize("setting", ["auto", "off"])
def test_each_claim_has_the_isolation_setting_of_the_machine(
    setting: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    claims: list[ClaimRequest] = []

    def refuse(_client: WorkerClient, claim: ClaimRequest) -> NoReturn:
        claims.append(claim)
        raise CredentialRefusedError("this machine gets no runs of 2 workspaces")

    found = SandboxCapability(problem="no user namespaces", remedy="sysctl -w x=1")
    monkeypatch.setattr("osmosis_ai.platform.worker.host.check_sandbox", lambda home: found)
    monkeypatch.setattr(WorkerClient, "claim", refuse)
    monkeypatch.setenv("OSMOSIS_HOME", str(tmp_path))
    monkeypatch.setenv("OSMOSIS_ISOLATION", setting)
    with pytest.raises(CredentialRefusedError, match="no runs of 2 workspaces"):
        host_runs(URL, TOKEN, HostOptions(pool="gpu"), say=print)
    [claim] = claims
    assert (claim.sandbox, claim.isolation) == (False, setting)
    assert claim.sandbox_problem == "no user namespaces; sysctl -w x=1"


# -- rollout servers for the granted processors ----------------------------------------------------


def job_of_a_cluster(cpus: float) -> list[str]:
    """Return the command line of a run's job in a Ray cluster."""
    _exec, _osmosis, *line = shlex.split(worker_entrypoint(Job("osm-shd_1-a", "shd_1", "first", cpus), URL))
    return line


WORKER = (*BASE, "--pool", "gpu", "--token-env", TICKET_VARIABLE)


@pytest.mark.parametrize(
    ("line", "asked", "servers"),
    [
        (WORKER, {}, 8),
        ((*WORKER, "--cpus", "2", "--slots", "2"), {}, 1),
        ((*WORKER, "--cpus", "6"), {"cpus": 3}, 2),
        # Each slot has an equal part of the machine.
        ((*WORKER, "--slots", "4"), {}, 3),
        (job_of_a_cluster(1), {}, 1),
        (job_of_a_cluster(4), {"cpus": 4}, 3),
        (job_of_a_cluster(1), {"servers": 5}, 5),
    ],
)
def test_a_run_has_servers_for_the_processors_of_its_worker(
    line: Sequence[str],
    asked: dict[str, Any],
    servers: int,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    # A machine with 16 processors.
    monkeypatch.setattr(server_process.os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr(server_process, "granted_processors", lambda *_: [])
    assert servers_of(line, asked, cli, monkeypatch, tmp_path) == servers


def servers_of(
    line: Sequence[str], asked: dict[str, Any], cli: Cli, monkeypatch: pytest.MonkeyPatch, directory: Path
) -> int:
    """Return the number of rollout servers of a run whose worker is started by this command line."""
    replies = iter([ClaimReply(assignment=assignment())])
    started: dict[str, Any] = {}
    has_started = threading.Event()

    def claim(_client: WorkerClient, _request: ClaimRequest) -> ClaimReply:
        if (reply := next(replies, None)) is not None:
            return reply
        has_started.wait(60)
        raise CredentialRefusedError("this worker token has been revoked.")

    def child(_command: list[str], **options: Any) -> NoReturn:
        started.update(options)
        has_started.set()
        raise OSError("no process is started")

    monkeypatch.setattr(WorkerClient, "claim", claim)
    monkeypatch.setattr(WorkerClient, "end", lambda *_, **__: None)
    monkeypatch.setattr(process, "ChildProcess", child)
    monkeypatch.setenv("OSMOSIS_HOME", str(directory))
    monkeypatch.setenv(TICKET_VARIABLE, TOKEN)
    cli(*line)

    found: list[int] = []

    class FakeWorker:
        def __init__(
            self, _: object, assignment: Assignment, config: PlatformConfig, directory: Any, **machine: Any
        ) -> None:
            request: Any = SimpleNamespace(execution=ExecutionSection.model_validate(asked))
            reporter: Any = SimpleNamespace(assignment=assignment)
            found.append(EvalWork(config, reporter, directory, **machine).servers(request))

        def run(self) -> int:
            return 0

    monkeypatch.setattr(os, "environ", started["env"])
    for name in ("disable_inspection", "watch_parent", "lower_priority"):
        monkeypatch.setattr(worker, name, lambda *_: None)
    monkeypatch.setattr(worker, "take_private_variables", lambda: started["private_env"])
    monkeypatch.setattr(worker, "Worker", FakeWorker)
    assert worker.main() == 0
    [servers] = found
    return servers


# -- tokens, durations and exit statuses -----------------------------------------------------------


def test_a_ticket_comes_from_a_variable_or_stdin(
    cli: Cli, hosted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSMOSIS_WORKER_TICKET", "osmt_first")
    assert cli(*BASE, "--run", "run_1", "--token-env", "OSMOSIS_WORKER_TICKET").status == 0
    assert (hosted["token"], hosted["options"].run_id) == ("osmt_first", "run_1")
    monkeypatch.setattr("sys.stdin", io.StringIO("osmt_second\n"))
    assert cli(*BASE, "--run", "run_1", "--token-file", "-").status == 0
    assert hosted["token"] == "osmt_second"


@pytest.mark.parametrize(("typed", "seconds"), [("90", 90), ("1.5m", 90), ("2h", 7200), ("1d", 86_400)])
def test_a_duration_may_have_a_unit(cli: Cli, hosted: dict[str, Any], typed: str, seconds: float) -> None:
    assert cli(*BASE, "--pool", "gpu", "--token-file", "gpu.token", "--idle-exit", typed).status == 0
    assert hosted["options"].idle_exit_s == seconds


def test_a_token_that_every_user_of_the_machine_can_read_causes_a_warning(
    cli: Cli, hosted: dict[str, Any]
) -> None:
    line = (*BASE, "--pool", "gpu", "--token-file", "gpu.token")
    Path("gpu.token").chmod(0o640)
    assert "every user" not in cli(*line).err
    Path("gpu.token").chmod(0o644)
    done = cli(*line)
    assert done.status == 0 and hosted["token"] == TOKEN
    assert "every user of this machine can read gpu.token" in " ".join(done.err.split())
    assert "chmod 600 gpu.token" in " ".join(done.err.split()) and TOKEN not in done.err


@pytest.mark.parametrize(
    ("endings", "status", "shown"),
    [
        ("ended", 0, "done"),
        ("left", 0, "released"),
        ("lease_lost", 0, "continued by another worker or ended"),
        ("unreachable", 1, "abandoned (platform unreachable)"),
        ("died ended ended", 1, "worker process died, done"),
    ],
)
def test_the_exit_status_is_1_if_a_worker_failed(
    cli: Cli, hosted: dict[str, Any], endings: str, status: int, shown: str
) -> None:
    hosted["endings"] = endings.split()
    done = cli(*BASE, "--pool", "gpu", "--token-file", "gpu.token")
    assert done.status == status
    assert f"Executed 1 run of {URL} (amber-fox-12: {shown})." in " ".join(done.out.split())


LABELS = ",".join(f"label-{number}" for number in range(65))


@pytest.mark.parametrize(
    ("words", "status", "problem"),
    [
        ("--token-file gpu.token", 2, "'--pool' and '--run': one of them is required. --pool executes"),
        (
            "--pool gpu --run run_1",
            2,
            "they are mutually exclusive. --pool executes all runs of a pool, --run only",
        ),
        ("--pool gpu", 2, "'--token-file' and '--token-env': one of them is required. --token-file reads"),
        ("--pool gpu --token-env UNSET_VARIABLE", 1, "the variable UNSET_VARIABLE holds no worker token"),
        ("--pool gpu --token-file /dev/zero", 1, "/dev/zero holds no worker token"),
        (
            "--pool gpu --token-file missing/token",
            1,
            "missing/token cannot be read: No such file or directory.",
        ),
        ("--pool gpu --token-file gpu.token --url not-a-url://x", 1, "Invalid platform URL 'not-a-url://x'"),
        ("--pool gpu --token-file gpu.token --idle-exit soon", 2, "'soon' is not a duration"),
        ("--pool gpu --token-file gpu.token --slots 0", 2, "--slots"),
        ("--pool gpu --token-file gpu.token --cpus nan", 2, "'--cpus': must be a number"),
        (f"--pool gpu --token-file gpu.token --labels {LABELS}", 2, "at most 64 labels are allowed"),
        ("--pool gpu --token-file gpu.token --labels a100,two;words", 2, "'two;words' must be a label"),
        ("--pool gpu --token-file gpu.token --labels ,,", 2, "'--labels': the list is empty."),
    ],
)
def test_invalid_options_are_refused_before_the_platform_is_asked(
    cli: Cli, hosted: dict[str, Any], words: str, status: int, problem: str
) -> None:
    done = cli(*BASE, *words.split())
    assert done.status == status and problem in done.err
    assert "address" not in hosted and done.out == ""


def test_no_token_is_sent_over_plain_http_to_another_machine(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSMOSIS_HOME", str(tmp_path / "home"))
    (tmp_path / "gpu.token").write_text(TOKEN)
    asked = ("platform", "worker", "--pool", "gpu", "--token-file", str(tmp_path / "gpu.token"), "--url")
    done = cli(*asked, "http://osmosis.fern.example")
    assert done.status == 1 and "Insecure platform URL" in done.err and TOKEN not in done.err


def test_a_refusal_of_the_platform_is_one_sentence(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSMOSIS_HOME", str(tmp_path / "machine"))
    hash_passwords_quickly(monkeypatch)

    def refusal(token: str, *options: str) -> str:
        monkeypatch.setenv("TOKEN", token)
        done = cli("platform", "worker", "--url", url, "--token-env", "TOKEN", *options)
        # The platform in this process may write to the same stream.
        errors = [line for line in done.err.splitlines() if line.startswith("Error: ")]
        assert (done.status, done.out, len(errors)) == (1, "", 1)
        return " ".join(done.err.split())

    with run_platform(PlatformConfig(home=tmp_path / "platform", port=0)) as platform:
        url, services = platform.config.base_url, platform.services
        _, worker_token = services.worker_access.create_token("gpu")
        _, user_token = services.accounts.create_token(services.accounts.users()[0].id, name="laptop")
        assert f"This token is not valid on {url}." in refusal("osmw_unknown", "--pool", "gpu")
        assert "workers need one of their own" in refusal(user_token, "--pool", "gpu")
        assert "this worker token is for the pool 'gpu', not for 'cpu'." in refusal(
            worker_token, "--pool", "cpu"
        )
        assert "or this token cannot claim it in the pool 'gpu'" in refusal(
            worker_token, "--run", "amber-fox-12"
        )
        monkeypatch.setattr("osmosis_ai.platform.worker.host.__version__", "0.0.1")
        release = refusal(worker_token, "--pool", "gpu")
        assert f"this platform is release {__version__}, and this worker is '0.0.1'" in release
    away = refusal(worker_token, "--pool", "gpu", "--idle-exit", "0.1")
    assert "Error: the platform is unreachable: Connection refused." in away
