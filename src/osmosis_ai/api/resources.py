"""The platform's API: one class per resource."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from osmosis_ai.api import routes
from osmosis_ai.api.event_stream import EVENTS, SILENCE_S, json_events
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.models.auth import (
    DeviceAuthorization,
    DeviceAuthorizeRequest,
    DeviceTokenRequest,
    Intent,
    IssuedToken,
    QuickstartChoice,
    QuickstartRecorded,
    QuickstartStatus,
    Verification,
    WorkspaceList,
)
from osmosis_ai.api.models.base import LogPage, Page, WireModel
from osmosis_ai.api.models.datasets import (
    UPLOAD_INTENT_HEADER,
    CompletedPart,
    Dataset,
    DatasetCompleteRequest,
    DatasetCreateRequest,
    DatasetDownload,
    DatasetList,
    UploadIntent,
)
from osmosis_ai.api.models.eval_imports import (
    EvalImportSession,
    EvalImportStart,
    ImportPart,
    ImportUpload,
    ImportUploadComplete,
    ImportUploads,
    ImportUploadsRequest,
)
from osmosis_ai.api.models.eval_runs import (
    DownloadItem,
    DownloadUrls,
    DownloadUrlsRequest,
    EvalMetrics,
    EvalRunDetail,
    EvalRunList,
    EvalSamplePage,
    RetryCheck,
    SampleManifest,
)
from osmosis_ai.api.models.models import (
    BaseModelList,
    DeploymentChange,
    LoraModel,
    LoraModelList,
    ModelDownload,
)
from osmosis_ai.api.models.rollouts import (
    RegisteredRolloutServer,
    RolloutList,
    RolloutServerList,
    RolloutServerRegistration,
)
from osmosis_ai.api.models.runs import (
    EvalRetry,
    EvalRunSubmit,
    StopReply,
    SubmitCheck,
    SubmittedRun,
    TrainingRunSubmit,
)
from osmosis_ai.api.models.secrets import (
    Secret,
    SecretDeleteRequest,
    SecretHandoutList,
    SecretList,
    SecretSetRequest,
)
from osmosis_ai.api.models.training_runs import (
    CheckpointList,
    ResumeReply,
    TrainingMetrics,
    TrainingRunDetail,
    TrainingRunList,
    ValidationConversation,
    ValidationPage,
)
from osmosis_ai.api.retrying import COMPLETING, REPEATING, SIGNING

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient


LARGEST_PAGE = 50
LARGEST_LOG_PAGE = 200
LogDirection = Literal["older", "newer"]

_PageT = TypeVar("_PageT", bound=Page)


class Resource:
    """A group of calls on one client."""

    def __init__(self, client: PlatformClient) -> None:
        self._client = client

    def _page(
        self, path: str, *, model: type[_PageT], limit: int, offset: int, **filters: str | None
    ) -> _PageT:
        """Return one page of a list; filters that are None are not sent."""
        params = {"limit": limit, "offset": offset, **filters}
        return self._client.get(path, model=model, params=params)

    def _log_page(self, path: str, *, limit: int, cursor: str | None, direction: LogDirection) -> LogPage:
        """Return one page of a log, from ``cursor`` in ``direction``."""
        params = {"limit": limit, "direction": direction, "cursor": cursor}
        return self._client.get(path, model=LogPage, params=params)


_NO_ROUTE = (404, 405, 410, 501)

_SubmitT = TypeVar("_SubmitT", EvalRunSubmit, TrainingRunSubmit)
_SubmittedT = TypeVar("_SubmittedT", bound=SubmittedRun)


class Runs(Resource, Generic[_SubmitT]):
    path: ClassVar[str]

    def submit(self, run: _SubmitT) -> SubmittedRun:
        """Submit a run; the request is never retried, and no error contains its secrets."""
        return self._submit(run, SubmittedRun)

    def check(self, run: _SubmitT) -> SubmitCheck | None:
        """Check a submit of ``run`` without creating a run; None if the platform cannot check."""
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
        path = routes.run_logs(self.path, name_or_id)
        return self._log_page(path, limit=limit, cursor=cursor, direction=direction)

    def events(self, name_or_id: str) -> Generator[dict[str, Any]]:
        """Yield a run's state, then its updates until it ends; only on self-hosted platforms."""
        path = routes.run_events(self.path, name_or_id)
        stream = self._client.stream(path, accept=EVENTS, silence_s=SILENCE_S)
        return json_events(stream, unreachable=self._client.unreachable)

    def stop(self, name_or_id: str) -> StopReply:
        """Request a run to stop; idempotent."""
        path = routes.run_stop(self.path, name_or_id)
        return self._client.post(path, None, model=StopReply, retry=REPEATING)

    def delete(self, name_or_id: str) -> None:
        """Delete a run that has ended; only on self-hosted platforms."""
        self._client.delete(routes.run(self.path, name_or_id))

    def _submit(self, run: _SubmitT, reply: type[_SubmittedT]) -> _SubmittedT:
        if run.secrets is not None:
            self._client.hide(run.secrets.provided.values())
        return self._client.post(self.path, run, model=reply)


