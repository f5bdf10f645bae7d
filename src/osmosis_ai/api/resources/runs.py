"""What is called alike for evaluation and training runs."""

from __future__ import annotations

from typing import ClassVar, Generic, TypeVar

from osmosis_ai.api import routes
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.resources.resource import LogDirection, Resource
from osmosis_ai.api.wire.base import LogPage
from osmosis_ai.api.wire.runs import EvalRunSubmit, StopReply, SubmitCheck, SubmittedRun, TrainingRunSubmit

_NO_ROUTE = (404, 405, 410, 501)

_SubmitT = TypeVar("_SubmitT", EvalRunSubmit, TrainingRunSubmit)


class Runs(Resource, Generic[_SubmitT]):
    """The runs of one kind in the repository's workspace.

    Attributes:
        path: where the runs of the kind live.
    """

    path: ClassVar[str]

    def submit(self, run: _SubmitT) -> SubmittedRun:
        """Submit a run, exactly once; secret values in it stay out of every error."""
        if run.secrets is not None:
            self._client.hide(run.secrets.provided.values())
        return self._client.post(self.path, run, model=SubmittedRun)

    def check(self, run: _SubmitT) -> SubmitCheck | None:
        """Ask what a submit of ``run`` would be told; no run comes of it.

        Returns:
            None where the platform cannot be asked that: the hosted service, and releases before 0.3.11.

        Raises:
            PlatformError: the submit would be refused so; or as every call.
        """
        if run.secrets is not None:
            self._client.hide(run.secrets.provided.values())
        try:
            found = self._client.post(routes.run_check(self.path), run, model=SubmitCheck)
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

    def stop(self, name_or_id: str) -> StopReply:
        """Ask for a run to stop."""
        return self._client.post(routes.run_stop(self.path, name_or_id), None, model=StopReply)

    def delete(self, name_or_id: str) -> None:
        """Delete a run that has ended; a route of self-hosted platforms."""
        self._client.delete(routes.run(self.path, name_or_id))


def _is_verdict(error: PlatformError) -> bool:
    """Tell a refusal of the submit, or of who asks for which repository, from "there is nothing here"."""
    return error.body.get("dry_run") is True or (error.platform_code or "").startswith("GIT_")
