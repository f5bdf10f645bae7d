"""Ray cluster as an executor, over its Jobs REST API.

Ray itself is not imported: it would bind the platform to the cluster's versions of Ray and Python. As of Ray 2.60:

- A cluster with authentication answers 401 without a token and 403 to a wrong one. No token is sent to other clusters.
- A second job with the same id gets 500, like many other errors, so after any error the id is looked up.
- A head without a running agent answers queries but never a job submission.
- A job that no node can hold stays ``PENDING`` without a reason and is ``FAILED`` after 15 minutes; stopping it does
  not change that.
- A lost node fails its jobs after about 15 s. A lost head makes the API hang for a minute and loses all jobs.

Every holder of the cluster's token can read job environments, so a job receives only its ticket there.
"""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from osmosis_ai.api.connections import open_http, reason
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.ray_cluster import ADDRESS_ENV, ALLOW_OPEN_ENV, TOKEN_FILE_ENV, RayCluster
from osmosis_ai.platform.runs.execute.executor import ExecutorAway, Fault, JobState, WantedJob, run_and_number
from osmosis_ai.platform.runs.execute.worker_process import ENDED, NOT_MINE, STORE_AWAY
from osmosis_ai.redaction import Redactor

if TYPE_CHECKING:
    import httpx

TICKET_VARIABLE = "OSMOSIS_WORKER_TICKET"
"""The variable of a job's environment that holds its ticket."""
TIMEOUT_S = 10.0
SUBMIT_TIMEOUT_S = 30.0
"""A head that has just got a node may take more than ten seconds to accept a job."""
ANSWER_WITHIN_S = 3.0
"""Timeout of status queries to the cluster."""
WAITS_LONG_S = 60.0
"""After this a run's log says what its job waits for."""
_LOOKED_AT_FOR_S = 60.0
_LARGEST_REPLY_BYTES = 64 << 20
_LONGEST_QUOTE = 300
_LEAST_TOLD = 0.1
"""The smallest number of processors that `osmosis platform worker --cpus` takes."""
_GIB = 1 << 30
_LOST_NODE = "because its node has died"
_NEVER_STARTED = ("JOB_SUPERVISOR_ACTOR_START_TIMEOUT", "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE")
_NOT_FOUND = 127
# Let go on purpose, or not to be had yet.
_NO_FAILURES = (ENDED, NOT_MINE)
_AGENT_HINT = (
    "of two clusters on one machine one is started with another `ray start --dashboard-agent-listen-port`"
)

_AWAY_HINT = (
    f"start it, or the tunnel to it, or name another with {ADDRESS_ENV}; its runs go on when it answers again"
)

AnswerT = TypeVar("AnswerT")


class RayError(ExecutorAway):
    """The cluster could not be asked, or does not do what it was asked."""

    where = "the Ray cluster"


class RayUnreachableError(RayError):
    """There was no answer."""

    def __init__(self, cluster: str, reason: str) -> None:
        super().__init__(
            f"{cluster} cannot be reached: {reason}.", hint="its runs go on when it answers again"
        )
        self.reason = reason


@dataclass
class _Wait:
    """A job that waits: since when, when the cluster was last asked what for, and what it said (monotonic seconds)."""

    since: float
    asked_at: float | None = None
    told: str = ""