class RunsWithFiles(Runs[_SubmitT]):
    files: ClassVar[str]

    def manifest(self, name_or_id: str, *, types: Sequence[str], rows: str | None = None) -> SampleManifest:
        return self._client.get(
            routes.run_manifest(self.path, name_or_id, self.files),
            model=SampleManifest,
            params={"types": ",".join(types), "rows": rows},
        )

    def download_urls(self, name_or_id: str, items: Sequence[DownloadItem]) -> DownloadUrls:
        """Return temporary URLs for files of a manifest."""
        return self._client.post(
            routes.run_download_urls(self.path, name_or_id, self.files),
            DownloadUrlsRequest(items=list(items)),
            model=DownloadUrls,
            retry=SIGNING,
        )


def _is_verdict(error: PlatformError) -> bool:
    """Tell whether an error refuses the submit or its user, rather than means that the route is missing."""
    return error.body.get("dry_run") is True or (error.platform_code or "").startswith("GIT_")


REVOKE_TIMEOUT_S = 5.0
Waiting = Literal["authorization_pending", "slow_down"]


class Auth(Resource):
    def verify(self) -> Verification:
        """Return the owner of the token and, with a repository, its workspace."""
        return self._client.get(routes.VERIFY, model=Verification, git="optional")

    def authorize_device(self, device_name: str) -> DeviceAuthorization:
        """Start a login and return the code that the user confirms in a browser."""
        return self._client.request(
            "POST",
            routes.DEVICE_AUTHORIZE,
            model=DeviceAuthorization,
            body=DeviceAuthorizeRequest(deviceName=device_name),
            git="never",
            anonymous=True,
        )

    def poll_device_token(self, device_code: str) -> IssuedToken | Waiting:
        """Return the token once the user has confirmed; until then, how to continue polling."""
        self._client.hide([device_code])
        try:
            issued = self._client.request(
                "POST",
                routes.DEVICE_TOKEN,
                model=IssuedToken,
                body=DeviceTokenRequest(device_code=device_code),
                git="never",
                anonymous=True,
            )
        except PlatformError as error:
            said = error.body.get("error")
            if said == "authorization_pending":
                return "authorization_pending"
            if said == "slow_down":
                return "slow_down"
            if said in _ENDINGS:
                message, hint = _ENDINGS[said]
                raise PlatformError(
                    message,
                    status=error.status,
                    body=error.body,
                    code="AUTH_REQUIRED",
                    details=error.details,
                    hint=hint,
                ) from None
            raise
        self._client.hide([issued.token])
        return issued

    def revoke(self, token_id: str) -> None:
        """Revoke a token of this user, possibly the one in use."""
        self._client.delete(routes.token(token_id), timeout_s=REVOKE_TIMEOUT_S, git="never")


_ENDINGS = {
    "expired_token": ("The login was not confirmed in time.", "run `osmosis login` again"),
    "access_denied": (
        "The login was declined in the browser.",
        "run `osmosis login` again if that was a mistake",
    ),
}


