"""A worker that executes nothing: it speaks the worker protocol and reports fabricated records."""

from __future__ import annotations

import secrets
import time

import aiohttp

from osmosis_ai._version import __version__
from osmosis_ai.api.models.base import WireModel
from osmosis_ai.api.models.workers import (
    CLAIM,
    Assignment,
    ClaimReply,
    ClaimRequest,
    FinishRequest,
    JournalPart,
    SyncReply,
    SyncRequest,
    shard_route,
)
from osmosis_ai.controller.record import TerminalRecord


class FakeWorker:
    """The owner of a shard."""

    def __init__(self, session: aiohttp.ClientSession, url: str, assignment: Assignment) -> None:
        self._session, self._url = session, url
        self._shard = assignment.shard
        self._lease = assignment.lease.token.get_secret_value()
        self._run_id = assignment.run.id
        self._journal_bytes = self._reported = 0
        self.next_poll_s = assignment.next_poll_s
        self.sync_ms: list[float] = []

    @classmethod
    async def claim(cls, session: aiohttp.ClientSession, url: str, token: str) -> FakeWorker | None:
        """Claim a shard of the token's pool; None if there is none."""
        request = ClaimRequest(
            claim_id=secrets.token_hex(16),
            sdk_version=__version__,
            machine=secrets.token_hex(4),
            isolation="off",
        )
        reply = ClaimReply.model_validate_json(await _post(session, f"{url}{CLAIM}", token, request))
        return None if reply.assignment is None else cls(session, url, reply.assignment)

    async def report(self, attempts: int) -> None:
        """Report the next attempts of the shard in one exchange."""
        places = range(self._reported, self._reported + attempts)
        rows = [self._shard.number + self._shard.count * place for place in places]
        lines = b"".join(_record(self._run_id, row) for row in rows)
        journal = JournalPart(offset=self._journal_bytes, lines=lines.decode())
        body = SyncRequest(journal=journal, files=[], worked_s=float(self._reported))
        began = time.perf_counter()
        reply = SyncReply.model_validate_json(await self._call("sync", body))
        self.sync_ms.append((time.perf_counter() - began) * 1000)
        self.next_poll_s = reply.next_poll_s
        self._journal_bytes += len(lines)
        self._reported += attempts

    async def finish(self) -> None:
        await self._call("finish", FinishRequest(outcome="finished"))

    async def _call(self, name: str, body: WireModel) -> bytes:
        url = f"{self._url}{shard_route(self._shard.id, name)}"  # type: ignore[arg-type]
        return await _post(self._session, url, self._lease, body)


def _record(run_id: str, row: int) -> bytes:
    return TerminalRecord(
        row_index=row,
        run_index=0,
        rollout_id=f"{run_id[-24:]}{row:08x}",
        status="success",
        duration_ms=1234,
        source_row_index=row,
        reward=float(row % 2),
        tokens=400,
    ).to_line()


async def _post(session: aiohttp.ClientSession, url: str, token: str, body: WireModel) -> bytes:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    content = body.model_dump_json(by_alias=True, exclude_unset=True)
    async with session.post(url, data=content, headers=headers) as reply:
        text = await reply.read()
        if not reply.ok:
            raise SystemExit(f"{url}: {reply.status} {text[:300].decode()}")
        return text
