"""The worker protocol over HTTP: which callers and bodies it accepts, and what it records about machines."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from fastapi.testclient import TestClient

from osmosis_ai.api.models.workers import (
    CLAIM,
    LARGEST_EXCHANGE_BYTES,
    Assignment,
    ClaimReply,
    SyncReply,
    shard_route,
)
from osmosis_ai.platform import machines
from osmosis_ai.platform.machines import Machine
from osmosis_ai.platform.runs import submitter
from osmosis_ai.sandbox.isolation import SandboxCapability
from tests.evaluation.builders import record
from tests.platform.conftest import World, assert_flat_error
from tests.platform.evaluations import submit_body
from tests.platform.fake_worker import EVALS, GPU, claim_request, journal_of, pool_token, settle
from tests.platform.runs.conftest import code, rows  # noqa: F401 - fixtures of `member`
from tests.platform.runs.conftest import member as member_with_code  # noqa: F401


@pytest.fixture
def member(member_with_code: Any) -> Any:  # noqa: F811
    return member_with_code


class Host:
    """A machine of the pool ``gpu`` that speaks HTTP."""

    def __init__(self, api: TestClient, bearer: str) -> None:
        self.api, self.bearer = api, bearer

    def post(self, route: str, body: Any, bearer: str | None = None, **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        token = self.bearer if bearer is None else bearer
        return self.api.post(route, content=content, headers={"Authorization": f"Bearer {token}", **headers})

    def claim(self, **fields: Any) -> httpx.Response:
        return self.post(CLAIM, claim_request(**fields).to_wire())

    def claimed(self, **fields: Any) -> Assignment | None:
        reply = self.claim(**fields)
        assert reply.status_code == 200, reply.text
        return ClaimReply.model_validate(reply.json()).assignment


@pytest.fixture
def host(api: TestClient, world: World) -> Host:
    return Host(api, pool_token(world))


@pytest.fixture
def given(host: Host, world: World) -> Assignment:
    """The only shard of a run, which the host has claimed."""
    EVALS.taken(host.api, advanced_config=GPU)
    settle(world)
    found = host.claimed()
    assert found is not None
    return found


def lease_of(given: Assignment) -> str:
    return given.lease.token.get_secret_value()


def test_a_shard_is_claimed_reported_and_finished(host: Host, given: Assignment, world: World) -> None:
    assert given.source is not None
    # A signed URL authorizes itself, and no token goes there.
    assert host.api.get(given.source.url, headers={"Authorization": ""}).status_code == 200
    own = [record(row, number) for row in range(3) for number in range(2)]
    lines, lease, route = journal_of(own), lease_of(given), shard_route(given.shard.id, "sync")
    body = gzip.compress(orjson.dumps({"journal": {"offset": 0, "lines": lines.decode()}}))
    for _ in range(2):
        reply = SyncReply.model_validate(host.post(route, body, lease, **{"Content-Encoding": "gzip"}).json())
        assert (reply.journal_bytes, reply.stop, reply.term_s) == (len(lines), False, 30.0)
    headers = {"Authorization": f"Bearer {lease}"}
    assert host.api.get(shard_route(given.shard.id, "journal"), headers=headers).content == lines
    for _ in range(2):
        ended = host.post(shard_route(given.shard.id, "finish"), {"outcome": "finished"}, lease)
        assert ended.json() == {"status": "finished"}
    assert_flat_error(host.post(route, {}, lease), 409, "LEASE_LOST")
    reply = host.claim()
    assert (reply.json(), host.claimed()) == ({"next_poll_s": 1.0}, None)


@pytest.mark.parametrize(
    ("bearer", "status", "error"),
    [
        ("", 401, "TOKEN_MISSING"),
        ("osmw_none", 401, "TOKEN_INVALID"),
        ("osmt_none", 401, "TICKET_VOID"),
        ("user", 403, "WORKER_TOKEN_REQUIRED"),
        ("lease", 401, "TOKEN_INVALID"),
        ("revoked", 401, "TOKEN_REVOKED"),
    ],
)
def test_a_claim_needs_a_valid_token(
    host: Host, given: Assignment, world: World, bearer: str, status: int, error: str
) -> None:
    if bearer == "revoked":
        for known in world.services.worker_access.tokens():
            world.services.worker_access.revoke_token(known.id)
    user = host.api.headers["Authorization"].removeprefix("Bearer ")
    host.bearer = {"user": user, "lease": lease_of(given), "revoked": host.bearer}.get(bearer, bearer)
    if not bearer:
        reply = host.api.post(CLAIM, json=claim_request().to_wire(), headers={"Authorization": ""})
    else:
        reply = host.claim()
    assert_flat_error(reply, status, error)
    assert lease_of(given) not in reply.text


@pytest.mark.parametrize("call", ["sync", "finish", "release", "journal"])
def test_calls_about_a_shard_need_its_lease(host: Host, given: Assignment, world: World, call: Any) -> None:
    route, body = shard_route(given.shard.id, call), {"outcome": "failed"} if call == "finish" else {}
    user = host.api.headers["Authorization"].removeprefix("Bearer ")
    ticket = world.services.worker_access.issue_ticket(given.shard.id)
    EVALS.taken(host.api, advanced_config=GPU)
    settle(world)
    other = host.claimed()
    assert other is not None and other.shard.id != given.shard.id
    leases = lease_of(other), lease_of(given) + "x"
    for bearer in (host.bearer, ticket, user, world.services.worker_access.local_token, *leases, "é"):
        headers = {"Authorization": f"Bearer {bearer}".encode()}
        if call == "journal":
            reply = host.api.get(route, headers=headers)  # type: ignore[arg-type]
        else:
            reply = host.api.post(route, json=body, headers=headers)  # type: ignore[arg-type]
        assert_flat_error(reply, 409, "LEASE_LOST")
    anonymous = {"Authorization": ""}
    reply = (
        host.api.get(route, headers=anonymous)
        if call == "journal"
        else host.api.post(route, json=body, headers=anonymous)
    )
    assert_flat_error(reply, 401, "TOKEN_MISSING")
    assert host.post(shard_route(given.shard.id, "sync"), {}, lease_of(given)).status_code == 200


def test_revoking_a_token_ends_its_leases(host: Host, given: Assignment, world: World) -> None:
    [token] = world.services.worker_access.tokens()
    world.services.worker_access.revoke_token(token.id)
    for call, body in (("sync", {}), ("finish", {"outcome": "finished"}), ("release", {})):
        reply = host.post(shard_route(given.shard.id, call), body, lease_of(given))  # type: ignore[arg-type]
        assert_flat_error(reply, 409, "LEASE_LOST")
    successor = Host(host.api, pool_token(world)).claimed()
    assert successor is not None and successor.shard.id == given.shard.id


# -- bodies ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "encoding", "status", "error"),
    [
        (b"no gzip", "gzip", 400, "INVALID_BODY"),
        (gzip.compress(b"{}", mtime=0)[:-9], "gzip", 400, "INVALID_BODY"),
        (gzip.compress(b" " * (64 * LARGEST_EXCHANGE_BYTES)), "gzip", 413, "BODY_TOO_LARGE"),
        (b" " * (LARGEST_EXCHANGE_BYTES + 1), "identity", 413, "BODY_TOO_LARGE"),
        (b"{}", "br", 415, "ENCODING_UNKNOWN"),
        (b'{"worked_s": NaN}', "identity", 400, "INVALID_JSON"),
        (b'{"a":' * 2000 + b"1" + b"}" * 2000, "identity", 400, "INVALID_JSON"),
        (b'{"worked_s": "long"}', "identity", 400, "VALIDATION_FAILED"),
        (b"[]", "identity", 400, "VALIDATION_FAILED"),
        (b"\xff", "identity", 400, "INVALID_JSON"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else None,
)
def test_a_body_that_cannot_be_read_is_refused(
    host: Host, given: Assignment, body: bytes, encoding: str, status: int, error: str
) -> None:
    assert len(body) < LARGEST_EXCHANGE_BYTES + 2
    for route, bearer in ((shard_route(given.shard.id, "sync"), lease_of(given)), (CLAIM, host.bearer)):
        reply = host.post(route, body, bearer, **{"Content-Encoding": encoding})
        assert_flat_error(reply, status, error)
    assert host.post(shard_route(given.shard.id, "sync"), {}, lease_of(given)).status_code == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"claim_id": "short"},
        {"machine": "m" * 129},
        {"machine": "a\0"},
        {"labels": ["l"] * 65},
        {"memory_gb": 1e10},
        {"gpus": -1},
        {"isolation": "none"},
        {"pool": "a\nb"},
    ],
)
def test_a_claim_that_no_host_sends_is_refused(host: Host, fields: dict[str, Any]) -> None:
    reply = host.post(CLAIM, {**claim_request().to_wire(), **fields})
    assert_flat_error(reply, 400, "VALIDATION_FAILED")


def test_a_worker_of_another_protocol_or_release_learns_which_one_it_needs(host: Host) -> None:
    for version in ("v1", "v3"):
        reply = host.post(f"/api/workers/{version}/claim", claim_request().to_wire())
        body = assert_flat_error(reply, 426, "WORKER_PROTOCOL")
        assert "version 2" in body["error"] and "install osmosis-ai" in body["error"]
    assert_flat_error(host.claim(sdk_version="0.0.1"), 426, "WORKER_RELEASE")


# -- machines --------------------------------------------------------------------------------------


def known(world: World) -> set[str | None]:
    return {row.machine for row, *_ in world.services.worker_access.known.all()}


def test_a_token_has_a_limit_of_machines_and_takes_no_place_of_others(
    host: Host, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    Host(host.api, pool_token(world)).claim(machine="honest")
    monkeypatch.setattr(machines, "_MOST_OF_TOKEN", 3)
    for number in range(6):
        host.claim(machine=f"box-{number}")
    assert len(known(world)) == 4 and "honest" in known(world)


def test_a_machine_leaves_with_its_own_token_only(host: Host, world: World) -> None:
    host.claim(machine="box-1")
    leaving = claim_request(machine="box-1", leaves=True).to_wire()
    for bearer, status in (("nobody", 401), ("osmt_none", 200), (pool_token(world, "other"), 200)):
        assert host.post(CLAIM, leaving, bearer).status_code == status
    assert known(world) == {"box-1"}
    assert host.post(CLAIM, leaving).json() == {}
    assert known(world) == set()


def issues(api: TestClient, **changes: Any) -> list[dict[str, Any]]:
    """Return what is wrong with a submit."""
    found: list[dict[str, Any]] = EVALS.refused(api, 400, "INVALID_CONFIG", **changes)["issues"]
    return found


def test_labels_are_checked_when_a_run_is_submitted(api: TestClient) -> None:
    asks = {"execution": {"labels": ["a100", "two words"]}}
    assert {issue["key"] for issue in issues(api, advanced_config=asks)} == {"advanced.execution.labels"}
    alone = issues(api, advanced_config={"execution": {"labels": ["a100"]}})
    assert alone[0]["message"] == "chooses among the workers of a pool: name it with `pool`"
    near = issues(api, advanced_config={"execution": {"label": ["a100"], "pool": "gpu"}})
    assert near[0]["key_correction"] == "advanced.execution.labels"


@pytest.mark.parametrize(("key", "value"), [("isolation", "required"), ("network", "none")])
def test_a_sandbox_that_the_platforms_machine_lacks_is_refused_at_submit(
    api: TestClient, monkeypatch: pytest.MonkeyPatch, key: str, value: str
) -> None:
    found = SandboxCapability(problem="the kernel allows no user namespaces", remedy="sysctl -w x=1")
    monkeypatch.setattr("osmosis_ai.platform.isolation.check_sandbox", lambda home: found)
    (issue,) = issues(api, advanced_config={"execution": {key: value}})
    assert issue["key"] == f"advanced.execution.{key}"
    for part in ("needs a sandbox", found.problem, found.remedy):
        assert part in issue["message"]
    served = submit_body()["experiment_config"] | {"entrypoint": "server://nobody"}
    (issue,) = issues(api, experiment_config=served, advanced_config={"execution": {key: value}})
    assert issue["key"] == "experiment.entrypoint"
    EVALS.taken(api, advanced_config={"execution": {key: value, "pool": "gpu"}})


def test_resources_that_the_platforms_machine_lacks_are_refused_at_submit(
    api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submitter, "own_machine", lambda: Machine(gpus=1, memory_gb=16))
    asks = {"gpus": 2, "memory_gb": 64}
    [issue] = issues(api, advanced_config={"execution": asks})
    assert issue["key"] == "advanced.execution.gpus"
    assert "it has 1 of 2 GPUs, 16 of 64 GiB of memory; name a pool" in issue["message"]
    EVALS.taken(api, advanced_config={"execution": {"gpus": 1, "memory_gb": 16}})
    EVALS.taken(api, advanced_config={"execution": {**asks, "pool": "gpu"}})


@pytest.mark.parametrize(
    ("files", "membership", "gb"),
    [
        ({"user/job/memory.max": "max\n", "user/memory.max": f"{64 << 20}\n"}, "0::/user/job\n", 0.1),
        # In a container the path is the host's, and the limit is at the root.
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
    bare = submitter.own_machine(tmp_path).memory_gb
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(membership)
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert bare is not None and bare > 0.3, "all that the machine has"
    assert submitter.own_machine(tmp_path).memory_gb == (gb if gb is not None else bare)
