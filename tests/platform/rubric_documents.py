"""Results of judging sessions, as `osmosis eval rubric` writes them."""

from __future__ import annotations

from typing import Any

ROUTE = "/api/cli/rubric-results"


def a_result(many: int = 2, /, **changes: Any) -> dict[str, Any]:
    """Return the document of a finished session with one judge and one call for each of ``many`` records."""
    return {
        "generated_at": "2026-11-01T08:00:00+00:00",
        "model": "openai/judge",
        "rubric": "Be good and clear.",
        "data_path": "answers.jsonl",
        "number": 1,
        "overall_statistics": {"average": 0.75},
        "rubric_id": "clarity",
        "rubric_source": "inline",
        "config_path": None,
        "models": ["openai/judge"],
        "complete": True,
        "stopped": None,
        "score_min": 0.0,
        "score_max": 1.0,
        "seed": 0,
        "inputs": {"data": "ab" * 32, "rubric": "cd" * 32},
        "counts": {"calls": many, "scored": many, "failed": 0, "unscored": 0, "pending": 0},
        "usage": {"cost_usd": 0.25, "elapsed_s": 12.5},
        "trust": {},
        "records": [
            {
                "index": number,
                "label": f"r{number}",
                "statistics": {"average": 0.75},
                "judgements": [
                    {"model": "openai/judge", "run": 1, "score": 0.75, "explanation": f"why {number}"}
                ],
            }
            for number in range(1, many + 1)
        ],
        **changes,
    }
