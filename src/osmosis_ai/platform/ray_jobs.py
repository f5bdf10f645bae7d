"""Starts hosts on a Ray cluster, over its Jobs REST API: a job with a one-time ticket for each shard that waits.

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

import logging
import secrets
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from osmosis_ai.api.connections import open_http, reason
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.ray_cluster import ADDRESS_ENV, ALLOW_OPEN_ENV, TOKEN_FILE_ENV, RayCluster
from osmosis_ai.redaction import Redactor

if TYPE_CHECKING:
    import httpx

    from osmosis_ai.platform.db.tables import DbRunShard
    from osmosis_ai.platform.queue.access import WorkerAccess
    from osmosis_ai.platform.queue.queue import RunQueue

logger = logging.getLogger(__name__)

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
_PREFIX = "osm-"
_ROUND_S = 2.0
_STOP_WITHIN_S = 120.0
"""How long the job of a run that must stop may take to end before the cluster ends it."""
_MOST_EXPLAINED = 1000
_LEAST_CPUS = 0.1
"""The smallest number of processors that `osmosis platform worker --cpus` takes."""
_GIB = 1 << 30
_LOST_NODE = "because its node has died"
_NEVER_STARTED = ("JOB_SUPERVISOR_ACTOR_START_TIMEOUT", "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE")
_NOT_FOUND = 127
_AGENT_HINT = (
    "if two clusters run on one machine, start one with another `ray start --dashboard-agent-listen-port`"
)

_AWAY_HINT = f"start it, or the tunnel to it, or name another with {ADDRESS_ENV}; its runs continue when it answers again"

AnswerT = TypeVar("AnswerT")
Phase = Literal["waiting", "running", "ended"]


@dataclass(frozen=True, slots=True)
class Job:
    """A host that is wanted for a shard, and the resources that its run requires."""

    id: str
    shard_id: str
    run_id: str
    cpus: float = 1.0
    gpus: int = 0
    memory_gb: float | None = None


@dataclass(frozen=True, slots=True)
class JobState:
    """The state of a job; ``is_failure``: its end counts as a failed attempt of the shard."""

    id: str
    phase: Phase
    message: str = ""
    is_failure: bool = False


def shard_of(job_id: str) -> str | None:
    """Return the shard of a job; None if the job is not one of a platform."""
    shard_id, _, suffix = job_id.removeprefix(_PREFIX).rpartition("-")
    return shard_id if job_id.startswith(_PREFIX) and shard_id and suffix else None


class RayError(OsmosisError):
    """The cluster could not be asked, or did not do what it was asked."""


class RayUnreachableError(RayError):
    """There was no answer."""

    def __init__(self, cluster: str, reason: str) -> None:
        super().__init__(
            f"{cluster} cannot be reached: {reason}.", hint="its runs continue when it answers again"
        )
        self.reason = reason


@dataclass
class _Wait:
    """A job that waits: since when, when the cluster was last asked what for, and what it said (monotonic seconds)."""

    since: float
    asked_at: float | None = None
    message: str = ""


class RayJobs:
    """The jobs of one cluster, which outlive this process; for one thread."""

    def __init__(
        self,
        cluster: RayCluster,
        entrypoint: Callable[[Job], str],
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

    def start(self, job: Job, ticket: str) -> str:
        """Submit a job to the cluster; harmless if it has it already."""
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

    def state(self, job: Job) -> JobState | None:
        """Return a job's state and, after a long wait, what it waits for; None if the cluster never had it."""
        status, text = self._ask("GET", f"/api/jobs/{job.id}")
        if status == 404:
            return self._forgotten(job)
        state = self._read(status, text, _JOB).state()
        self._known.add(job.id)
        if state.phase == "waiting":
            return replace(state, message=self._waits_for(job))
        self._waits.pop(job.id, None)
        return state

    def stop(self, job: Job) -> None:
        """End a job, by force after some seconds; harmless when it has ended."""
        self._waits.pop(job.id, None)
        status, text = self._ask("POST", f"/api/jobs/{job.id}/stop")
        if status not in (200, 404):
            raise RayError(f"{self._name} did not stop a job: {self._quoted(status, text)}.")

    def list(self) -> list[JobState]:
        """Return all jobs of platforms."""
        found = self._read(*self._ask("GET", "/api/jobs/"), _JOBS)
        states = [job.state() for job in found if shard_of(job.submission_id or "")]
        self._known.update(state.id for state in states if state.phase != "ended")
        return states

    def shortage(self, job: Job) -> str:
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

    def _forgotten(self, job: Job) -> JobState | None:
        self._waits.pop(job.id, None)
        if job.id not in self._known:
            return None  # it never got there
        self._known.discard(job.id)
        why = "is not known to the cluster any more: it was deleted, or the head was restarted"
        return JobState(job.id, "ended", f"the Ray job {job.id} {why}")

    def _waits_for(self, job: Job) -> str:
        """Return what a job waits for, asked once in a while when it has waited long; empty before."""
        now = self._monotonic()
        wait = self._waits.setdefault(job.id, _Wait(now))
        if now - (wait.since if wait.asked_at is None else wait.asked_at) >= WAITS_LONG_S:
            wait.asked_at = now
            wait.message = f"the Ray job {job.id} {self.shortage(job)}"
        return wait.message

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
                raise RayError(f"{self._name} returned a reply that is too large or too slow.")
            yield part

    def _read(self, status: int, text: str, shape: TypeAdapter[AnswerT]) -> AnswerT:
        if status != 200:
            raise self._no_ray(status, text)
        try:
            return shape.validate_json(text)
        except ValidationError:
            raise RayError(f"{self._name} does not answer like Ray's Jobs API.") from None

    def _no_ray(self, status: int, text: str) -> RayError:
        return RayError(f"{self._name} returned an error: {self._quoted(status, text)}.")

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


