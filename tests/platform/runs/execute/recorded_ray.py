"""A Ray cluster that answers with what a real one has answered: Ray 2.60, `ray start --head` with token authentication.

``ray_answers.json`` has the answers as they came, but for the directory that Ray lay in.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from osmosis_ai.platform.ray_cluster import RayCluster
from osmosis_ai.platform.runs.execute.ray_jobs import RayJobs, worker_entrypoint

ANSWERS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("ray_answers.json").read_text("utf-8")
)
TOKEN = "the-token-of-the-cluster"


class RecordedRay(httpx.MockTransport):
    """The cluster; the test decides what becomes of its jobs.

    Attributes:
        jobs: the answer about each, by id.
        bodies: what was submitted, by id.
        requests: all that were made.
        nodes: the answer about its nodes.
        is_open: whether it asks for no token.
        trouble: what every request ends in.
        submit_trouble: what a submit ends in, and whether the cluster has the job all the same.
    """

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.jobs: dict[str, str] = {}
        self.bodies: dict[str, dict[str, Any]] = {}
        self.requests: list[httpx.Request] = []
        self.stopped: list[str] = []
        self.nodes = "two_nodes"
        self.is_open = False
        self.trouble: Exception | httpx.Response | None = None
        self.submit_trouble: tuple[Exception | httpx.Response, bool] | None = None

    def become(self, answer: str) -> None:
        """Have all jobs be so."""
        self.jobs = dict.fromkeys(self.jobs, answer)

    def jobs_of(
        self, directory: Path, monotonic: Callable[[], float] = time.monotonic, **cluster: Any
    ) -> RayJobs:
        """Return a client that knows the token."""
        file = directory / "ray-token"
        file.write_text(f"{TOKEN}\n")
        described: dict[str, Any] = {"address": "http://127.0.0.1:8265", "token_file": file, **cluster}
        entrypoint = partial(worker_entrypoint, platform_url="https://osmosis.example")
        return RayJobs(RayCluster(**described), entrypoint, transport=self, monotonic=monotonic)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if self.trouble is not None:
            return _raised(self.trouble)
        token = request.headers.get("authorization")
        if not self.is_open and token != f"Bearer {TOKEN}":
            return recorded("wrong_token" if token else "no_token")
        path = request.url.path
        if path == "/api/version":
            return recorded("version")
        if path == "/api/v0/nodes":
            return recorded(self.nodes)
        if path == "/api/jobs/":
            return self._submitted(json.loads(request.content)) if request.method == "POST" else self._list()
        job, _, action = path.removeprefix("/api/jobs/").partition("/")
        if action == "stop":
            self.stopped.append(job)
            return recorded("stop" if job in self.jobs else "stop_unknown")
        return recorded(self.jobs[job], job) if job in self.jobs else recorded("unknown")

    def _submitted(self, body: dict[str, Any]) -> httpx.Response:
        job = body["submission_id"]
        if self.submit_trouble is not None:
            trouble, has_it = self.submit_trouble
            if has_it:
                self.jobs[job], self.bodies[job] = "pending", body
            return _raised(trouble)
        if job in self.jobs:
            return recorded("submitted_twice")
        self.jobs[job], self.bodies[job] = "pending", body
        return recorded("submitted", job)

    def _list(self) -> httpx.Response:
        return httpx.Response(200, json=[_body(answer, job) for job, answer in self.jobs.items()])


def recorded(name: str, job: str | None = None) -> httpx.Response:
    """Return an answer as it came, about ``job`` where that is given."""
    body, status = _body(name, job), ANSWERS[name]["status"]
    return httpx.Response(status, text=body) if isinstance(body, str) else httpx.Response(status, json=body)


def _body(name: str, job: str | None) -> Any:
    body = ANSWERS[name]["body"]
    return {**body, "submission_id": job} if job is not None else body


def _raised(trouble: Exception | httpx.Response) -> httpx.Response:
    if isinstance(trouble, Exception):
        raise trouble
    return trouble
