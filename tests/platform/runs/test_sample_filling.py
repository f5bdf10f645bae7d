"""What earlier releases did not record is read from stored conversations, once, and never guessed."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import pytest
from sqlalchemy import select

from osmosis_ai.platform.blobs.store import BlobStore, BlobStoreBusy, BlobStoreError, BlobStoreSilent
from osmosis_ai.platform.db.tables import DbRun, DbRunFile, DbSample, new_id
from osmosis_ai.platform.http.operations import health
from osmosis_ai.platform.runs import sample_filling
from osmosis_ai.platform.runs.read.sample_counts import SampleCounts
from osmosis_ai.platform.runs.sample_filling import SampleFilling
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.viewer.source import PlatformSource
from osmosis_ai.viewer.source import SampleQuery
from tests.platform.conftest import ManualClock, Member

CALL = {
    "prompt_tokens": 10,
    "completion_tokens": 2,
    "cost_usd": 0.25,
    "extra": {"latency_ms": 5.5, "finish_reason": "length"},
}
STEPS = [
    {"step_id": 1, "source": "user", "message": "two\n\0times two?"},
    {"step_id": 2, "source": "agent", "message": "four", "metrics": CALL},
    {"step_id": 3, "source": "agent", "message": "", "metrics": CALL},
]
NOTED = {"sample_extra_fields": {"grader_notes": {"notes": "right", "parts": {"all": 1}}}}


def conversation(steps: list[Any] = STEPS, **told: Any) -> bytes:
    document = {"schema_version": "ATIF-v1.7", "agent": {}, "steps": steps, "extra": {"osmosis": told}}
    return json.dumps(document).encode()


def add_run(services: PlatformServices, member: Member, stored: list[bytes | None], **changes: Any) -> DbRun:
    """Add a run with a sample for each conversation, as 0.3.10 kept them; None has none."""
    now = services.clock.now()
    run = DbRun(
        **{
            "id": new_id("run"),
            "workspace_id": member.workspace.id,
            "kind": "eval",
            "name": new_id("old"),
            "status": "finished",
            "created_at": now,
            "completed_at": now,
            "request": {},
            "rollout_name": "multiply",
            "dataset_name": "multiply",
            "model_path": "osmosis/tiny",
            **changes,
        }
    )
    with services.db.transaction() as session:
        session.add(run)
        session.flush()
        for row, content in enumerate(stored):
            place = {"run_id": run.id, "row_index": row, "run_index": 0}
            rest = {"source_row_index": row, "rollout_id": "r", "status": "success", "duration_ms": 1.0}
            session.add(DbSample(**place, **rest, tokens=99))
            if content is not None:
                key = f"runs/{run.id}/files/{row}"
                services.blobs.put(key, io.BytesIO(content))
                path = f"trajectories/row_{row}_run_0.json"
                file = {"path": path, "kind": "trajectories", "size": len(content), "blob_key": key}
                session.add(DbRunFile(run_id=run.id, **file))
    return run


def samples(services: PlatformServices, run: DbRun) -> list[DbSample]:
    with services.db.session() as session:
        of_run = select(DbSample).where(DbSample.run_id == run.id)
        return list(session.scalars(of_run.order_by(DbSample.row_index)))


def is_filled(services: PlatformServices, run: DbRun) -> bool:
    with services.db.session() as session:
        return session.get_one(DbRun, run.id).samples_filled_at is not None


def test_what_a_conversation_says_is_filled_and_what_was_known_stays(
    services: PlatformServices, member: Member
) -> None:
    unmatched = conversation([STEPS[0]], unmatched_llm_call_metrics=[CALL, {**CALL, "cost_usd": None}, 3])
    run = add_run(services, member, [conversation(**NOTED), unmatched])
    services.sample_filling.fill()
    whole, loose = samples(services, run)
    assert (whole.tokens, whole.prompt_tokens, whole.completion_tokens, whole.model_calls) == (99, 20, 4, 2)
    assert (whole.cost_usd, whole.model_latency_ms) == (0.5, 11.0)
    assert whole.finish_reasons == loose.finish_reasons == {"length": 2}
    assert (whole.input, whole.output) == ("two \N{REPLACEMENT CHARACTER}times two?", "four")
    assert (whole.notes, whole.parts) == ("right", {"all": 1.0})
    assert (loose.model_calls, loose.cost_usd, loose.model_latency_ms, loose.output) == (2, None, 11.0, None)
    assert is_filled(services, run)


def test_what_is_lost_damaged_or_hostile_stays_not_recorded(
    services: PlatformServices, member: Member
) -> None:
    huge = {"prompt_tokens": 10**12, "completion_tokens": -1, "cost_usd": "much", "extra": []}
    odd = conversation(
        [3, {"source": "agent", "message": {"a": [None]}, "metrics": huge}], sample_extra_fields=3
    )
    run = add_run(services, member, [None, b"\xff{", b"[" * 9999, odd, conversation(), conversation()])
    services.blobs.delete(f"runs/{run.id}/files/5")
    services.sample_filling.fill()
    found = samples(services, run)
    assert [each.input is not None for each in found] == [False, False, False, False, True, False]
    assert [each.prompt_tokens for each in found] == [None, None, None, None, 20, None]
    assert is_filled(services, run)


def test_a_config_that_wants_no_previews_gets_none(services: PlatformServices, member: Member) -> None:
    request = {"advanced_config": {"previews": False}}
    run = add_run(services, member, [conversation()], request=request)
    services.sample_filling.fill()
    (sample,) = samples(services, run)
    assert (sample.model_calls, sample.input, sample.output) == (2, None, None)


def test_a_run_is_read_once_it_has_ended_and_then_never_again(
    services: PlatformServices, member: Member
) -> None:
    done = add_run(services, member, [conversation()])
    running = add_run(services, member, [conversation()], status="running")
    services.sample_filling.fill()
    assert (is_filled(services, done), is_filled(services, running)) == (True, False)
    with services.db.transaction() as session:
        for sample in session.scalars(select(DbSample)):
            sample.input = sample.output = None
        session.get_one(DbRun, running.id).status = "stopped"
    services.sample_filling.fill()
    assert [each.input is None for run in (done, running) for each in samples(services, run)] == [True, False]


def test_a_store_that_is_away_leaves_nothing_for_not_recorded(
    services: PlatformServices, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise BlobStoreBusy("the bucket 'models' answered 503; it is asked again later.")

    run = add_run(services, member, [conversation()])
    with monkeypatch.context() as patch:
        patch.setattr(services.blobs, "open", away)
        with pytest.raises(BlobStoreBusy):
            services.sample_filling.fill()
    assert not is_filled(services, run)
    services.sample_filling.fill()
    assert is_filled(services, run) and samples(services, run)[0].output == "four"


@pytest.mark.parametrize(
    "failure", [BlobStoreError("it was changed"), BlobStoreBusy("500"), OSError("the disk")]
)
def test_a_run_whose_files_cannot_be_read_keeps_no_other_from_being_filled(
    services: PlatformServices,
    member: Member,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    failure: Exception,
) -> None:
    older = add_run(services, member, [conversation()])
    clock.advance(1.0)
    harmed = add_run(services, member, [conversation()])
    opened = services.blobs.open

    def damaged(key: str) -> Any:
        if harmed.id in key:
            raise failure
        return opened(key)

    monkeypatch.setattr(services.blobs, "open", damaged)
    with pytest.raises(type(failure)):
        services.sample_filling.fill()
    assert (is_filled(services, harmed), is_filled(services, older)) == (False, True)
    assert services.sample_filling.left == 1


def test_a_store_that_does_not_answer_is_not_asked_for_each_run(
    services: PlatformServices, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def silent(key: str) -> None:
        asked.append(key)
        raise BlobStoreSilent("it does not answer.")

    for _ in range(2):
        add_run(services, member, [conversation()])
    monkeypatch.setattr(services.blobs, "open", silent)
    with pytest.raises(BlobStoreSilent):
        services.sample_filling.fill()
    assert len(asked) == 1


class Ended(BaseException):
    """The platform is killed."""


def test_who_is_killed_half_way_goes_on_with_what_is_left(
    services: PlatformServices, member: Member, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_filling, "_BATCH", 2)
    run = add_run(services, member, [conversation()] * 5)
    opened: list[str] = []

    class Dying:
        def open(self, key: str) -> Any:
            opened.append(key.rpartition("/")[2])
            if len(opened) == 4:
                raise Ended
            return services.blobs.open(key)

    dying: BlobStore = Dying()  # type: ignore[assignment]
    with pytest.raises(Ended):
        SampleFilling(services.db, dying, clock).fill()
    assert not is_filled(services, run)
    SampleFilling(services.db, dying, clock).fill()
    assert opened == ["0", "1", "2", "3", "2", "3", "4"]
    assert all(sample.input for sample in samples(services, run))
    assert is_filled(services, run)


def test_how_much_is_left_is_what_the_platform_says_of_itself(services: PlatformServices) -> None:
    services.sample_filling.left = 3
    assert asyncio.run(health(services))["runs_to_fill"] == 3


def test_how_much_of_a_run_was_read_is_known_while_it_is(
    services: PlatformServices, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_filling, "_BATCH", 2)
    run = add_run(services, member, [conversation()] * 4, results={"sampled_rows": 4})
    source = PlatformSource(services, member.workspace.id, SampleCounts())

    def share() -> float | None:
        return source.samples(run.name, SampleQuery(), limit=9).filling

    seen: list[float | None] = [share()]
    read = SampleFilling._fill_batch

    def noted(*words: Any, **more: Any) -> None:
        seen.append(share())
        read(*words, **more)

    monkeypatch.setattr(SampleFilling, "_fill_batch", noted)
    services.sample_filling.fill()
    assert [*seen, share()] == [0.0, 0.0, 0.5, None]
    running = add_run(services, member, [conversation()], status="running")
    assert source.samples(running.name, SampleQuery(), limit=9).filling is None