def worker_entrypoint(job: Job, platform_url: str) -> str:
    """Return a node's command for a run. `exec` leaves no shell in between, so the cluster ends the worker itself."""
    command = ["osmosis", "platform", "worker", "--run", job.run_id, "--url", platform_url]
    granted = f"{max(job.cpus, _LEAST_CPUS):.12g}"
    return shlex.join(["exec", *command, "--token-env", TICKET_VARIABLE, "--cpus", granted])


@dataclass
class _Started:
    """A job that has not ended, as far as is known; ``attempt`` is the shard's when the job was started."""

    job: Job
    attempt: int
    message: str = ""
    is_running: bool = False
    stop_by: float | None = None


class RayLauncher:
    """Starts a job for every shard that waits for the platform's own machines, and watches it; in a thread."""

    def __init__(
        self,
        queue: RunQueue,
        access: WorkerAccess,
        jobs: RayJobs,
        *,
        slots: int,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue = queue
        self._access = access
        self._jobs = jobs
        self._slots = slots
        self._monotonic = monotonic
        self._started: dict[str, _Started] = {}
        self._has_listed = False
        self._away_since: float | None = None
        self._away = ""
        self._explained: set[str] = set()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin."""
        self._thread = threading.Thread(target=self._work, name="ray-launcher", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End; the jobs continue."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(TIMEOUT_S)
        self._jobs.close()

    def round(self) -> None:
        """Watch the jobs, and start those that are missing."""
        try:
            if not self._has_listed:
                self._find_jobs()
            for shard_id, started in list(self._started.items()):
                self._watch(shard_id, started)
            self._start_jobs()
        except RayError as error:
            self._explain_outage(error)
        else:
            if self._away:
                logger.warning("the Ray cluster answers again")
                self._end_outage()

    def _work(self) -> None:
        while not self._ending.wait(_ROUND_S):
            try:
                self.round()
            except OsmosisError as error:
                logger.warning("the launcher of Ray jobs waits: %s", error.message)
            except Exception:  # the edge of this thread, without which no run would start
                logger.exception("the launcher of Ray jobs had an unexpected error and continues")

    def _find_jobs(self) -> None:
        """Watch the jobs that an earlier process of this platform has started."""
        for state in self._jobs.list():
            shard_id = shard_of(state.id)
            if state.phase == "ended" or shard_id is None:
                continue
            if (shard := self._queue.open_shard(shard_id)) is not None:
                job = Job(state.id, shard_id, shard.run_id)
                self._started[shard_id] = _Started(job, shard.attempt - (shard.status == "running"))
        self._has_listed = True

    def _watch(self, shard_id: str, started: _Started) -> None:
        state, shard = self._jobs.state(started.job), self._queue.open_shard(shard_id)
        if state is None or state.phase == "ended":
            self._access.withdraw(shard_id)
            if shard is not None and state is not None:
                self._handle_end(shard, started, state)
            del self._started[shard_id]
            return
        if state.phase == "running" and not started.is_running:
            started.is_running = True
            self._access.note_running(shard_id)
        if state.message != started.message:
            started.message = state.message
            self._queue.explain([shard_id], state.message)
        if shard is None or self._queue.must_stop(shard.run_id):
            self._stop(shard_id, started)

    def _handle_end(self, shard: DbRunShard, started: _Started, state: JobState) -> None:
        """Return a shard whose worker ended with its job, or that the job never claimed."""
        is_unclaimed = shard.status == "pending" and shard.attempt == started.attempt
        is_owned = shard.status == "running" and shard.attempt == started.attempt + 1
        if is_unclaimed or is_owned:
            # A claim that the platform could not answer, because its store is unavailable, is no failure of the run.
            is_unanswered = is_unclaimed and self._access.has_used_ticket(shard.id, started.attempt + 1)
            self._queue.give_back(shard.id, state.message, counts=state.is_failure and not is_unanswered)

    def _stop(self, shard_id: str, started: _Started) -> None:
        now = self._monotonic()
        if not started.is_running:
            # A job that no node can hold keeps waiting even after it was stopped; without its ticket it cannot claim.
            self._access.withdraw(shard_id)
            self._jobs.stop(started.job)
            del self._started[shard_id]
        elif started.stop_by is None:
            started.stop_by = now + _STOP_WITHIN_S
        elif now >= started.stop_by:
            self._jobs.stop(started.job)

    def _start_jobs(self) -> None:
        waiting = iter(self._queue.waiting_shards(besides=self._started))
        while len(self._started) < self._slots and not self._ending.is_set():
            if (found := next(waiting, None)) is None:
                return
            shard, asked = found
            job_id = f"{_PREFIX}{shard.id}-{secrets.token_hex(4)}"
            job = Job(job_id, shard.id, shard.run_id, asked.cpus or 1.0, asked.gpus or 0, asked.memory_gb)
            ticket = self._access.issue_ticket(shard.id)
            # Noted first: if it is unknown whether it was started, the next round asks.
            self._started[shard.id] = _Started(job, shard.attempt)
            self._queue.log(shard.run_id, self._jobs.start(job, ticket))

    def _explain_outage(self, error: RayError) -> None:
        """Log once, and after a while explain on the runs that wait, why the cluster executes nothing."""
        now = self._monotonic()
        if self._away != error.message:
            logger.warning("the launcher of Ray jobs waits: %s", error.with_hint)
            self._away, self._away_since = error.message, self._away_since or now
        if self._away_since is not None and now - self._away_since >= WAITS_LONG_S:
            waiting = [shard.id for shard, _ in self._queue.waiting_shards()][:_MOST_EXPLAINED]
            self._queue.explain(waiting, error.message)
            self._explained.update(waiting)

    def _end_outage(self) -> None:
        self._queue.explain(list(self._explained), "")
        for started in self._started.values():
            started.message = ""  # the next round explains again what its job waits for
        self._explained.clear()
        self._away_since, self._away = None, ""


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
            return JobState(job, "running")
        is_lost = _LOST_NODE in (self.message or "")
        is_excused = is_lost or self.status == "STOPPED" or self.error_type in _NEVER_STARTED
        message = f"the Ray job {job} has ended: {self._ending(is_lost)}; see `ray job logs {job}`"
        return JobState(job, "ended", message, is_failure=not is_excused)

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


def _needs(job: Job) -> dict[str, float]:
    """Return the resources that a job asks for, by Ray's names."""
    memory = {"memory": job.memory_gb * _GIB} if job.memory_gb else {}
    return {"CPU": job.cpus, **({"GPU": float(job.gpus)} if job.gpus else {}), **memory}


def _amount(name: str, amount: float, *, short: bool = False) -> str:
    """Return an amount of a resource in words: `8 GPUs`, short `8`."""
    if name == "memory":
        return f"{round(amount / _GIB, 1):g} GiB" + ("" if short else " of memory")
    return f"{amount:g}" if short else f"{amount:g} {name}{'' if amount == 1 else 's'}"