class Workspaces(Resource):
    """The user's workspaces."""

    def list(self) -> WorkspaceList:
        """Return every workspace of the user; needs no repository."""
        return self._client.get(routes.WORKSPACES, model=WorkspaceList, git="never")

    def quickstart(self, workspace_id: str) -> QuickstartStatus:
        """Return the user's progress with the first steps in a workspace."""
        return self._client.get(
            routes.QUICKSTART, model=QuickstartStatus, params={"organizationId": workspace_id}, git="never"
        )

    def record_quickstart(self, workspace_id: str, intent: Intent) -> QuickstartRecorded:
        """Record what the user does first."""
        choice = QuickstartChoice(organizationId=workspace_id, intent=intent)
        return self._client.post(
            routes.QUICKSTART, choice, model=QuickstartRecorded, git="never", retry=REPEATING
        )


SecretScope = Literal["workspace", "user"]


class Secrets(Resource):
    """The secrets of the repository's workspace, and this user's own secrets in it."""

    def list(
        self,
        *,
        scope: Literal["all", "workspace", "user"] = "all",
        limit: int = LARGEST_PAGE,
        offset: int = 0,
    ) -> SecretList:
        """Return one page of names; with ``all``, a name may occur in both scopes."""
        return self._page(
            routes.ENVIRONMENT_SECRETS, model=SecretList, limit=limit, offset=offset, scope=scope
        )

    def handouts(self, *, limit: int = LARGEST_PAGE, offset: int = 0) -> SecretHandoutList:
        """Return one page of the log of secrets that workers received, newest first."""
        return self._page(routes.SECRET_AUDIT, model=SecretHandoutList, limit=limit, offset=offset)

    def set(self, name: str, value: str, *, scope: SecretScope) -> Secret:
        """Create or replace a secret."""
        self._client.hide([value])
        request = SecretSetRequest(name=name, value=value, scope=scope)
        return self._client.post(routes.ENVIRONMENT_SECRETS, request, model=Secret, retry=REPEATING)

    def delete(self, name: str, *, scope: SecretScope) -> None:
        self._client.delete(routes.ENVIRONMENT_SECRETS, SecretDeleteRequest(name=name, scope=scope))


PARTS_TIMEOUT_S = 120.0


class Datasets(Resource):
    def list(self, *, limit: int = LARGEST_PAGE, offset: int = 0) -> DatasetList:
        """Return one page, newest first."""
        return self._page(routes.DATASETS, model=DatasetList, limit=limit, offset=offset)

    def get(self, name_or_id: str) -> Dataset:
        return self._client.get(routes.dataset(name_or_id), model=Dataset)

    def create(
        self,
        name: str,
        *,
        size_bytes: int,
        extension: str,
        overwrite_id: str | None = None,
        intent: UploadIntent | None = None,
    ) -> Dataset:
        """Announce an upload and return the dataset with its upload instructions."""
        request = DatasetCreateRequest(file_name=name, file_size=size_bytes, extension=extension)
        if overwrite_id is not None:
            request.overwrite_dataset_id = overwrite_id
        headers = None if intent is None else {UPLOAD_INTENT_HEADER: intent.header}
        return self._client.post(routes.DATASETS, request, model=Dataset, headers=headers)

    def complete(
        self, dataset_id: str, *, extension: str, parts: Sequence[CompletedPart] | None = None
    ) -> Dataset:
        """Tell the platform that all bytes are stored; idempotent."""
        request = DatasetCompleteRequest(file_extension=extension)
        if parts is not None:
            request.parts = list(parts)
        return self._client.post(
            routes.dataset_complete(dataset_id),
            request,
            model=Dataset,
            timeout_s=PARTS_TIMEOUT_S if parts is not None else None,
            retry=COMPLETING,
        )

    def abort(self, dataset_id: str) -> None:
        """Cancel an upload; idempotent."""
        self._client.post(routes.dataset_abort(dataset_id), None, model=WireModel, retry=REPEATING)

    def delete(self, name_or_id: str) -> None:
        """Delete a dataset; only on self-hosted platforms."""
        self._client.delete(routes.dataset(name_or_id))

    def download(self, name_or_id: str) -> DatasetDownload:
        """Return a temporary URL for the bytes."""
        return self._client.get(routes.dataset_download(name_or_id), model=DatasetDownload)

    def logs(
        self,
        name_or_id: str,
        *,
        limit: int = 50,
        cursor: str | None = None,
        direction: LogDirection = "older",
    ) -> LogPage:
        """Return one page of a dataset's validation log."""
        return self._log_page(
            routes.dataset_logs(name_or_id), limit=limit, cursor=cursor, direction=direction
        )


