"""Evaluation results as plain text, with the documented columns first and ours beside them.

Text is text: nothing here is markup, so that no score or name can vanish or colour a terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from osmosis_ai.evaluation.agent_loop.score_summary import EvalEvalSummary, pass_at_k

if TYPE_CHECKING:
    from osmosis_ai.evaluation.agent_loop.eval_runner import EvalResult
    from osmosis_ai.evaluation.statistics import Estimate

__all__ = [
    "format_duration",
    "format_eval_report",
    "format_tokens",
    "pass_at_k",
    "report_lines",
    "summary_table",
]

_MISSING = "-"


def format_eval_report(result: EvalResult, console: Any = None) -> str:
    """Return the report of an evaluation, and print it where a console is given."""
    lines = report_lines(result)
    if console is not None:
        for line in lines:
            _print_plain(console, line)
    return "\n".join(lines)


def report_lines(result: EvalResult) -> list[str]:
    """Return the lines of a report."""
    lines = [
        "Evaluation Results:",
        f"  Rows: {result.total_rows}",
        f"  Runs per row: {result.n_runs}",
        f"  Total runs: {result.total_runs}",
        f"  Duration: {format_duration(result.total_duration_ms)}",
        f"  Total tokens: {format_tokens(result.total_tokens)}",
        "",
    ]
    reward = {} if result.reward_summary is None else {"Agent reward": result.reward_summary}
    table = _table(*summary_table({**result.eval_summaries, **reward}))
    return lines + [f"  {line}".rstrip() for line in table]


def summary_table(summaries: dict[str, EvalEvalSummary]) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows: a row per eval function."""
    ks = sorted({k for summary in summaries.values() for k in summary.pass_at_k})
    headings = ["Eval Function", "Mean", "Min", "Max", "Std", *(f"pass@{k}" for k in ks), "Scored", "95 % CI"]
    rows = [
        [
            name,
            *(f"{value:.3f}" for value in (summary.mean, summary.min, summary.max, summary.std)),
            *(f"{summary.pass_at_k[k] * 100:.1f}%" if k in summary.pass_at_k else _MISSING for k in ks),
            f"{summary.scored}/{summary.scored + summary.unscored}",
            _interval(summary.estimate),
        ]
        for name, summary in summaries.items()
    ]
    return headings, rows


def format_duration(duration_ms: float) -> str:
    """Return ``250ms``, ``12.3s`` or ``2m5.0s`` for a number of milliseconds."""
    if duration_ms < 1000:
        return f"{duration_ms:.0f}ms"
    seconds = duration_ms / 1000
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(seconds, 60)
    return f"{int(minutes)}m{rest:.1f}s"


def format_tokens(tokens: int) -> str:
    """Return a number of tokens with thousands separated."""
    return f"{tokens:,}"


def _interval(estimate: Estimate | None) -> str:
    if estimate is None or estimate.low is None or estimate.high is None:
        return _MISSING
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    return [
        " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in (headings, *rows)
    ]


def _print_plain(console: Any, line: str) -> None:
    # A rich console would read `[fn=0.5]` as markup; others need not know the word.
    if type(console).__module__.partition(".")[0] == "rich":
        console.print(line, markup=False, highlight=False)
    else:
        console.print(line)
