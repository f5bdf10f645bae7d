"""A fake Ray cluster with the replies of a real one (Ray 2.60, ``ray start --head`` with token authentication).

``ray_answers.json`` has the recorded replies; only the directory of Ray was replaced.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from osmosis_ai.platform.config import RayCluster
from osmosis_ai.platform.ray_jobs import TICKET_VARIABLE, RayJobs, worker_entrypoint

ANSWERS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("ray_answers.json").read_text("utf-8")
)
TOKEN = "the-token-of-the-cluster"
ADDRESS = "http://127.0.0.1:8265"
TIMEOUT = httpx.ReadTimeout("slow")


class FakeRay(httpx.MockTransport):
    """The cluster; the test decides the state of its jobs.

    Attributes:
        jobs: The recorded reply about each job, by job id.
        bodies: What was submitted, by job id.
        requests: All requests.
        stopped: The jobs that were asked to stop.
        is_open: Whether the cluster requires no token.
        fault: The outcome of every request.
        submit_fault: The outcome of a submission, and whether the job is accepted nevertheless.
    """

    def __init__(self) -> None:
        super().__init__(self._reply)
        self.jobs: dict[str, str] = {}
        self.bodies: dict[str, dict[str, Any]] = {}
        self.requests: list[httpx.Request] = []
        self.stopped: list[str] = []
        self.is_open = False
        self.fault: Exception | httpx.Response | None = None
        self.submit_fault: tuple[Exception | httpx.Response, bool] | None = None

    def set_all(self, answer: str) -> None:
        """Give all jobs the same state."""
        self.jobs = dict.fromkeys(self.jobs, answer)

    def ticket(self, job: str) -> str:
        """Return the ticket in a job's environment."""
        return str(self.bodies[job]["runtime_env"]["env_vars"][TICKET_VARIABLE])

    def client(
        self, directory: Path, monotonic: Callable[[], float] = time.monotonic, **cluster: Any
    ) -> RayJobs:
        """Return a client that knows the token."""
        file = directory / "ray-token"
        file.write_text(f"{TOKEN}\n")
        described: dict[str, Any] = {"address": ADDRESS, "token_file": file, **cluster}
        entrypoint = partial(worker_entrypoint, platform_url="https://osmosis.example")
        return RayJobs(RayCluster(**described), entrypoint, transport=self, monotonic=monotonic)

    def _reply(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if self.fault is not None:
            return _raised(self.fault)
        token = request.headers.get("authorization")
        if not self.is_open and token != f"Bearer {TOKEN}":
            return recorded("wrong_token" if token else "no_token")
        path = request.url.path
        if path == "/api/version":
            return recorded("version")
        if path == "/api/v0/nodes":
            return recorded("two_nodes")
        if path == "/api/jobs/":
            return self._submit(json.loads(request.content)) if request.method == "POST" else self._list()
        job, _, action = path.removeprefix("/api/jobs/").partition("/")
        if action == "stop":
            self.stopped.append(job)
            return recorded("stop" if job in self.jobs else "stop_unknown")
        return recorded(self.jobs[job], job) if job in self.jobs else recorded("unknown")

    def _submit(self, body: dict[str, Any]) -> httpx.Response:
        job = body["submission_id"]
        if self.submit_fault is not None:
            fault, is_accepted = self.submit_fault
            if is_accepted:
                self.jobs[job], self.bodies[job] = "pending", body
            return _raised(fault)
        if job in self.jobs:
            return recorded("submitted_twice")
        self.jobs[job], self.bodies[job] = "pending", body
        return recorded("submitted", job)

    def _list(self) -> httpx.Response:
        return httpx.Response(200, json=[_body(answer, job) for job, answer in self.jobs.items()])


def recorded(name: str, job: str | None = None) -> httpx.Response:
    """Return a recorded reply, with another job id if one is given."""
    body, status = _body(name, job), ANSWERS[name]["status"]
    return httpx.Response(status, text=body) if isinstance(body, str) else httpx.Response(status, json=body)


def _body(name: str, job: str | None) -> Any:
    body = ANSWERS[name]["body"]
    return {**body, "submission_id": job} if job is not None else body


def _raised(fault: Exception | httpx.Response) -> httpx.Response:
    if isinstance(fault, Exception):
        raise fault
    return fault