class Rollouts(Resource):
    def list(self, *, branch: str | None = None, limit: int = LARGEST_PAGE, offset: int = 0) -> RolloutList:
        """Return one page, of ``branch`` or of the default branch."""
        return self._page(routes.ROLLOUTS, model=RolloutList, limit=limit, offset=offset, branch=branch)


class RolloutServers(Resource):
    """The remote agents of the repository's workspace; without a repository, of the token's workspace."""

    def list(self, *, limit: int = LARGEST_PAGE, offset: int = 0) -> RolloutServerList:
        """Return one page, sorted by name."""
        params = {"limit": limit, "offset": offset}
        return self._client.get(
            routes.ROLLOUT_SERVERS, model=RolloutServerList, params=params, git="optional"
        )

    def register(self, registration: RolloutServerRegistration) -> RegisteredRolloutServer:
        """Register or replace an agent; the platform checks its health."""
        if registration.api_key is not None:
            self._client.hide([registration.api_key])
        return self._client.post(
            routes.ROLLOUT_SERVER_REGISTER,
            registration,
            model=RegisteredRolloutServer,
            git="optional",
            retry=REPEATING,
        )

    def probe(self, name: str) -> RegisteredRolloutServer:
        """Have the platform check an agent's health."""
        path = routes.rollout_server_probe(name)
        return self._client.post(path, None, model=RegisteredRolloutServer, git="optional", retry=REPEATING)

    def remove(self, name: str) -> None:
        self._client.delete(routes.rollout_server(name), git="optional")


class Models(Resource):
    def list_base(self, *, limit: int = LARGEST_PAGE, offset: int = 0) -> BaseModelList:
        """Return one page of the models that can be evaluated and trained."""
        return self._page(routes.BASE_MODELS, model=BaseModelList, limit=limit, offset=offset)

    def list_lora(self, *, limit: int = LARGEST_PAGE, offset: int = 0) -> LoraModelList:
        return self._page(routes.LORA_MODELS, model=LoraModelList, limit=limit, offset=offset)

    def get(self, name: str) -> LoraModel:
        return self._client.get(routes.model(name), model=LoraModel)

    def deploy(self, name: str) -> DeploymentChange:
        """Deploy an adapter; idempotent."""
        return self._client.post(routes.model_deploy(name), None, model=DeploymentChange, retry=REPEATING)

    def undeploy(self, name: str) -> DeploymentChange:
        """Undeploy an adapter; idempotent."""
        return self._client.post(routes.model_undeploy(name), None, model=DeploymentChange, retry=REPEATING)

    def download(self, name: str) -> ModelDownload:
        """Return temporary URLs for the files of an adapter."""
        return self._client.get(routes.model_download(name), model=ModelDownload)


LARGEST_SAMPLE_PAGE = 5_000


class EvalRuns(RunsWithFiles[EvalRunSubmit]):
    path = routes.EVAL_RUNS
    files = "samples"

    def list(self, *, limit: int = LARGEST_PAGE, offset: int = 0) -> EvalRunList:
        """Return one page, newest first."""
        return self._page(self.path, model=EvalRunList, limit=limit, offset=offset)

    def get(self, name_or_id: str) -> EvalRunDetail:
        return self._client.get(routes.run(self.path, name_or_id), model=EvalRunDetail)

    def metrics(self, name_or_id: str) -> EvalMetrics:
        """Return a run's metrics so far."""
        return self._client.get(routes.run_metrics(self.path, name_or_id), model=EvalMetrics)

    def check_retry(self, name_or_id: str, again: EvalRetry) -> RetryCheck:
        """Return what a retry of a run would repeat, without reopening it."""
        path = routes.run_check(routes.eval_run_retry(name_or_id))
        return self._client.post(path, self._hidden(again), model=RetryCheck, retry=REPEATING)

    def retry(self, name_or_id: str, again: EvalRetry) -> SubmittedRun:
        """Reopen a run to repeat its failed and unscored attempts; the request is never retried."""
        path = routes.eval_run_retry(name_or_id)
        return self._client.post(path, self._hidden(again), model=SubmittedRun)

    def samples(
        self,
        name_or_id: str,
        *,
        limit: int = LARGEST_SAMPLE_PAGE,
        cursor: str | None = None,
        details: bool = False,
    ) -> EvalSamplePage:
        """Return one page of a run's attempts."""
        params: dict[str, str | int | None] = {"limit": limit, "cursor": cursor}
        if details:
            params["details"] = "true"
        path = routes.eval_run_samples(name_or_id)
        return self._client.get(path, model=EvalSamplePage, params=params)

    def _hidden(self, again: EvalRetry) -> EvalRetry:
        """Hide the values of secrets in errors."""
        if again.secrets is not None:
            self._client.hide(again.secrets.provided.values())
        return again


