"""Decide files: the rules, baseline, slices and previews for the runs of an eval config.

`configs/eval/<name>.decide.toml` is next to its config and is never sent. :data:`METRICS` describes each metric once,
for the rules of the file, those of the command line and the statistics.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from osmosis_ai.config.checks import ConfigKind, document_issues, in_file_order
from osmosis_ai.config.issues import InvalidConfigError, Issue, as_written, closest
from osmosis_ai.config.sections import ConfigSection, checked, setting
from osmosis_ai.config.toml_text import parse_toml

SUFFIX = ".decide.toml"
DEFAULT_CONFIDENCE = 0.95
MOST_CONFIDENCE = 0.999999
"""The highest confidence level: beyond it, the quantile as a float is infinite."""
LARGEST_REWARD = 1e100
"""The largest reward: the squares of larger ones overflow a float, so their variance is unknown."""

Scale = Literal["share", "value", "amount"]

_NUMBERED = re.compile(r"(pass[@^])([1-9][0-9]{0,8})")


@dataclass(frozen=True)
class Metric:
    """A metric of a run."""

    name: str
    higher_is_better: bool
    scale: Scale
    compared: bool = True


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("reward", True, "value"),
        Metric("pass_rate", True, "share"),
        Metric("pass@K", True, "share"),
        Metric("pass^K", True, "share"),
        Metric("unscored", False, "share"),
        Metric("failed", False, "share"),
        Metric("infrastructure", False, "share", compared=False),
        Metric("cost_per_row", False, "amount"),
        Metric("tokens", False, "amount"),
        Metric("latency", False, "amount"),
    )
}
"""``cost_per_row`` is in USD, over all attempts of a row; ``tokens`` and ``latency`` (seconds) are per attempt."""


def metric_named(name: str) -> Metric | None:
    """Return a metric by name, including `pass@4` and `pass^4`; None if it does not exist."""
    numbered = _NUMBERED.fullmatch(name)
    return METRICS.get(f"{numbered[1]}K") if numbered else METRICS.get(name) if "K" not in name else None


def needs_scores(name: str) -> bool:
    """Return whether an attempt without a score could move a metric in either direction."""
    metric = metric_named(name)
    return metric is not None and metric.name in ("reward", "pass_rate", "pass@K", "pass^K")


def attempts_asked(name: str) -> int | None:
    """Return the K of a metric that has one."""
    numbered = _NUMBERED.fullmatch(name)
    return int(numbered[2]) if numbered else None


def suggested_metric(name: str) -> str | None:
    """Return the metric that ``name`` is probably a misspelling of."""
    return closest(name, (*(known for known in METRICS if "K" not in known), "pass@1", "pass^1"))


def limit_problem(metric: Metric, limit: float) -> str | None:
    """Return why a limit is invalid for a metric, or None."""
    if not math.isfinite(limit):
        return "must be a finite number"
    if metric.scale == "share" and not 0 <= limit <= 1:
        return "is a share, from 0 to 1" + (
            f": write {limit:g}% as {limit / 100:g}" if 1 < limit <= 100 else ""
        )
    if metric.scale == "amount" and limit < 0:
        return f"is never below 0, got {limit:g}"
    return None


def margin_problem(
    metric: Metric, margin: float, reward_range: tuple[float, float] | None = None
) -> str | None:
    """Return why a margin is invalid for a metric, or None; a margin of 0 requires an improvement."""
    if not metric.compared:
        return f"{metric.name} is not compared with a baseline; give it a limit with {'min' if metric.higher_is_better else 'max'}"
    if not math.isfinite(margin):
        return "must be a finite number"
    if margin < 0:
        return f"a margin is how much worse is still accepted, 0 or more, got {margin:g}"
    if metric.scale == "share" and margin >= 1:
        return f"a margin of {margin:g} accepts every run, because a share is from 0 to 1: write 3 points as 0.03"
    if metric.scale == "amount" and margin >= 10:
        return f"a margin of {margin:g} accepts {1 + margin:g} times as much: write 10% as 0.1"
    low, high = reward_range or (-math.inf, math.inf)
    if metric.scale == "value" and margin >= high - low:
        return f"a margin of {margin:g} accepts every run, because rewards are from {low:g} to {high:g}"
    return None


def _slices_problem(names: tuple[str, ...]) -> str | None:
    if not all(name.strip() for name in names):
        return "must name columns of the dataset"
    repeated = [name for name, count in Counter(names).items() if count > 1]
    return f"names {as_written(repeated[0])} twice" if repeated else None


def _run_name_problem(value: str) -> str | None:
    if not value.strip() or not value.isprintable():
        return "must name a run: its name, its directory, or git:REF for the newest of a commit"
    return None


def _reward_range(value: Any) -> Any:
    numbers = isinstance(value, (list, tuple)) and all(type(end) in (int, float) for end in value)
    if numbers and len(value) == 2 and -LARGEST_REWARD <= value[0] < value[1] <= LARGEST_REWARD:
        return float(value[0]), float(value[1])
    raise ValueError("must be the lowest and the highest reward, such as [0, 1]")


class DecideSettings(ConfigSection):
    """`[decide]`: what a run is compared with, and how."""

    against: Annotated[str, checked(_run_name_problem)] | None = setting(
        None,
        "baseline: name or directory of a run, or `git:REF` for the newest finished run of a commit (runs with uncommitted "
        "changes do not count)",
    )
    confidence: Annotated[float, Field(gt=0.5, le=MOST_CONFIDENCE)] = setting(
        DEFAULT_CONFIDENCE, "confidence level of every bound and interval"
    )
    slices: Annotated[tuple[str, ...], Field(strict=False), checked(_slices_problem)] = setting(
        (), "dataset columns whose values are checked separately"
    )
    reward_range: Annotated[tuple[float, float], BeforeValidator(_reward_range)] | None = setting(
        None, "lowest and highest possible reward; required by rules on rewards if an attempt has no score"
    )
    previews: bool = setting(
        True, "whether `eval run` stores the start of each input and output for tables and search"
    )


_RULES = ("min", "max", "margin")
DECISIONS = ConfigKind(
    "decide", "A decide", "configs/eval", ("decide",), lambda: {"decide": DecideSettings}, free=_RULES
)


class Decisions(DecideSettings):
    """The content of a decide file; all defaults for a config without one."""

    minima: Mapping[str, float] = {}
    maxima: Mapping[str, float] = {}
    margins: Mapping[str, float] = {}
    shown: str | None = None


def is_decide_file(path: Path) -> bool:
    """Return whether a file of `configs/eval/` is a decide file rather than a config."""
    return path.name.endswith(SUFFIX)


def decide_file(config: Path) -> Path:
    """Return the path of a config's decide file, whether or not it exists."""
    return config.with_name(config.name.removesuffix(".toml") + SUFFIX)


