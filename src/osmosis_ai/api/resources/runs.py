"""What is called alike for the runs of every kind."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from osmosis_ai.api import routes
from osmosis_ai.api.event_stream import EVENTS, SILENCE_S, json_events
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.resources.resource import LogDirection, Resource
from osmosis_ai.api.retrying import REPEATING, SIGNING
from osmosis_ai.api.wire.base import LogPage
from osmosis_ai.api.wire.eval_runs import DownloadItem, DownloadUrls, DownloadUrlsRequest, SampleManifest
from osmosis_ai.api.wire.runs import EvalRunSubmit, StopReply, SubmitCheck, SubmittedRun, TrainingRunSubmit

_NO_ROUTE = (404, 405, 410, 501)

_SubmitT = TypeVar("_SubmitT", EvalRunSubmit, TrainingRunSubmit)
_SubmittedT = TypeVar("_SubmittedT", bound=SubmittedRun)


class Runs(Resource, Generic[_SubmitT]):
    """The runs of one kind in the repository's workspace."""

    path: ClassVar[str]

    def submit(self, run: _SubmitT) -> SubmittedRun:
        """Submit a run, exactly once; secret values in it stay out of every error."""
        return self._submit(run, SubmittedRun)

    def check(self, run: _SubmitT) -> SubmitCheck | None:
        """Ask what a submit of ``run`` would be told; no run comes of it."""
        if run.secrets is not None:
            self._client.hide(run.secrets.provided.values())
        try:
            found = self._client.post(routes.run_check(self.path), run, model=SubmitCheck, retry=REPEATING)
        except PlatformError as error:
            if error.status in _NO_ROUTE and not _is_verdict(error):
                return None
            raise
        return found if found.dry_run else None

    def logs(
        self,
        name_or_id: str,
        *,
        limit: int = 50,
        cursor: str | None = None,
        direction: LogDirection = "older",
    ) -> LogPage:
        """Return one page of a run's log."""
        path = routes.run_logs(self.path, name_or_id)
        return self._log_page(path, limit=limit, cursor=cursor, direction=direction)

    def events(self, name_or_id: str) -> Generator[dict[str, Any]]:
        """Yield how a run stands, then what is new in it as it comes, until it has ended; a route of self-
        hosted platforms."""
        path = routes.run_events(self.path, name_or_id)
        stream = self._client.stream(path, accept=EVENTS, silence_s=SILENCE_S)
        return json_events(stream, unreachable=self._client.unreachable)

    def stop(self, name_or_id: str) -> StopReply:
        """Ask for a run to stop; doing so twice changes nothing."""
        path = routes.run_stop(self.path, name_or_id)
        return self._client.post(path, None, model=StopReply, retry=REPEATING)

    def delete(self, name_or_id: str) -> None:
        """Delete a run that has ended; a route of self-hosted platforms."""
        self._client.delete(routes.run(self.path, name_or_id))

    def _submit(self, run: _SubmitT, reply: type[_SubmittedT]) -> _SubmittedT:
        if run.secrets is not None:
            self._client.hide(run.secrets.provided.values())
        return self._client.post(self.path, run, model=reply)


class RunsWithFiles(Runs[_SubmitT]):
    """Runs of a kind whose files can be downloaded."""

    files: ClassVar[str]

    def manifest(self, name_or_id: str, *, types: Sequence[str], rows: str | None = None) -> SampleManifest:
        """Return the list of a run's files."""
        return self._client.get(
            routes.run_manifest(self.path, name_or_id, self.files),
            model=SampleManifest,
            params={"types": ",".join(types), "rows": rows},
        )

    def download_urls(self, name_or_id: str, items: Sequence[DownloadItem]) -> DownloadUrls:
        """Return where files of a manifest can be had for a while."""
        return self._client.post(
            routes.run_download_urls(self.path, name_or_id, self.files),
            DownloadUrlsRequest(items=list(items)),
            model=DownloadUrls,
            retry=SIGNING,
        )


def _is_verdict(error: PlatformError) -> bool:
    """Tell a refusal of the submit, or of who asks for which repository, from "there is nothing here"."""
    return error.body.get("dry_run") is True or (error.platform_code or "").startswith("GIT_")