FINALIZE_TIMEOUT_S = 300.0


class EvalImports(Resource):
    """Uploads of local evaluations to the repository's workspace."""

    def start(self, request: EvalImportStart) -> EvalImportSession:
        """Announce a run and its files; for a run that was announced before, the upload is resumed."""
        return self._client.post(
            routes.EVAL_IMPORTS, request, model=EvalImportSession, timeout_s=PARTS_TIMEOUT_S, retry=SIGNING
        )

    def uploads(self, session_id: str, paths: Sequence[str]) -> list[ImportUpload]:
        """Return upload URLs for those of ``paths`` (1 to 100) that are missing."""
        path = routes.eval_import_uploads(session_id)
        asked = ImportUploadsRequest(paths=list(paths))
        return self._client.post(path, asked, model=ImportUploads, retry=SIGNING).files

    def complete(self, session_id: str, path: str, parts: Sequence[CompletedPart] | None) -> None:
        """Report that all bytes of a file are stored; ``parts`` if it was sent in parts."""
        request = ImportUploadComplete(path=path)
        if parts is not None:
            request.parts = [ImportPart(part_number=part.PartNumber, etag=part.ETag) for part in parts]
        self._client.post(
            routes.eval_import_complete(session_id),
            request,
            model=WireModel,
            timeout_s=PARTS_TIMEOUT_S,
            retry=COMPLETING,
        )

    def finalize(self, session_id: str) -> EvalImportSession:
        """Create a run from the uploaded files."""
        return self._client.post(
            routes.eval_import_finalize(session_id),
            None,
            model=EvalImportSession,
            timeout_s=FINALIZE_TIMEOUT_S,
            retry=COMPLETING,
        )


class TrainingRuns(Runs[TrainingRunSubmit]):
    path = routes.TRAINING_RUNS

    def list(self, *, limit: int = LARGEST_PAGE, offset: int = 0) -> TrainingRunList:
        """Return one page, newest first."""
        return self._page(self.path, model=TrainingRunList, limit=limit, offset=offset)

    def get(self, name_or_id: str) -> TrainingRunDetail:
        return self._client.get(routes.run(self.path, name_or_id), model=TrainingRunDetail)

    def metrics(self, name_or_id: str) -> TrainingMetrics:
        """Return every point of every metric so far."""
        return self._client.get(routes.run_metrics(self.path, name_or_id), model=TrainingMetrics)

    def resume(self, name_or_id: str) -> ResumeReply:
        """Resume a run that failed or was stopped from its last checkpoint."""
        return self._client.post(routes.training_run_resume(name_or_id), None, model=ResumeReply)

    def checkpoints(self, name_or_id: str) -> CheckpointList:
        """Return a run's saved adapters, oldest first."""
        return self._client.get(routes.training_run_checkpoints(name_or_id), model=CheckpointList)

    def validation(self, name_or_id: str, *, cursor: str | None = None) -> ValidationPage:
        """Return attempts of the newest validation: those without a score first, then by ascending reward."""
        path = routes.training_run_validation(name_or_id)
        return self._client.get(path, model=ValidationPage, params={"cursor": cursor})

    def validation_conversation(self, name_or_id: str, row: int, attempt: int) -> ValidationConversation:
        """Return the conversation of one of these attempts."""
        path = routes.training_run_conversation(name_or_id, row, attempt)
        return self._client.get(path, model=ValidationConversation)


class BenchmarkRuns(RunsWithFiles[Any]):
    path = routes.BENCHMARK_RUNS
    files = "outputs"
