"""Which machine a run goes to by what it asks for, and what is said of one that no known machine can take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.api.wire.workers import CLAIM
from osmosis_ai.platform import known_workers
from osmosis_ai.platform.known_workers import KEPT
from osmosis_ai.platform.runs import own_machine
from osmosis_ai.platform.runs.fitting import Machine
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.sandbox import SandboxCapability
from osmosis_ai.viewer.source import RunQuery
from tests.platform.conftest import ManualClock, Member
from tests.platform.evaluations import Submits, submit_body, wait_until
from tests.platform.http.test_workers import Spoken, member, token  # noqa: F401 - fixtures
from tests.platform.runs.conftest import code, rows  # noqa: F401 - fixtures of `member`
from tests.platform.runs.conftest import member as member_with_code  # noqa: F401
from tests.platform.runs.desk.desk_workers import offer
from tests.platform.viewer.runs_world import statements_of
from tests.platform.viewer.test_platform_source import source_of
from tests.sandbox.test_gpus import make_gpus

SUBMITS = Submits("/api/cli/eval-runs", submit_body)
PROBLEM = "the kernel allows no user namespaces; sysctl -w user.max_user_namespaces=15000"


@pytest.fixture
def machine(api: TestClient, token: str) -> Spoken:  # noqa: F811
    return Spoken(api, token)


def submitted(api: TestClient, **asks: Any) -> str:
    advanced = {"execution": {"pool": "gpu", **asks}}
    name: str = SUBMITS.taken(api, advanced_config=advanced)["name"]
    return name


def waits(api: TestClient, name: str) -> str | None:
    found: str | None = api.get(f"/api/cli/eval-runs/{name}").json().get("waits")
    return found


def issues(api: TestClient, **changes: Any) -> list[dict[str, Any]]:
    """Return what is wrong with a submit."""
    found: list[dict[str, Any]] = SUBMITS.refused(api, 400, "INVALID_CONFIG", **changes)["issues"]
    return found


def test_a_run_goes_to_a_worker_that_has_all_of_its_labels(api: TestClient, machine: Spoken) -> None:
    name = submitted(api, labels=["a100", "zone=eu"])
    assert machine.claim(labels=["a100"]).status_code == 204
    assert machine.claim().status_code == 204
    assert machine.claimed(labels=["zone=eu", "nvme", "a100"]).run.name == name


@pytest.mark.parametrize(
    ("asks", "has", "lacks"),
    [
        ({"cpus": 8}, {"cpus": 4}, "8 cpus (has 4)"),
        ({"gpus": 1}, {}, "1 gpus (has 0)"),
        ({"memory_gb": 64}, {"memory_gb": 16}, "64 GiB of memory (has 16)"),
        (
            {"isolation": "required"},
            {"sandbox": False, "sandbox_problem": PROBLEM},
            f"a sandbox ({PROBLEM})",
        ),
        ({"network": "none"}, {"sandbox": False, "sandbox_problem": PROBLEM}, f"a sandbox ({PROBLEM})"),
    ],
)
def test_a_run_that_asks_for_more_than_a_worker_has_waits_and_says_why(
    api: TestClient, machine: Spoken, asks: dict[str, Any], has: dict[str, Any], lacks: str
) -> None:
    name = submitted(api, **asks)
    assert machine.claim(machine="box-1", **has).status_code == 204
    assert waits(api, name) == (
        f"no known worker of the pool 'gpu' has all that this run asks for: box-1 lacks {lacks}."
    )
    enough = {"cpus": 8, "gpus": 1, "memory_gb": 64, "sandbox": True}
    assert machine.claimed(machine="box-2", **enough).run.name == name
    assert waits(api, name) is None


def test_the_page_names_the_label_that_no_known_worker_has(
    api: TestClient,
    machine: Spoken,
    services: PlatformServices,
    member: Member,  # noqa: F811
) -> None:
    name = submitted(api, labels=["a100", "zone=mars"])
    machine.claim(labels=["a100"], machine="box-1")
    said = "no known worker of the pool 'gpu' has the label `zone=mars`."
    assert waits(api, name) == said
    assert ("Waits", said) in source_of(services, member).run("eval", name).facts
    machine.claim(labels=["zone=mars"], machine="box-2")
    assert waits(api, name) == (
        "no known worker of the pool 'gpu' has all that this run asks for: box-1 lacks the label `zone=mars`; "
        "box-2 lacks the label `a100`."
    )


def test_the_words_of_one_machine_are_said_once_and_of_those_heard_of_lately_first(
    api: TestClient, machine: Spoken, clock: ManualClock
) -> None:
    submitted(api, labels=["start-0"])
    for number, name in enumerate(("at-work", *["a-vm"] * 3, "b-vm", "c-vm")):
        machine.claim(machine=name, labels=[f"start-{number}"])  # another machine, as it says
        clock.advance(120)
    name = submitted(api, gpus=8)
    named = "no known worker of the pool 'gpu' has all that this run asks for: "
    lacks = "lacks 8 gpus (has 0)"
    assert waits(api, name) == f"{named}c-vm {lacks}; b-vm {lacks}; a-vm {lacks}; and 1 more lack something."
    given = machine.claimed(machine="at-work", labels=["start-0"])
    clock.advance(15)
    machine.claim(machine="c-vm", labels=["start-9"])
    assert (waits(api, name) or "").startswith(f"{named}c-vm {lacks}; at-work {lacks}; b-vm")
    clock.advance(5)
    assert machine.sync(given).status_code == 200
    assert (
        waits(api, name) == f"{named}at-work {lacks}; c-vm {lacks}; b-vm {lacks}; and 1 more lack something."
    )


def test_lists_say_of_every_run_what_its_own_page_says_in_as_many_statements_however_many_wait(
    api: TestClient,
    services: PlatformServices,
    member: Member,  # noqa: F811
) -> None:
    for _ in range(3):
        submitted(api, pool="nobodys")
    source = source_of(services, member)
    counts: dict[str, list[int]] = {"rest": [], "page": []}
    for machines in (1, 12):
        for number in range(machines):
            _, plain = services.worker_access.create_token("gpu")
            Spoken(api, plain).claim(machine=f"box-{number}", cpus=1)
            submitted(api, gpus=number + 1)
            submitted(api, pool="gpu", labels=[f"l-{number}"])
        with statements_of(services.db) as noted:
            listed = api.get("/api/cli/eval-runs", params={"limit": 50}).json()["eval_runs"]
        counts["rest"].append(len(noted))
        with statements_of(services.db) as noted:
            page = source.runs(RunQuery(kind="eval"), limit=50)
        counts["page"].append(len(noted))
        shown = {entry.name: entry.waits for entry in page.items}
        assert {run["name"]: run.get("waits") for run in listed} == shown
        assert shown == {name: waits(api, name) for name in shown}
        assert sum("lacks" in (why or "") for why in shown.values()) >= machines
    assert len(set(counts["rest"])) == len(set(counts["page"])) == 1, counts
    assert max(counts["page"]) <= 12


def test_a_pool_without_a_token_or_a_worker_is_told_so_and_who_is_long_gone_is_forgotten(
    api: TestClient,
    services: PlatformServices,
    clock: ManualClock,
    member: Member,  # noqa: F811
) -> None:
    name = submitted(api)
    assert "osmosis platform worker-token create --pool gpu" in (waits(api, name) or "")
    granted, plain = services.worker_access.create_token("gpu", workspace_ids=["wsp_of_others"])
    assert "no worker token is good for" in (waits(api, name) or "")
    granted, plain = services.worker_access.create_token("gpu", workspace_ids=[member.workspace.id])
    assert waits(api, name) == "no worker of the pool 'gpu' has asked for a run in the last 7 days."
    small = Spoken(api, plain)
    other = submitted(api, cpus=64)
    assert small.claimed(cpus=2, machine="box-1").run.name == name
    assert "box-1 lacks 64 cpus (has 2)" in (waits(api, other) or "")
    clock.advance(KEPT.total_seconds() + 60)
    services.worker_access.known.forget_old()
    assert "has asked for a run" in (waits(api, other) or "")
    services.worker_access.revoke_token(granted.id)
    assert "no worker token is good for" in (waits(api, other) or "")


def test_a_token_that_is_another_machine_with_each_claim_is_known_for_so_many(
    api: TestClient, machine: Spoken, services: PlatformServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, plain = services.worker_access.create_token("gpu")
    honest = Spoken(api, plain)

    def known() -> set[str]:
        return {row.machine for row, *_ in services.worker_access.known.all()}

    def claim(spoken: Spoken, name: str) -> bool:
        """Claim, and return whether the machine was noted: a claim does not wait for a busy database to note it."""
        assert spoken.claim(machine=name).status_code == 204
        return name in known()

    wait_until(lambda: claim(honest, "honest"))
    monkeypatch.setattr(known_workers, "_MOST_OF_TOKEN", 3)
    for number in range(6):
        machine.claim(machine=f"box-{number}")
    assert len(known()) == 4 and "honest" in known()


def test_a_machine_that_has_left_is_not_listed_and_known_for_what_it_has(
    api: TestClient, machine: Spoken, services: PlatformServices, clock: ManualClock
) -> None:
    def there() -> list[tuple[str | None, int]]:
        return [(row.machine, runs) for row, runs, _ in services.worker_access.known.all()]

    box = {"machine": "box-1", "cpus": 4}
    assert machine.claim(**box).status_code == 204
    name = submitted(api, cpus=8)
    assert machine.post(CLAIM, offer(**box, leaves=True).to_wire()).status_code == 204
    assert machine.post(CLAIM, offer(machine="never-there", leaves=True).to_wire()).status_code == 204
    assert there() == []
    assert "box-1 lacks 8 cpus (has 4)" in (waits(api, name) or "")
    clock.advance(10)
    assert machine.claim(**box).status_code == 204  # started again
    assert there() == [("box-1", 0)]


def test_a_machine_that_left_with_a_run_works_on_it_as_long_as_its_lease_lasts(
    api: TestClient, machine: Spoken, services: PlatformServices, clock: ManualClock
) -> None:
    submitted(api)
    given = machine.claimed(machine="box-1")
    assert machine.post(CLAIM, offer(machine="box-1", leaves=True).to_wire()).status_code == 204
    assert [runs for _, runs, _ in services.worker_access.known.all()] == [1]
    clock.advance(given.lease.term_s + 60)
    assert services.worker_access.known.all() == []


def test_who_may_not_ask_can_not_leave(api: TestClient, machine: Spoken, services: PlatformServices) -> None:
    machine.claim(machine="box-1")
    for bearer in ("nobody", "osmosis_ticket_of-nobody", services.worker_access.create_token("other")[1]):
        Spoken(api, bearer).post(CLAIM, offer(machine="box-1", leaves=True).to_wire())
    assert Spoken(api, "nobody").post(CLAIM, offer(leaves=True).to_wire()).status_code == 401
    assert [row.machine for row, *_ in services.worker_access.known.all()] == ["box-1"]


@pytest.mark.parametrize(
    "said", [{"cpus": "nan"}, {"memory_gb": "inf"}, {"gpus": "9" * 4000}, {"gpus": -1}, {"cpus": -1}]
)
def test_a_machine_has_numbers_of_what_it_has(machine: Spoken, said: dict[str, Any]) -> None:
    reply = machine.post(CLAIM, {**offer().to_wire(), **said})
    assert (reply.status_code, reply.json()["code"]) == (400, "VALIDATION_FAILED")


def test_runs_for_a_machine_that_there_is_not_hold_up_none_of_their_workspace(
    api: TestClient, machine: Spoken, services: PlatformServices, clock: ManualClock
) -> None:
    for _ in range(30):
        SUBMITS.taken(api, advanced_config={"execution": {"pool": "gpu", "labels": ["h200"]}})
        clock.advance(1)
    name = submitted(api)
    assert machine.claimed(labels=["a100"]).run.name == name


def test_labels_are_checked_when_a_run_is_submitted(api: TestClient) -> None:
    asks = {"execution": {"labels": ["a100", "two words"]}}
    assert {issue["key"] for issue in issues(api, advanced_config=asks)} == {"advanced.execution.labels"}
    alone = issues(api, advanced_config={"execution": {"labels": ["a100"]}})
    assert alone[0]["message"] == "chooses among the workers of a pool: name it with `pool`"
    near = issues(api, advanced_config={"execution": {"label": ["a100"], "pool": "gpu"}})
    assert near[0]["key_correction"] == "advanced.execution.labels"


@pytest.mark.parametrize(("key", "value"), [("isolation", "required"), ("network", "none")])
def test_what_the_platforms_own_machine_can_not_hold_back_is_refused_at_submit(
    api: TestClient, monkeypatch: pytest.MonkeyPatch, key: str, value: str
) -> None:
    found = SandboxCapability(problem="the kernel allows no user namespaces", remedy="sysctl -w x=1")
    monkeypatch.setattr("osmosis_ai.platform.isolation.check_sandbox", lambda home: found)
    (issue,) = issues(api, advanced_config={"execution": {key: value}})
    assert issue["key"] == f"advanced.execution.{key}"
    assert issue["message"] == (
        "needs a sandbox, and the platform's machine can make none: the kernel allows no user namespaces; sysctl -w x=1, or "
        "name a pool whose workers can"
    )
    served = submit_body()["experiment_config"] | {"entrypoint": "server://nobody"}
    (issue,) = issues(api, experiment_config=served, advanced_config={"execution": {key: value}})
    assert issue["key"] == "experiment.entrypoint", "an agent that is served elsewhere is in nobody's sandbox"
    SUBMITS.taken(api, advanced_config={"execution": {key: value, "pool": "gpu"}})


def test_what_the_platforms_own_machine_does_not_have_is_refused_at_submit_and_goes_to_a_pool(
    api: TestClient,
    monkeypatch: pytest.MonkeyPatch,
    member: Member,  # noqa: F811
) -> None:
    monkeypatch.setattr(own_machine, "own_machine", lambda: Machine(gpus=1, memory_gb=16))
    asks = {"gpus": 2, "memory_gb": 64}
    [issue] = issues(api, advanced_config={"execution": asks})
    assert issue["key"] == "advanced.execution.gpus"
    assert "the platform's own machine has" in issue["message"]
    assert "2 gpus (has 1), 64 GiB of memory (has 16); name a pool" in issue["message"]
    SUBMITS.taken(api, advanced_config={"execution": {"gpus": 1, "memory_gb": 16}})
    SUBMITS.taken(api, advanced_config={"execution": {**asks, "pool": "gpu"}})


def test_the_machine_counts_the_gpus_that_it_may_use_and_none_of_a_driver_it_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    root = make_gpus(tmp_path)
    assert own_machine.own_machine(root).gpus == 2
    assert (own_machine.own_machine(root).memory_gb or 0) > 0.1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert own_machine.own_machine(root).gpus == 1
    (root / "dev" / "kfd").touch()
    assert own_machine.own_machine(root).gpus is None


@pytest.mark.parametrize(
    ("files", "membership", "gb"),
    [
        ({"user/job/memory.max": "max\n", "user/memory.max": f"{64 << 20}\n"}, "0::/user/job\n", 0.1),
        # In a container the path is the host's, and what is granted stands at the root.
        ({"memory.max": f"{200 << 20}\n"}, "0::/docker/abc\n", 0.2),
        ({"memory/job/memory.limit_in_bytes": f"{100 << 20}\n"}, "4:cpu:/\n7:memory:/job\n", 0.1),
        ({"memory/memory.limit_in_bytes": f"{9223372036854771712}\n"}, "7:memory:/\n", None),
        ({"memory.max": f"{1 << 60}\n"}, "0::/\n", None),
        ({"memory.max": "what\n"}, "0::/\nnonsense\n", None),
    ],
)
def test_the_machine_has_the_memory_that_its_control_groups_grant(
    tmp_path: Path, files: dict[str, str], membership: str, gb: float | None
) -> None:
    bare = own_machine.own_machine(tmp_path).memory_gb
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(membership)
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert bare is not None and bare > 0.3, "all that it has"
    assert own_machine.own_machine(tmp_path).memory_gb == (gb if gb is not None else bare)
