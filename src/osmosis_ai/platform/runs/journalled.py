"""What the engine has journalled of an evaluation, as a platform's rows keep it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.evaluation.manifest import Manifest
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.platform.log_lines import storable


def engine_metrics(directory: RunDirectory) -> dict[str, Any] | None:
    """Return the numbers that the engine last wrote, as a run's row keeps them; None before there are any."""
    written = directory.read_metrics()
    if written is None:
        return None
    duration_ms = written["eval_run"]["duration_ms"]
    return {
        "duration_ms": duration_ms,
        "summary": written["summary"],
        "estimates": written["estimates"],
        "journal_bytes": written["journal_bytes"],
    }


def grader_digest_of(directory: RunDirectory) -> str | None:
    """Return the digest of what grades a run, where that is known."""
    # The engine writes the manifest before anything else, and never again.
    return Manifest.load(directory.manifest).grader_digest if directory.manifest.exists() else None


def sample_row(run_id: str, record: TerminalRecord) -> dict[str, Any]:
    """Return the columns that a journal's record fills."""
    return {
        "run_id": run_id,
        "row_index": record.row_index,
        "run_index": record.run_index,
        "source_row_index": record.source_row_index if record.source_row_index is not None else 0,
        "rollout_id": record.rollout_id,
        "status": record.status,
        "reward": record.reward,
        "tokens": record.tokens,
        "duration_ms": record.duration_ms,
        "error_type": _word(record.error_type),
        "boundary": record.boundary,
        "category": _word(record.category),
        **{name: storable(text) if text is not None else None for name, text in _texts(record)},
        "prompt_tokens": record.prompt_tokens,
        "completion_tokens": record.completion_tokens,
        "cost_usd": record.cost_usd,
        "model_calls": record.model_calls,
        "model_latency_ms": record.model_latency_ms,
        "lost_attempts": record.lost_attempts,
        "row_digest": record.row_digest,
        "finish_reasons": record.finish_reasons,
        "parts": {storable(name): number for name, number in record.parts.items()} if record.parts else None,
    }


def _word(said: str | None) -> str | None:
    """Return what kind of failure it is, as its column takes it: a rollout may have a word of its own."""
    return storable(said)[:64] if said is not None else None


def _texts(record: TerminalRecord) -> Iterator[tuple[str, str | None]]:
    return ((name, getattr(record, name)) for name in ("error", "input", "output", "notes"))
