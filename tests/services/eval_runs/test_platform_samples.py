"""A platform's run as comparisons see it: page by page from ours, counts from the hosted service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import respx

from osmosis_ai.api.client import PlatformClient
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.evaluation.run_dataset_files import require_unchanged
from osmosis_ai.services.eval_runs.platform_samples import read_platform_samples
from osmosis_ai.services.eval_runs.resolver import resolve_run
from tests.cli.eval_replies import DETAIL, METRICS, OWN, RESULTS
from tests.evaluation.comparison.builders import write_journalled_run
from tests.workspace.builders import make_workspace

BASE = "https://platform.osmosis.ai"
OURS = {"X-Osmosis-Capabilities": "eval-samples"}
FINISHED = {
    **DETAIL,
    "eval_run": {**OWN, "status": "finished"},
    "results": {**RESULTS, "sampled_rows": 2},
    "dataset_sha256": "d" * 64,
    "grader_digest": "9" * 64,
}
FIRST = {
    "row": 0,
    "attempt": 0,
    "status": "success",
    "source_row_index": 7,
    "row_digest": "a" * 32,
    "reward": 1,
}


@pytest.fixture
def client() -> Iterator[PlatformClient]:
    with PlatformClient(BASE, "osm_u_7Qd", "fern/maze") as client:
        yield client


class Replies:
    """What the platform says, with the capabilities of ours or, without, of the hosted service."""

    def __init__(self, router: respx.MockRouter, headers: dict[str, str]) -> None:
        self._router = router
        self.headers = headers

    def get(self, path: str, reply: Any, *, status: int = 200, **params: Any) -> None:
        self._router.get(f"{BASE}/api/cli{path}", params=params).respond(
            status, json=reply, headers=self.headers
        )

    def run(self, detail: dict[str, Any] = FINISHED) -> None:
        self.get("/eval-runs/amber-otter-42", detail)
        self.get("/eval-runs/er_8/metrics", METRICS)


@pytest.fixture
def ours() -> Iterator[Replies]:
    with respx.mock(assert_all_called=False) as router:
        yield Replies(router, OURS)


@pytest.fixture
def hosted() -> Iterator[Replies]:
    with respx.mock(assert_all_called=False) as router:
        yield Replies(router, {})


def test_every_page_is_read_and_rows_are_known_by_their_digests(
    ours: Replies, client: PlatformClient
) -> None:
    ours.run()
    second = {"row": 1, "attempt": 0, "status": "failed", "source_row_index": 3, "row_digest": "b" * 32}
    copy = {**second, "attempt": 1, "status": "success", "reward": 0.25, "cost_usd": 0.5, "tokens": 9}
    ours.get("/eval-runs/er_8/samples", {"samples": [second, copy]}, limit=5000, cursor="0-0")
    ours.get("/eval-runs/er_8/samples", {"samples": [FIRST], "next_cursor": "0-0"}, limit=5000)
    run = read_platform_samples(client, "amber-otter-42")
    assert (run.name, run.run_id, run.place, run.status) == ("amber-otter-42", "er_8", "platform", "finished")
    assert (run.keyed_by, run.row_keys) == ("row_digest", ("a" * 32, "b" * 32))
    assert run.source_rows.tolist() == [7, 3]
    assert run.samples["row"].tolist() == [0, 1, 1]
    np.testing.assert_array_equal(run.samples["reward"], [1.0, np.nan, 0.25])
    np.testing.assert_array_equal(run.samples["cost_usd"], [np.nan, np.nan, 0.5])
    inputs = run.inputs
    assert (inputs.model, inputs.dataset_name, inputs.dataset_sha256) == (
        "osmosis/tiny",
        "maze-walks",
        "d" * 64,
    )
    assert (inputs.commit, inputs.n, inputs.seed, inputs.grader_digest) == (
        DETAIL["commit_sha"],
        2,
        7,
        "9" * 64,
    )
    assert (run.unfinished, run.imported, run.summary, run.notes) == (None, None, None, ())


def test_a_platform_that_tells_no_attempts_gives_counts(hosted: Replies, client: PlatformClient) -> None:
    hosted.run()
    run = read_platform_samples(client, "amber-otter-42")
    assert run.summary is not None and run.samples.size == 0
    assert (run.summary.rows, run.summary.scored, run.summary.passed, run.summary.tried) == (2, 8, 4, 8)
    assert run.summary.pass_at_k == {1: 0.4, 2: 0.6}


def test_an_imported_run_is_marked_and_its_rows_are_known_by_dataset_and_place(
    ours: Replies, client: PlatformClient
) -> None:
    origin = {"local_run_id": "0f" * 16, "sdk_version": "0.3.11", "git_head": "1a2b3c4", "git_dirty": True}
    ours.run({**FINISHED, "eval_run": {**OWN, "status": "finished", "imported": origin}})
    bare = {name: value for name, value in FIRST.items() if name != "row_digest"}
    ours.get("/eval-runs/er_8/samples", {"samples": [bare]})
    run = read_platform_samples(client, "amber-otter-42")
    assert run.imported == "executed elsewhere, with 0.3.11 at 1a2b3c4 and uncommitted changes"
    assert (run.keyed_by, run.row_keys) == ("dataset-and-index", (f"{'d' * 64}:7",))
    assert "imported runs have no row digests" in run.notes[0]
    assert run.inputs.dirty is True
    # What was uploaded is the run that it was uploaded from.
    assert run.run_id == "0f" * 16


def test_a_run_that_goes_on_is_unfinished_and_one_without_rows_is_not_read(
    ours: Replies, client: PlatformClient
) -> None:
    ours.run({**FINISHED, "eval_run": {**OWN, "status": "running"}})
    ours.get("/eval-runs/er_8/samples", {"samples": [FIRST]})
    unfinished = read_platform_samples(client, "amber-otter-42").unfinished
    assert unfinished is not None and "the run is running, not finished" in unfinished


def test_a_run_that_has_not_begun_has_no_row_yet(ours: Replies, client: PlatformClient) -> None:
    ours.run({**FINISHED, "eval_run": {**OWN, "status": "pending"}, "results": None})
    with pytest.raises(ConflictError, match="is pending: it has no row yet"):
        read_platform_samples(client, "amber-otter-42")


@pytest.mark.parametrize(
    "change", [{"row": 2}, {"attempt": 2}, {"row": 10**12}, {"status": "invented", "row": 5}]
)
def test_an_attempt_that_the_run_does_not_have_is_refused(
    ours: Replies, client: PlatformClient, change: dict[str, Any]
) -> None:
    ours.run()
    ours.get("/eval-runs/er_8/samples", {"samples": [{**FIRST, **change}]})
    with pytest.raises(OsmosisError, match="which the run amber-otter-42 does not have"):
        read_platform_samples(client, "amber-otter-42")


def test_a_platform_that_never_ends_its_pages_is_left(ours: Replies, client: PlatformClient) -> None:
    ours.run()
    ours.get("/eval-runs/er_8/samples", {"samples": [FIRST], "next_cursor": "0-0"})
    assert read_platform_samples(client, "amber-otter-42").samples.size == 1


@pytest.mark.parametrize("answer", [{"samples": [FIRST], "next_cursor": "{}"}, {"samples": [FIRST] * 5}])
def test_a_platform_that_tells_more_attempts_than_there_are_is_left(
    client: PlatformClient, answer: dict[str, Any]
) -> None:
    """Whatever it calls its pages: one that turns in a circle, or gives each page a new name."""
    asked: list[str | None] = []

    def page(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.params.get("cursor"))
        body = json.dumps(answer).replace("{}", f"page-{len(asked)}")
        return httpx.Response(200, text=body, headers=OURS)

    with respx.mock(assert_all_called=False) as router:
        Replies(router, OURS).run()
        router.get(f"{BASE}/api/cli/eval-runs/er_8/samples").mock(side_effect=page)
        with pytest.raises(OsmosisError, match="tells of more attempts than the run amber-otter-42 has"):
            read_platform_samples(client, "amber-otter-42")
    assert len(asked) <= 5


@pytest.mark.parametrize(
    "change", [{"source_row_index": 10**30}, {"tokens": 10**400}, {"tokens": -5}, {"row": -1}]
)
def test_numbers_that_no_attempt_has_are_no_reply(
    ours: Replies, client: PlatformClient, change: dict[str, Any]
) -> None:
    ours.run()
    ours.get("/eval-runs/er_8/samples", {"samples": [{**FIRST, **change}], "next_cursor": "0-0"})
    with pytest.raises(PlatformError, match="cannot be read"):
        read_platform_samples(client, "amber-otter-42")


def test_a_cursor_of_any_length_is_no_reply(ours: Replies, client: PlatformClient) -> None:
    ours.run()
    ours.get("/eval-runs/er_8/samples", {"samples": [FIRST], "next_cursor": "x" * 10**6})
    with pytest.raises(PlatformError, match="cannot be read"):
        read_platform_samples(client, "amber-otter-42")


def test_a_platform_whose_pages_turn_in_a_circle_is_left(ours: Replies, client: PlatformClient) -> None:
    ours.run()
    ours.get("/eval-runs/er_8/samples", {"samples": [FIRST], "next_cursor": "a"}, limit=5000, cursor="b")
    ours.get("/eval-runs/er_8/samples", {"samples": [FIRST], "next_cursor": "b"}, limit=5000, cursor="a")
    ours.get("/eval-runs/er_8/samples", {"samples": [FIRST], "next_cursor": "a"}, limit=5000)
    assert read_platform_samples(client, "amber-otter-42").samples.size == 1


@pytest.mark.parametrize("other", [[], [{**FIRST, "row": 1}]])
def test_rows_of_which_the_platform_tells_nothing_are_not_taken_for_others(
    ours: Replies, client: PlatformClient, other: list[dict[str, Any]]
) -> None:
    ours.run()
    unknown = {"row": 0, "attempt": 0, "status": "success", "reward": 1}
    ours.get("/eval-runs/er_8/samples", {"samples": [unknown, *other]})
    with pytest.raises(OsmosisError, match="does not tell what the rows of amber-otter-42 are"):
        read_platform_samples(client, "amber-otter-42")


def test_a_run_of_the_platform_is_found_by_name_beginning_newest_and_commit(
    ours: Replies, client: PlatformClient, tmp_path: Path
) -> None:
    workspace = make_workspace(tmp_path / "workspace")
    ours.run()
    ours.get("/eval-runs/amber", {"error": "there is no run 'amber'"}, status=404)
    ours.get("/eval-runs/b", {"error": "there is no run 'b'"}, status=404)
    ours.get(
        "/eval-runs", {"eval_runs": [{**OWN, "name": name} for name in ("amber-otter-42", "b-1", "b-2")]}
    )

    def found(word: str) -> tuple[str, str]:
        run = resolve_run(word, client=lambda: client, start=workspace.root)
        return run.place, run.name

    assert found("platform:amber-otter-42") == found("amber") == found("platform:@last")
    assert found("amber-otter-42") == ("platform", "amber-otter-42")
    with pytest.raises(ConflictError, match="`b` is the beginning of 2 runs: b-1, b-2"):
        found("b")
    ours.get("/eval-runs/zebra", {"error": "there is no run 'zebra'"}, status=404)
    with pytest.raises(NotFoundError, match="neither on this machine nor on the platform"):
        found("zebra")
    ours.get("/eval-runs/amber-ottr", {"error": "there is none"}, status=404)
    with pytest.raises(NotFoundError) as caught:
        found("amber-ottr")
    assert (caught.value.hint or "").startswith("did you mean amber-otter-42?; ")


def test_a_platform_that_is_away_leaves_what_this_machine_has(tmp_path: Path) -> None:
    from osmosis_ai.services.eval_runs.resolver import find_run_samples

    workspace = make_workspace(tmp_path / "workspace")
    write_journalled_run(workspace.evals_dir / "amber-fox", [[1.0]])

    def away() -> PlatformClient:
        raise PlatformError("Connection error: refused", hint="is the platform running?")

    with pytest.raises(PlatformError) as caught:
        find_run_samples("amber-fx", client=away, start=workspace.root)
    assert (caught.value.hint or "").startswith(
        "is the platform running?; or, of the runs of this machine, did you"
    )


def test_a_dataset_that_has_changed_is_not_looked_into(ours: Replies, client: PlatformClient) -> None:
    ours.run()
    ours.get("/eval-runs/er_8/samples", {"samples": [FIRST]})
    run = read_platform_samples(client, "amber-otter-42")
    with pytest.raises(ConflictError, match="has changed since the run amber-otter-42 used it"):
        require_unchanged(run, "e" * 64, where="`rows.jsonl`")
    require_unchanged(run, "d" * 64, where="`rows.jsonl`")


def test_a_dataset_of_the_workspace_is_used_when_its_bytes_are_those_of_then(tmp_path: Path) -> None:
    from osmosis_ai.datasets import file_digest
    from osmosis_ai.services.eval_runs.resolver import find_run_samples

    workspace = make_workspace(tmp_path / "workspace")
    file = workspace.data_dir / "rows.jsonl"
    file.write_text(
        "".join(
            json.dumps({"user_prompt": str(row), "ground_truth": "1", "level": row}) + "\n" for row in (1, 2)
        )
    )
    dataset = {"sha256": file_digest(file), "selected_source_rows": "0-1"}
    directory = workspace.evals_dir / "amber"
    write_journalled_run(
        directory, [[1.0], [0.0]], inputs={"dataset": dataset}, provenance={"dataset_name": "rows"}
    )

    def logged_out() -> PlatformClient:
        raise OsmosisError("nobody is logged in.", code="AUTH_REQUIRED")

    run = find_run_samples("amber", client=logged_out, start=workspace.root)
    assert run.slice_values("level") == ["1", "2"]
    file.write_text(file.read_text() + "\n")
    with pytest.raises(ConflictError, match=r"rows\.jsonl` has changed since the run amber used it"):
        run.slice_values("level")
    file.unlink()
    with pytest.raises(NotFoundError, match="the dataset rows of the run amber is not in `data/` any more"):
        run.slice_values("level")