def decided_config(decisions: Path) -> Path:
    """Return the path of the config that a decide file belongs to."""
    return decisions.with_name(decisions.name.removesuffix(SUFFIX) + ".toml")


def parse_decisions(text: str, shown: str) -> Decisions:
    """Parse a decide file."""
    document = parse_toml(text, shown)
    issues = document_issues(document, DECISIONS)
    settings = document.get("decide", {})
    known = None
    if isinstance(settings, dict) and all(issue.key != "decide.reward_range" for issue in issues):
        known = settings.get("reward_range")
    issues += [issue for section in _RULES for issue in _rule_issues(document, section, known)]
    if issues:
        raise InvalidConfigError(DECISIONS.name, shown, in_file_order(issues, text))
    minima, maxima, margins = (document.get(section, {}) for section in _RULES)
    return Decisions(**settings, minima=minima, maxima=maxima, margins=margins, shown=shown)


def _rule_issues(
    document: Mapping[str, Any], section: str, reward_range: tuple[float, float] | None
) -> Iterator[Issue]:
    rules = document.get(section, {})
    if not isinstance(rules, dict):
        yield Issue(section, f"must be a table of metrics, got {as_written(rules)}")
        return
    for name, number in rules.items():
        key, metric = f"{section}.{name}", metric_named(name)
        if metric is None:
            yield Issue(key, "Unrecognized metric", suggestion=suggested_metric(name))
        elif isinstance(number, bool) or not isinstance(number, (int, float)):
            yield Issue(key, f"must be a number, got {as_written(number)}")
        else:
            try:
                limit = float(number)
            except OverflowError:  # an integer that is too large for a float
                limit = math.inf
            if section == "margin":
                problem = margin_problem(metric, limit, reward_range)
            else:
                problem = limit_problem(metric, limit)
            if problem:
                yield Issue(key, problem)
