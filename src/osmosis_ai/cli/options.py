"""Options and arguments that commands of several groups have, and how what they name is spoken of."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from osmosis_ai.cli.completion import complete_run, complete_run_anywhere
from osmosis_ai.errors import OsmosisError
from osmosis_ai.llm.replies import FlaggedFinish

if TYPE_CHECKING:
    from osmosis_ai.evaluation.spec import Budget
    from osmosis_ai.services.runs.lifecycle import RunKind

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")]


def _on_platform(run: str) -> str:
    """Accept ``platform:NAME`` where only the platform has runs."""
    return run.removeprefix("platform:")


RunArgument = Annotated[
    str, typer.Argument(help="Name or ID of a run.", autocompletion=complete_run, callback=_on_platform)
]
RunAnywhereArgument = Annotated[
    str,
    typer.Argument(
        help="Local run (name, unique prefix, directory or @last), otherwise a run of the platform (name or ID).",
        autocompletion=complete_run_anywhere,
    ),
]

LimitOption = Annotated[int, typer.Option(min=1, max=50, help="Maximum number of items.")]
AllOption = Annotated[bool, typer.Option("--all", help="List all items.")]
EvalConfigArgument = Annotated[Path, typer.Argument(help="TOML file in configs/eval/.")]
TrainingConfigArgument = Annotated[Path, typer.Argument(help="TOML file in configs/training/.")]
DataFileArgument = Annotated[Path, typer.Argument(help="Dataset file (.csv, .jsonl, .json or .parquet).")]
SliceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--slice",
        metavar="COLUMN",
        help="Also show results for each value of a dataset column or metadata key; repeatable.",
    ),
]
ServersOption = Annotated[
    int | None,
    typer.Option(
        min=1, max=8, help="Number of rollout server processes (default: number of processors minus one)."
    ),
]
NoPreviewsOption = Annotated[
    bool, typer.Option("--no-previews", help="Do not record the beginning of inputs and outputs.")
]
ReportOption = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE.html", help="Also write the result into one HTML file."),
]
NoTextOption = Annotated[bool, typer.Option("--no-text", help="Write a report with numbers only.")]
OverwriteReportOption = Annotated[bool, typer.Option("--force", help="Overwrite an existing report.")]
MarkdownOption = Annotated[
    Path | None,
    typer.Option(
        "--markdown",
        metavar="FILE",
        help="Write a pull request comment; also appended to $GITHUB_STEP_SUMMARY if set.",
    ),
]
JunitOption = Annotated[
    Path | None,
    typer.Option("--junit", metavar="FILE", help="Write a JUnit report with one test case per rule."),
]
RewardRangeOption = Annotated[
    str | None,
    typer.Option(
        metavar="LOW,HIGH", help="Lowest and highest possible reward, for bounds on unscored attempts."
    ),
]

WatchOption = Annotated[
    bool, typer.Option("--watch", help="Follow the run until it ends and show its results.")
]
CheckOption = Annotated[
    bool, typer.Option("--check", help="Check everything without submitting; exit 1 on a problem.")
]
SecretsFileOption = Annotated[
    str | None,
    typer.Option(metavar="FILE|-", help="File of NAME=value lines for this run only; - reads stdin."),
]
LinesOption = Annotated[int, typer.Option(min=1, max=200, help="Maximum number of lines (the newest).")]
CursorOption = Annotated[str | None, typer.Option(help="Cursor of older lines (`next_cursor` of a result).")]
FollowOption = Annotated[bool, typer.Option("--follow", "-f", help="Show new lines until the run ends.")]
LevelOption = Annotated[
    Literal["debug", "info", "warning", "error"] | None,
    typer.Option(help="Minimum level of the lines to show."),
]
RefetchOption = Annotated[bool, typer.Option("--overwrite", help="Download existing files again.")]
DownloadYesOption = Annotated[
    bool, typer.Option("--yes", "-y", help="Skip the confirmation of a large download.")
]
RowOption = Annotated[int | None, typer.Option(min=0, help="Only this row, counted from 0.")]
AttemptOption = Annotated[int | None, typer.Option(min=0, help="Only this attempt, counted from 0.")]
BelowOption = Annotated[bool, typer.Option("--below", help="Only attempts scored below the threshold.")]
FailedOption = Annotated[bool, typer.Option("--failed", help="Only attempts that ended with an error.")]
PassedOption = Annotated[bool, typer.Option("--passed", help="Only attempts at or above the threshold.")]
UnscoredOption = Annotated[bool, typer.Option("--unscored", help="Only failed and skipped attempts.")]
FinishOption = Annotated[
    FlaggedFinish | None,
    typer.Option(
        "--finish",
        help="Attempts with a model reply that was truncated (length), filtered (content_filter) or refused (refusal).",
    ),
]
SearchOption = Annotated[
    str, typer.Option(metavar="TEXT", help="Text to find in messages, notes of graders or judges, or errors.")
]
ShownOption = Annotated[int, typer.Option("--limit", min=1, max=1_000, help="Maximum number of attempts.")]

NOUNS: Mapping[RunKind, str] = {"eval": "evaluation", "train": "training"}

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(s|m|h|d)?\s*", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(text: str, option: str) -> float:
    """Return a number of seconds of what people type as an option's value: ``90``, ``90s``, ``10m``, ``2h``."""
    match = _DURATION.fullmatch(text)
    seconds = float(match[1]) * _SECONDS[match[2] or "s"] if match else 0.0
    if seconds <= 0:
        raise typer.BadParameter(
            f"{text!r} is not a duration; write 90, 90s, 10m or 2h.", param_hint=f"'{option}'"
        )
    return seconds


def parse_budget(max_cost: float | None, max_tokens: int | None, max_time: str | None) -> Budget:
    """Return the limits that users type; an invalid one is a usage error."""
    from osmosis_ai.evaluation.spec import Budget

    max_time_s = parse_duration(max_time, "--max-time") if max_time else None
    try:
        return Budget(max_cost, max_tokens, max_time_s)
    except OsmosisError as error:
        raise typer.BadParameter(error.message) from None


def checked_confidence(confidence: float) -> float:
    """Return a confidence that intervals can have."""
    from osmosis_ai.config.decisions import MOST_CONFIDENCE

    if not 0.5 < confidence <= MOST_CONFIDENCE:
        raise typer.BadParameter(
            f"must be between 0.5 and 1, at most {MOST_CONFIDENCE}, for instance 0.95.",
            param_hint="'--confidence'",
        )
    return confidence


def parse_reward_range(text: str) -> tuple[float, float]:
    """Return the least and the greatest reward of what people type: ``0,1``."""
    from osmosis_ai.config.decisions import LARGEST_REWARD

    try:
        least, most = (float(part) for part in text.split(","))
    except ValueError:
        least = most = math.nan
    if not -LARGEST_REWARD <= least < most <= LARGEST_REWARD:
        raise typer.BadParameter(
            f"{text!r} is not a range; write the lowest and the highest reward, such as 0,1.",
            param_hint="'--reward-range'",
        )
    return least, most
