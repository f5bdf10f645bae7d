"""One admitted rollout, from its start to its archive: exactly one terminal report per channel.

Reports go out in order, the workflow's before the grader's, and always as they happened. An
unreachable controller delays them; it never turns a reward into a failure. The conversation is on
disk before the final report is sent: once that is acknowledged, nothing is lost even if this process
dies.
"""

from __future__ import annotations

import logging

from ..backend.base import ExecutionBackend
from ..context import RolloutContext
from ..trajectory.archive import RolloutArchive
from ..trajectory.report import TrajectoryReport, report_from_response
from ..types.execution import ExecutionRequest, ExecutionResult
from ..types.protocol import RolloutInitRequest, RolloutStatus
from .auth import ControllerAuth
from .callback_delivery import ATTEMPTS, PATIENCE_S, CallbackDelivery, DeliveryError
from .wire import completion_body, grader_body

logger = logging.getLogger(__name__)

_BACKEND_FAILED = ExecutionResult(status=RolloutStatus.FAILURE, err_message="Internal server error")


class RolloutExecution:
    """Runs one rollout on a backend, reports it and archives it.

    Args:
        rollout_id: the id, the server's own invention where the controller gave none.
        init: what the controller asked for.
        backend: who executes it.
        delivery: what carries the reports.
    """

    def __init__(
        self, rollout_id: str, init: RolloutInitRequest, backend: ExecutionBackend, delivery: CallbackDelivery
    ) -> None:
        self.rollout_id = rollout_id
        self._init = init
        self._backend = backend
        self._delivery = delivery
        self._headers = ControllerAuth(init.controller_api_key).as_bearer_headers()
        self._grader_url = init.grader_callback_url or None
        self._completed = False
        self._graded = False
        self._owed_completion: bytes | None = None
        self._best: ExecutionResult | None = None
        self._diagnostics: dict[str, object] | None = None
        self._report: TrajectoryReport | None = None
        self._archive = RolloutArchive(
            rollout_id, label=init.label, metadata=init.metadata, extra_fields=init.extra_fields
        )

    async def run(self) -> None:
        """Run to the end; raises only when cancelled, and then reports nothing more."""
        init = self._init
        request = ExecutionRequest(
            id=self.rollout_id,
            prompt=init.initial_messages,
            label=init.label,
            metadata=init.metadata,
            agent_timeout_sec=init.agent_timeout_sec,
            grader_timeout_sec=init.grader_timeout_sec,
            extra_fields=init.extra_fields,
        )
        api_key = init.llm_api_key or init.controller_api_key
        on_graded = self._on_graded if self._grader_url is not None else None
        try:
            with RolloutContext(init.chat_completions_url, api_key, self.rollout_id):
                final = await self._backend.execute(request, self._on_completed, on_graded)
            if self._backend.capture_final_result and final is not None:
                self._remember(final)
        except Exception:
            # Any backend can be plugged in; the controller must hear of its failure all the same.
            logger.exception("the backend failed on rollout %s", self.rollout_id)
        await self._settle()
        self._archive.publish(
            self._best, self._report, self._diagnostics or (self._best.extra_fields if self._best else None)
        )

    async def _on_completed(self, result: ExecutionResult) -> None:
        if self._completed:
            logger.error("the backend completed rollout %s twice; the first report stands", self.rollout_id)
            return
        self._completed = True
        self._remember(result)
        body = completion_body(self.rollout_id, result)
        if self._grader_url is None:
            self._archive.keep(self._best, self._report)
        try:
            answer = await self._delivery.deliver(
                self._init.completion_callback_url, body, self._headers, attempts=ATTEMPTS
            )
        except DeliveryError as error:
            logger.error("rollout %s: %s", self.rollout_id, error)
            # Grading goes on: what the agent did is worth its reward, and the order can be kept later.
            self._owed_completion = None if error.refused else body
        else:
            self._read_answer(answer)

    async def _on_graded(self, result: ExecutionResult) -> None:
        if self._graded or self._grader_url is None:
            logger.error("the backend graded rollout %s twice; the first report stands", self.rollout_id)
            return
        self._graded = True
        self._remember(result)
        await self._pay_completion()
        self._archive.keep(self._best, self._report)
        await self._deliver_patiently(self._grader_url, grader_body(self.rollout_id, result))

    async def _settle(self) -> None:
        """Report in the backend's stead what it did not, and pay what is owed."""
        if not self._completed:
            await self._on_completed(_BACKEND_FAILED)
        if not self._graded and self._grader_url is not None:
            await self._on_graded(_BACKEND_FAILED)
        await self._pay_completion()

    async def _pay_completion(self) -> None:
        body, self._owed_completion = self._owed_completion, None
        if body is not None:
            await self._deliver_patiently(self._init.completion_callback_url, body)

    async def _deliver_patiently(self, url: str, body: bytes) -> None:
        try:
            self._read_answer(await self._delivery.deliver(url, body, self._headers, patience_s=PATIENCE_S))
        except DeliveryError as error:
            logger.error("rollout %s: its outcome is lost: %s", self.rollout_id, error)

    def _read_answer(self, answer: bytes) -> None:
        report = report_from_response(answer)
        if report is not None:
            self._report = report

    def _remember(self, result: ExecutionResult) -> None:
        """Keep the latest result that has a sample, and the latest diagnostics, for the archive."""
        if result.sample is not None:
            self._best = result
        if result.extra_fields:
            self._diagnostics = result.extra_fields