class RayJobs:
    """The jobs of one cluster, which outlive this process; for one thread."""

    every_s = 2.0
    first_pause_s = 5.0
    works_here = False

    def __init__(
        self,
        cluster: RayCluster,
        entrypoint: Callable[[WantedJob], str],
        *,
        transport: httpx.BaseTransport | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._entrypoint = entrypoint
        self._transport = transport
        self._monotonic = monotonic
        self._client: httpx.Client | None = None
        self._looked_at: float | None = None
        self._known: set[str] = set()
        self._waits: dict[str, _Wait] = {}

    def start(self, job: WantedJob, ticket: str) -> str:
        """Hand a job to the cluster; harmless when it has it already."""
        body = {
            "entrypoint": self._entrypoint(job),
            "submission_id": job.id,
            "entrypoint_num_cpus": job.cpus,
            "entrypoint_num_gpus": job.gpus,
            "runtime_env": {"env_vars": {TICKET_VARIABLE: ticket}},
        }
        if job.memory_gb:
            body["entrypoint_memory"] = int(job.memory_gb * _GIB)
        try:
            status, text = self._ask("POST", "/api/jobs/", body)
            if status == 200:
                self._known.add(job.id)
                return f"submitted to the Ray cluster as {job.id}"
            failure = RayError(f"{self._name} did not take a job: {self._quoted(status, text, ticket)}.")
        except RayUnreachableError as error:
            # Where it does not say either whether it has the job, that is raised.
            failure = RayError(
                f"{self._name} answers, but did not take a job ({error.reason}): the agent of its head may not be "
                "running; the head's `dashboard_agent.log` says why.",
                hint=_AGENT_HINT,
            )
        except RayError as error:
            failure = error
        if self.state(job) is None:
            raise failure
        return f"submitted to the Ray cluster as {job.id}"

    def state(self, job: WantedJob) -> JobState | None:
        """Return a job's state and, after a long wait, what it waits for; None if the cluster never had it."""
        status, text = self._ask("GET", f"/api/jobs/{job.id}")
        if status == 404:
            return self._forgotten(job)
        state = self._read(status, text, _JOB).state()
        self._known.add(job.id)
        if state.phase == "waiting":
            return replace(state, told=self._waits_for(job))
        self._waits.pop(job.id, None)
        return state

    def stop(self, job: WantedJob) -> None:
        """End a job, by force after some seconds; harmless when it has ended."""
        self._waits.pop(job.id, None)
        status, text = self._ask("POST", f"/api/jobs/{job.id}/stop")
        if status not in (200, 404):
            raise RayError(f"{self._name} did not stop a job: {self._quoted(status, text)}.")

    def list(self) -> list[JobState]:
        """Return all jobs whose ids are of our making, of whatever platform."""
        found = self._read(*self._ask("GET", "/api/jobs/"), _JOBS)
        states = [job.state() for job in found if run_and_number(job.submission_id or "")]
        self._known.update(state.id for state in states if state.phase != "ended")
        return states

    def shortage(self, job: WantedJob) -> str:
        """Return what a job with these needs waits for, in a few words."""
        needs = _needs(job)
        answer = self._read(*self._ask("GET", "/api/v0/nodes?limit=10000&detail=true"), _NODES)
        nodes = [node.resources_total for node in answer.data.result.result if node.state == "ALIVE"]
        for name, amount in needs.items():
            total = sum(node.get(name, 0.0) for node in nodes)
            largest = max((node.get(name, 0.0) for node in nodes), default=0.0)
            if amount > total:
                return (
                    f"waits for {_amount(name, amount)}, the cluster has {_amount(name, total, short=True)}"
                )
            if amount > largest:
                return (
                    f"waits for a node with {_amount(name, amount)}, the largest has "
                    f"{_amount(name, largest, short=True)}"
                )
        if not any(all(node.get(name, 0.0) >= amount for name, amount in needs.items()) for node in nodes):
            asked = " and ".join(_amount(name, amount) for name, amount in needs.items())
            return f"waits for a node with {asked}, and none has all of it"
        return "waits for a node of the Ray cluster to have room"

    def require_usable(self) -> None:
        """Check that the cluster asks for a token, and takes the one that is known."""
        status, text = self._ask("GET", "/api/version")
        if status != 200:
            raise self._no_ray(status, text)

    def close(self) -> None:
        """Close the connections; the jobs go on."""
        if self._client is not None:
            self._client.close()

    def _forgotten(self, job: WantedJob) -> JobState | None:
        self._waits.pop(job.id, None)
        if job.id not in self._known:
            return None  # it never got there
        self._known.discard(job.id)
        why = "is not known to the cluster any more: it was deleted, or the head was restarted"
        return JobState(job.id, "ended", f"the Ray job {job.id} {why}")

    def _waits_for(self, job: WantedJob) -> str:
        """Return what a job waits for, asked once in a while when it has waited long; empty before."""
        now = self._monotonic()
        wait = self._waits.setdefault(job.id, _Wait(now))
        if now - (wait.since if wait.asked_at is None else wait.asked_at) >= WAITS_LONG_S:
            wait.asked_at = now
            wait.told = f"the Ray job {job.id} {self.shortage(job)}"
        return wait.told

    # -- exchanges -----------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return f"the Ray cluster at {self._cluster.address}"

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
        """Return status and body of a reply, from a cluster that asks for a token."""
        try:
            if self._looked_at is None or self._monotonic() - self._looked_at > _LOOKED_AT_FOR_S:
                self._require_closed()
                self._looked_at = self._monotonic()
            token = self._cluster.token()
            status, text = self._exchange(method, path, body, token)
            if status in (401, 403):
                raise RayError(
                    f"{self._name} refuses the token in {self._cluster.token_file}."
                    if token
                    else f"{self._name} asks for a token.",
                    hint=f"{TOKEN_FILE_ENV} names the file with the token that the cluster was started with",
                )
        except OsmosisError as error:
            self._looked_at = None
            raise error if isinstance(error, RayError) else RayError(error.message) from error
        return status, text

    def _require_closed(self) -> None:
        """Send a request without a token and refuse a cluster that answers it."""
        status, text = self._exchange("GET", "/api/version", None, None)
        if status in (401, 403) or (status == 200 and self._cluster.allow_open):
            return
        if status == 200:
            raise RayError(
                f"{self._name} answers without a token, so nothing is sent to it.",
                hint="start it with RAY_AUTH_MODE=token (Ray 2.52 and later), or on a network you trust set "
                f"{ALLOW_OPEN_ENV}=1",
            )
        raise self._no_ray(status, text)

    def _exchange(
        self, method: str, path: str, body: dict[str, Any] | None, token: str | None
    ) -> tuple[int, str]:
        import httpx

        if self._client is None:
            self._client = open_http(
                self._cluster.address, headers={}, timeout_s=TIMEOUT_S, transport=self._transport
            )
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            with self._client.stream(
                method,
                f"{self._cluster.address}{path}",
                headers=headers,
                json=body,
                timeout=SUBMIT_TIMEOUT_S if body else TIMEOUT_S,
            ) as reply:
                return reply.status_code, b"".join(self._bounded(reply)).decode("utf-8", "replace")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise RayUnreachableError(self._name, reason(error)) from None

    def _bounded(self, reply: httpx.Response) -> Iterator[bytes]:
        """Yield a body, as long as it is neither too large nor too slow."""
        size, began = 0, time.monotonic()
        for part in reply.iter_bytes():
            size += len(part)
            if size > _LARGEST_REPLY_BYTES or time.monotonic() - began > 6 * TIMEOUT_S:
                raise RayError(f"{self._name} answers with more than can be read.")
            yield part

    def _read(self, status: int, text: str, shape: TypeAdapter[AnswerT]) -> AnswerT:
        if status != 200:
            raise self._no_ray(status, text)
        try:
            return shape.validate_json(text)
        except ValidationError:
            raise RayError(f"{self._name} does not answer as Ray's Jobs API does.") from None

    def _no_ray(self, status: int, text: str) -> RayError:
        return RayError(f"{self._name} does not do its part: {self._quoted(status, text)}.")

    def _quoted(self, status: int, text: str, secret: str = "") -> str:
        """Return the last line of a reply, which is where Python says what went wrong, without secrets."""
        lines = [line.strip() for line in text.splitlines() if len(line.strip()) > 1]
        shown = Redactor(filter(None, (secret, self._cluster.token()))).text(lines[-1] if lines else "")
        return f"{status} {shown[:_LONGEST_QUOTE]}".strip().rstrip(".")


def cluster_problem(cluster: RayCluster, *, within_s: float = ANSWER_WITHIN_S) -> str | None:
    """Return why a cluster cannot accept jobs now, with a fix; None if no problem is found."""
    found: list[str | None] = []

    def look() -> None:
        jobs = RayJobs(cluster, str)
        try:
            jobs.require_usable()
            found.append(None)
        except RayUnreachableError as error:
            found.append(f"{error.message} ({_AWAY_HINT})")
        except RayError as error:
            found.append(error.with_hint)
        finally:
            jobs.close()

    looking = threading.Thread(target=look, name="osmosis-ray-look", daemon=True)
    looking.start()
    looking.join(within_s)
    silent = f"the Ray cluster at {cluster.address} has not answered within {within_s:g} s. ({_AWAY_HINT})"
    return found[0] if found else silent


def worker_entrypoint(job: WantedJob, platform_url: str) -> str:
    """Return a node's command for a run. `exec` leaves no shell in between, so the cluster ends the worker itself."""
    command = ["osmosis", "platform", "worker", "--run", job.run_id, "--url", platform_url]
    granted = f"{max(job.cpus, _LEAST_TOLD):.12g}"
    return shlex.join(["exec", *command, "--token-env", TICKET_VARIABLE, "--cpus", granted])


class _JobAnswer(BaseModel):
    submission_id: str | None = None
    status: str
    message: str | None = None
    error_type: str | None = None
    driver_exit_code: int | None = None

    def state(self) -> JobState:
        job = self.submission_id or ""
        if self.status == "PENDING":
            return JobState(job, "waiting")
        if self.status == "RUNNING":
            return JobState(job, "running", f"the Ray job {job} is running")
        is_lost = _LOST_NODE in (self.message or "")
        is_blameless = is_lost or self.status == "STOPPED" or self.error_type in _NEVER_STARTED
        fault: Fault = "nobody" if is_blameless or self.driver_exit_code in _NO_FAILURES else "run"
        if self.driver_exit_code == STORE_AWAY:
            return JobState(job, "ended")  # the desk has said on the run what it waits for
        told = f"the Ray job {job} has ended: {self._ending(is_lost)}"
        return JobState(job, "ended", told, fault, f"`ray job logs {job}`")

    def _ending(self, is_lost: bool) -> str:
        if is_lost:
            return "its node was lost"
        if self.error_type in _NEVER_STARTED:
            return "no node had room for it in time"
        if self.status == "STOPPED":
            return "it was stopped"
        if self.driver_exit_code == _NOT_FOUND:
            return "the node has no command `osmosis` on the PATH of its Ray"
        if self.driver_exit_code is not None:
            return f"its worker ended with {self.driver_exit_code}"
        first = (self.message or "").strip().splitlines()
        return first[0][:_LONGEST_QUOTE].rstrip(":. ") if first else self.status.lower()


class _Node(BaseModel):
    state: str
    resources_total: dict[str, float] = {}


class _NodePage(BaseModel):
    result: list[_Node]


class _NodeData(BaseModel):
    result: _NodePage


class _NodeAnswer(BaseModel):
    data: _NodeData


_JOB = TypeAdapter(_JobAnswer)
_JOBS = TypeAdapter(list[_JobAnswer])
_NODES = TypeAdapter(_NodeAnswer)


def _needs(job: WantedJob) -> dict[str, float]:
    """Return the resources that a job asks for, by Ray's names."""
    memory = {"memory": job.memory_gb * _GIB} if job.memory_gb else {}
    return {"CPU": job.cpus, **({"GPU": float(job.gpus)} if job.gpus else {}), **memory}


def _amount(name: str, amount: float, *, short: bool = False) -> str:
    """Return an amount of a resource in words: `8 GPUs`, short `8`."""
    if name == "memory":
        return f"{round(amount / _GIB, 1):g} GiB" + ("" if short else " of memory")
    return f"{amount:g}" if short else f"{amount:g} {name}{'' if amount == 1 else 's'}"
