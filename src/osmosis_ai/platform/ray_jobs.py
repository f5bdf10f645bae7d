"""Starts workers on a Ray cluster, over its Jobs REST API: a job with a one-time ticket for each pending shard.

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
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import AliasPath, BaseModel, Field, TypeAdapter, ValidationError

from osmosis_ai.api.connections import open_http, reason
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.config import RAY_ADDRESS_ENV, RAY_ALLOW_OPEN_ENV, RAY_TOKEN_FILE_ENV, RayCluster
from osmosis_ai.redaction import Redactor

if TYPE_CHECKING:
    import httpx

    from osmosis_ai.platform.queue.access import WorkerAccess
    from osmosis_ai.platform.queue.queue import RunQueue

logger = logging.getLogger(__name__)

TICKET_VARIABLE = "OSMOSIS_WORKER_TICKET"
TIMEOUT_S = 10.0
SUBMIT_TIMEOUT_S = 30.0
"""A head that has just added a node may take more than ten seconds to accept a job."""
ANSWER_WITHIN_S = 3.0
"""Timeout of status queries to the cluster."""
WAITS_LONG_S = 60.0
"""How long a job or the cluster may keep a run waiting before the run's log says why."""
_CHECKED_FOR_S = 60.0
_LARGEST_REPLY_BYTES = 64 << 20
_LONGEST_QUOTE = 300
_PREFIX = "osm-"
_ROUND_S = 2.0
_STOP_WITHIN_S = 120.0
"""How long after its run has stopped the cluster ends a job."""
_MOST_EXPLAINED = 1000
_LEAST_CPUS = 0.1
"""The minimum of `osmosis platform worker --cpus`."""
_GIB = 1 << 30
_LOST_NODE = "because its node has died"
_NEVER_STARTED = ("JOB_SUPERVISOR_ACTOR_START_TIMEOUT", "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE")
_COMMAND_NOT_FOUND = 127
_AGENT_HINT = (
    "if two clusters run on one machine, start one with another `ray start --dashboard-agent-listen-port`"
)
_AWAY_HINT = f"start the cluster or its tunnel, or set {RAY_ADDRESS_ENV} to another cluster; runs continue when it answers again"

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class Job:
    """A worker for one shard, with the resources that its run requires."""

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
    phase: Literal["waiting", "running", "ended"]
    message: str = ""
    is_failure: bool = False


def shard_of(job_id: str) -> str | None:
    """Return the shard of a job; None if the job is not one of a platform."""
    shard_id, _, suffix = job_id.removeprefix(_PREFIX).rpartition("-")
    return shard_id if job_id.startswith(_PREFIX) and shard_id and suffix else None


class RayError(OsmosisError):
    """The cluster could not be reached, or refused a request."""


class RayUnreachableError(RayError):
    def __init__(self, cluster: str, reason: str) -> None:
        super().__init__(
            f"{cluster} cannot be reached: {reason}.", hint="its runs continue when it answers again"
        )
        self.reason = reason


