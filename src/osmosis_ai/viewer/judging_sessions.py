"""Results of judging sessions (`osmosis eval rubric`), on this machine or a platform: a line of a list, and a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from osmosis_ai.errors import reason_of
from osmosis_ai.evaluation.lenient_json import as_number, as_table, as_text
from osmosis_ai.evaluation.metrics import RunScore
from osmosis_ai.rubric.documents import read_result
from osmosis_ai.ui.numbers import parse_date
from osmosis_ai.viewer.source import RunDetail, RunEntry


def read_session(path: Path, name: str) -> tuple[RunEntry, Mapping[str, Any], str | None]:
    """Return a session's list entry, its document (empty if unreadable), and the read error."""
    try:
        document = read_result(path)
    except (OSError, ValueError, RecursionError) as error:
        problem = f"`{path}` is not a readable result of a judging session ({reason_of(error)})."
        return RunEntry("rubric", name, id=str(path), status="incomplete", error=problem), {}, problem
    return session_entry(document, name, str(path)), document, None


def session_entry(document: Mapping[str, Any], name: str, id: str) -> RunEntry:
    """Return the line of a session that its document tells."""
    usage, statistics = as_table(document.get("usage")), as_table(document.get("overall_statistics"))
    counts = as_table(document.get("counts"))
    scored = counts.get("scored") or statistics.get("success_count")
    made = parse_date(as_text(document.get("generated_at")) or "")
    return RunEntry(
        kind="rubric",
        name=name,
        id=id,
        status="finished" if document.get("complete", True) else "incomplete",
        started_at=made,
        ended_at=made,
        model=as_text(document.get("model")),
        dataset=as_text(document.get("data_path")) and PurePath(str(document["data_path"])).name,
        config=as_text(document.get("rubric_id")),
        headline=_calls(counts),
        reward=as_number(statistics.get("average")) if scored else None,
        cost_usd=as_number(usage.get("cost_usd")),
        duration_s=as_number(usage.get("elapsed_s")),
    )


def _calls(counts: Mapping[str, Any]) -> RunScore | None:
    """Return how many calls of judges gave a score, of those that were to be made; None where nobody says."""
    known = [as_number(counts.get(name)) for name in ("calls", "scored", "failed", "unscored", "pending")]
    if None in known:
        return None
    calls, scored, failed, unscored, pending = (int(each or 0) for each in known)
    return RunScore(planned=calls, scored=scored, failed=failed + unscored, pending=pending)


def session_detail(
    entry: RunEntry, document: Mapping[str, Any], problem: str | None, **known: str | None
) -> RunDetail:
    """Return a session's page: ``summary_numbers`` is its document; ``known`` is what its place knows, by label."""
    records, models = document.get("records"), document.get("models")
    inputs = as_table(document.get("inputs"))
    facts = {
        "Rubric": document.get("rubric_id"),
        "Rubric from": document.get("rubric_source"),
        "Judges": ", ".join(map(str, models)) if isinstance(models, list) else entry.model,
        "Data": document.get("data_path"),
        "Data, SHA-256": inputs.get("data"),
        "Records": len(records) if isinstance(records, list) else None,
        "Calls per record and judge": document.get("number"),
        "Seed": document.get("seed"),
        **known,
    }
    return RunDetail(
        entry,
        summary_numbers=document,
        config_written=as_text(document.get("rubric")) or as_text(inputs.get("rubric")),
        facts=[(label, str(value)) for label, value in facts.items() if value is not None],
        problems=[problem] if problem is not None else [],
    )