@dataclass
class RayJobs:
    """The jobs of one cluster, which outlive this process; for one thread."""

    cluster: RayCluster
    entrypoint: Callable[[Job], str]
    transport: httpx.BaseTransport | None = None
    monotonic: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._client: httpx.Client | None = None
        self._checked_at: float | None = None

    def start(self, job: Job, ticket: str) -> None:
        body = {
            "entrypoint": self.entrypoint(job),
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
                return
            failure = RayError(f"{self._name} did not take a job: {self._quoted(status, text, ticket)}.")
        except RayUnreachableError as error:
            failure = RayError(
                f"{self._name} answers, but did not take a job ({error.reason}): the agent of its head may not be "
                "running; the head's `dashboard_agent.log` says why.",
                hint=_AGENT_HINT,
            )
        except RayError as error:
            failure = error
        # An unreachable cluster raises its own error here.
        if self.state(job) is None:
            raise failure

    def state(self, job: Job) -> JobState | None:
        """Return a job's state; None if the cluster does not know the job."""
        status, text = self._ask("GET", f"/api/jobs/{job.id}")
        return None if status == 404 else self._read(status, text, _JobAnswer).state()

    def stop(self, job: Job) -> None:
        """End a job, by force after some seconds; harmless when it has ended."""
        status, text = self._ask("POST", f"/api/jobs/{job.id}/stop")
        if status not in (200, 404):
            raise RayError(f"{self._name} did not stop a job: {self._quoted(status, text)}.")

    def list(self) -> list[JobState]:
        found = self._read(*self._ask("GET", "/api/jobs/"), list[_JobAnswer])
        return [job.state() for job in found if shard_of(job.submission_id or "")]

    def shortage(self, job: Job) -> str:
        """Return what a job with these requirements waits for, in a few words."""
        needs = {"CPU": job.cpus, "GPU": float(job.gpus), "memory": (job.memory_gb or 0.0) * _GIB}
        needs = {name: amount for name, amount in needs.items() if amount or name == "CPU"}
        answer = self._read(*self._ask("GET", "/api/v0/nodes?limit=10000&detail=true"), _NodeAnswer)
        nodes = [node.resources_total for node in answer.nodes if node.state == "ALIVE"]
        for name, amount in needs.items():
            total = sum(node.get(name, 0.0) for node in nodes)
            largest = max((node.get(name, 0.0) for node in nodes), default=0.0)
            if amount > total:
                has = _amount(name, total, short=True)
                return f"waits for {_amount(name, amount)} (the cluster has {has})"
            if amount > largest:
                has = _amount(name, largest, short=True)
                return f"waits for a node with {_amount(name, amount)} (the largest has {has})"
        if not any(all(node.get(name, 0.0) >= amount for name, amount in needs.items()) for node in nodes):
            asked = " and ".join(_amount(name, amount) for name, amount in needs.items())
            return f"waits for a node with {asked}, but no node has {'both' if len(needs) == 2 else 'all of these'}"
        return "waits for a node of the Ray cluster to have room"

    def require_usable(self) -> None:
        """Check that the cluster requires a token, and accepts the configured one."""
        status, text = self._ask("GET", "/api/version")
        if status != 200:
            raise self._error_reply(status, text)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    @property
    def _name(self) -> str:
        return f"the Ray cluster at {self.cluster.address}"

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
        """Return status and body of a reply, from a cluster that requires a token."""
        try:
            if self._checked_at is None or self.monotonic() - self._checked_at > _CHECKED_FOR_S:
                self._require_protected()
                self._checked_at = self.monotonic()
            token = self.cluster.token()
            status, text = self._exchange(method, path, body, token)
            if status in (401, 403):
                raise RayError(
                    f"{self._name} refuses the token in {self.cluster.token_file}."
                    if token
                    else f"{self._name} requires a token.",
                    hint=f"set {RAY_TOKEN_FILE_ENV} to the file with the token that the cluster was started with",
                )
        except OsmosisError as error:
            self._checked_at = None
            raise error if isinstance(error, RayError) else RayError(error.message) from error
        return status, text

    def _require_protected(self) -> None:
        """Send a request without a token and refuse a cluster that answers it."""
        status, text = self._exchange("GET", "/api/version", None, None)
        if status in (401, 403) or (status == 200 and self.cluster.allow_open):
            return
        if status == 200:
            raise RayError(
                f"{self._name} answers without a token, so nothing is sent to it.",
                hint="start it with RAY_AUTH_MODE=token (Ray 2.52 and later), or on a trusted network set "
                f"{RAY_ALLOW_OPEN_ENV}=1",
            )
        raise self._error_reply(status, text)

    def _exchange(
        self, method: str, path: str, body: dict[str, Any] | None, token: str | None
    ) -> tuple[int, str]:
        import httpx

        if self._client is None:
            self._client = open_http(
                self.cluster.address, headers={}, timeout_s=TIMEOUT_S, transport=self.transport
            )
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            with self._client.stream(
                method,
                f"{self.cluster.address}{path}",
                headers=headers,
                json=body,
                timeout=SUBMIT_TIMEOUT_S if body else TIMEOUT_S,
            ) as reply:
                content, began = bytearray(), time.monotonic()
                for part in reply.iter_bytes():
                    content += part
                    if len(content) > _LARGEST_REPLY_BYTES or time.monotonic() - began > 6 * TIMEOUT_S:
                        raise RayError(f"{self._name} returned a reply that is too large or too slow.")
                return reply.status_code, content.decode("utf-8", "replace")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise RayUnreachableError(self._name, reason(error)) from None

    def _read(self, status: int, text: str, shape: type[AnswerT]) -> AnswerT:
        if status != 200:
            raise self._error_reply(status, text)
        try:
            return TypeAdapter(shape).validate_json(text)
        except ValidationError:
            raise RayError(f"{self._name} does not answer like Ray's Jobs API.") from None

    def _error_reply(self, status: int, text: str) -> RayError:
        return RayError(f"{self._name} returned an error: {self._quoted(status, text)}.")

    def _quoted(self, status: int, text: str, secret: str = "") -> str:
        """Return the last line of a reply, which is where Python says what went wrong, without secrets."""
        lines = [line.strip() for line in text.splitlines() if len(line.strip()) > 1]
        shown = Redactor(filter(None, (secret, self.cluster.token()))).text(lines[-1] if lines else "")
        return f"{status} {shown[:_LONGEST_QUOTE]}".strip().rstrip(".")


def cluster_problem(cluster: RayCluster, *, within_s: float = ANSWER_WITHIN_S) -> str | None:
    """Return why a cluster cannot accept jobs now, with a fix; None if no problem is found."""
    found: list[str | None] = []

    def check() -> None:
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

    checking = threading.Thread(target=check, name="osmosis-ray-check", daemon=True)
    checking.start()
    checking.join(within_s)
    silent = f"the Ray cluster at {cluster.address} has not answered within {within_s:g} s. ({_AWAY_HINT})"
    return found[0] if found else silent


def worker_entrypoint(job: Job, platform_url: str) -> str:
    """Return a job's command. With `exec` there is no shell in between, so the cluster ends the worker itself."""
    command = ["osmosis", "platform", "worker", "--run", job.run_id, "--url", platform_url]
    granted = f"{max(job.cpus, _LEAST_CPUS):.12g}"
    return shlex.join(["exec", *command, "--token-env", TICKET_VARIABLE, "--cpus", granted])


@dataclass
class _Started:
    """A job that has not ended, as far as is known.

    ``attempt`` is the shard's when the job was started. ``was_seen``: the cluster has had the job. ``waits_since``:
    when the job began to wait, or when the cluster was last asked what for.
    """

    job: Job
    attempt: int
    was_seen: bool = False
    is_running: bool = False
    waits_since: float | None = None
    waits_for: str = ""
    explained: str = ""
    stop_by: float | None = None


@dataclass
class RayLauncher:
    """Starts and watches a job for every shard that waits for the platform's own machines; in a thread."""

    queue: RunQueue
    access: WorkerAccess
    jobs: RayJobs
    slots: int
    monotonic: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._started: dict[str, _Started] = {}
        self._has_listed = False
        self._away_since: float | None = None
        self._away = ""
        self._explained: set[str] = set()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._work, name="ray-launcher", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ending.set()
        if self._thread is not None:
            self._thread.join(TIMEOUT_S)
        self.jobs.close()

    def round(self) -> None:
        """Watch the jobs, and start missing ones."""
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
                self.queue.explain(list(self._explained), "")
                for started in self._started.values():
                    started.explained = ""  # the next round explains again what its job waits for
                self._explained.clear()
                self._away_since, self._away = None, ""

    def _work(self) -> None:
        while not self._ending.wait(_ROUND_S):
            try:
                self.round()
            except OsmosisError as error:
                logger.warning("the launcher of Ray jobs waits: %s", error.message)
            except Exception:  # the edge of this thread, without which no run would start
                logger.exception("the launcher of Ray jobs had an unexpected error and continues")

    def _find_jobs(self) -> None:
        """Watch the jobs that an earlier process of this platform started."""
        for state in self.jobs.list():
            shard_id = shard_of(state.id)
            if state.phase == "ended" or shard_id is None:
                continue
            if (shard := self.queue.open_shard(shard_id)) is not None:
                job = Job(state.id, shard_id, shard.run_id)
                attempt = shard.attempt - (shard.status == "running")
                self._started[shard_id] = _Started(job, attempt, was_seen=True)
        self._has_listed = True

    def _watch(self, shard_id: str, started: _Started) -> None:
        state, shard = self.jobs.state(started.job), self.queue.open_shard(shard_id)
        if state is None and started.was_seen:
            why = "is not known to the cluster any more: it was deleted, or the head was restarted"
            state = JobState(started.job.id, "ended", f"the Ray job {started.job.id} {why}")
        if state is None or state.phase == "ended":
            self.access.withdraw(shard_id)
            if shard is not None and state is not None:
                # Return a shard that the job's worker still had, or never claimed.
                is_unclaimed = shard.status == "pending" and shard.attempt == started.attempt
                is_owned = shard.status == "running" and shard.attempt == started.attempt + 1
                # A claim that the platform could not answer, without its file store, is no failure of the run.
                is_unanswered = is_unclaimed and shard.ticket_claim_id is not None
                if is_unclaimed or is_owned:
                    counts = state.is_failure and not is_unanswered
                    self.queue.give_back(shard.id, state.message, counts=counts)
            del self._started[shard_id]
            return
        started.was_seen = True
        if state.phase == "running" and not started.is_running:
            started.is_running = True
            self.access.note_running(shard_id)
        self._explain_wait(shard_id, started)
        if shard is None or self.queue.must_stop(shard.run_id):
            self._stop(shard_id, started)

    def _explain_wait(self, shard_id: str, started: _Started) -> None:
        """Record what a job waits for, once it has waited long; ask the cluster again only once in a while."""
        now = self.monotonic()
        if started.is_running:
            started.waits_for = ""
        elif started.waits_since is None:
            started.waits_since = now
        elif now - started.waits_since >= WAITS_LONG_S:
            started.waits_since = now
            started.waits_for = f"the Ray job {started.job.id} {self.jobs.shortage(started.job)}"
        if started.waits_for != started.explained:
            started.explained = started.waits_for
            self.queue.explain([shard_id], started.waits_for)

    def _stop(self, shard_id: str, started: _Started) -> None:
        now = self.monotonic()
        if not started.is_running:
            # A job that no node can hold keeps waiting even after it was stopped; without its ticket it cannot claim.
            self.access.withdraw(shard_id)
            self.jobs.stop(started.job)
            del self._started[shard_id]
        elif started.stop_by is None:
            started.stop_by = now + _STOP_WITHIN_S
        elif now >= started.stop_by:
            self.jobs.stop(started.job)

    def _start_jobs(self) -> None:
        waiting = iter(self.queue.waiting_shards(besides=self._started))
        while len(self._started) < self.slots and not self._ending.is_set():
            if (found := next(waiting, None)) is None:
                return
            shard, asked = found
            job_id = f"{_PREFIX}{shard.id}-{secrets.token_hex(4)}"
            job = Job(job_id, shard.id, shard.run_id, asked.cpus or 1.0, asked.gpus or 0, asked.memory_gb)
            ticket = self.access.issue_ticket(shard.id)
            # Recorded first: if it is unknown whether it was started, the next round asks.
            started = self._started[shard.id] = _Started(job, shard.attempt)
            self.jobs.start(job, ticket)
            started.was_seen = True
            self.queue.log(shard.run_id, f"submitted to the Ray cluster as {job_id}")

    def _explain_outage(self, error: RayError) -> None:
        """Log once why the cluster executes nothing, and after a while explain it on waiting runs."""
        now = self.monotonic()
        if self._away != error.message:
            logger.warning("the launcher of Ray jobs waits: %s", error.with_hint)
            self._away, self._away_since = error.message, self._away_since or now
        if self._away_since is not None and now - self._away_since >= WAITS_LONG_S:
            waiting = [shard.id for shard, _ in self.queue.waiting_shards()][:_MOST_EXPLAINED]
            self.queue.explain(waiting, error.message)
            self._explained.update(waiting)


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
        if self.driver_exit_code == _COMMAND_NOT_FOUND:
            return "the node has no command `osmosis` on the PATH of its Ray"
        if self.driver_exit_code is not None:
            return f"its worker ended with {self.driver_exit_code}"
        first = (self.message or "").strip().splitlines()
        return first[0][:_LONGEST_QUOTE].rstrip(":. ") if first else self.status.lower()


class _Node(BaseModel):
    state: str
    resources_total: dict[str, float] = {}


class _NodeAnswer(BaseModel):
    nodes: list[_Node] = Field(validation_alias=AliasPath("data", "result", "result"))


def _amount(name: str, amount: float, *, short: bool = False) -> str:
    """Return an amount of a resource in words: `8 GPUs`, short `8`."""
    if name == "memory":
        return f"{round(amount / _GIB, 1):g} GiB" + ("" if short else " of memory")
    return f"{amount:g}" if short else f"{amount:g} {name}{'' if amount == 1 else 's'}"
