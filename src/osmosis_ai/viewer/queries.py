"""Query strings: the state of a list is in its address."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, time
from typing import TypeVar, get_args
from urllib.parse import parse_qs, urlencode

from osmosis_ai.controller.outcomes import ErrorSource
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.results import UNKNOWN
from osmosis_ai.llm.replies import FLAGGED
from osmosis_ai.ui.numbers import parse_date
from osmosis_ai.viewer.local_runs import RunKind
from osmosis_ai.viewer.source import Outcome, RunQuery, RunSort, SampleQuery, SampleSort

Words = Mapping[str, Sequence[str]]
"""Query parameters with their values, without empty ones."""

MOST_TEXT = 500
STATUSES = ("pending", "running", "finished", "failed", "stopped", "incomplete")
_MOST_WORDS = 100
_RUN_TEXTS = ("status", "model", "dataset", "rollout", "person", "commit")
_RANGES = (
    ("reward", "reward", 1.0),
    ("tokens", "tokens", 1.0),
    ("duration_ms", "duration", 1000.0),
    ("cost_usd", "cost", 1.0),
)
"""Field of the query, parameter, and field units in one unit of the parameter."""

RUN_WORDS = (*_RUN_TEXTS, "since", "until", "q", "archived", "sort", "dir")
SAMPLE_WORDS = (
    *("outcome", "row", "category", "boundary", "finish", "q", "sort", "dir"),
    *(f"{end}_{name}" for _, name, _ in _RANGES for end in ("min", "max")),
)

ChoiceT = TypeVar("ChoiceT", bound=str)


def words_of(query_string: str) -> Words:
    try:
        words = parse_qs(query_string, max_num_fields=_MOST_WORDS)
    except ValueError:
        raise OsmosisError(f"an address has at most {_MOST_WORDS} filters.") from None
    for word, values in words.items():
        if any(len(value) > MOST_TEXT for value in values):
            raise OsmosisError(f"the filter '{word[:40]}' has more than {MOST_TEXT} characters.")
    return words


def require_known(given: Iterable[str], known: Collection[str]) -> None:
    strange = next((name for name in given if name not in known), None)
    if strange is not None:
        hint = f"known parameters: {', '.join(known)}" if known else "this page has no parameters"
        raise OsmosisError(f"the query parameter '{strange[:40]}' is unknown.", hint=hint)


def word(words: Words, name: str) -> str | None:
    values = list(dict.fromkeys(value.strip() for value in words.get(name, ()) if value.strip()))
    if len(values) > 1:
        raise OsmosisError(f"'{name}' has two values: {values[0]!r} and {values[1]!r}.")
    return values[0] if values else None


def choice_of(words: Words, name: str, choices: Sequence[ChoiceT]) -> ChoiceT | None:
    return next(iter(choices_of({name: [word(words, name) or ""]}, name, choices)), None)


def choices_of(words: Words, name: str, choices: Sequence[ChoiceT]) -> list[ChoiceT]:
    given = [value.strip() for value in words.get(name, ())]
    if strange := [value for value in given if value and value not in choices]:
        raise OsmosisError(f"'{name}' must be one of {', '.join(choices)}, not {strange[0]!r}.")
    return [choice for choice in choices if choice in given]


def run_query(words: Words, *, kind: RunKind | None = None) -> RunQuery:
    since, until = _moment(words, "since"), _moment(words, "until", end_of_day=True)
    if since is not None and until is not None and since > until:
        raise OsmosisError("'since' is after 'until'.")
    choice_of(words, "status", STATUSES)
    return RunQuery(
        kind=kind,
        **{name: word(words, name) for name in _RUN_TEXTS},
        since=since,
        until=until,
        text=word(words, "q") or "",
        archived=choice_of(words, "archived", ("yes",)) is not None,
        sort=choice_of(words, "sort", get_args(RunSort)) or "started",
        descending=_descending(words, default=True),
    )


def sample_query(words: Words) -> SampleQuery:
    return SampleQuery(
        outcome=choice_of(words, "outcome", get_args(Outcome)),
        row=whole_number(words, "row"),
        category=word(words, "category"),
        boundary=choice_of(words, "boundary", (*get_args(ErrorSource), UNKNOWN)),
        finish=choice_of(words, "finish", FLAGGED),
        **{field: _range(words, name, scale) for field, name, scale in _RANGES},
        text=word(words, "q") or "",
        sort=choice_of(words, "sort", get_args(SampleSort)) or "row",
        descending=_descending(words, default=False),
    )


def searches_conversations(words: Words, query: SampleQuery) -> bool:
    return choice_of(words, "in", ("conversations",)) is not None and bool(query.text)


def kept_words(words: Words, names: Collection[str]) -> dict[str, str]:
    return {name: value for name in names if (value := word(words, name)) is not None}


def query_string(words: Mapping[str, object], **more: object) -> str:
    """Return a query string with its ``?``, or ""; lists repeat the parameter, None and empty values are omitted."""
    given = {name: value for name, value in {**words, **more}.items() if value not in (None, "", [], ())}
    return f"?{urlencode(given, doseq=True)}" if given else ""


def is_filtered(kept: Mapping[str, str], *besides: str) -> bool:
    """Whether a filter is set, apart from the order and ``besides``."""
    return bool(kept.keys() - {"sort", "dir", "archived", *besides})


def _descending(words: Words, *, default: bool) -> bool:
    direction = choice_of(words, "dir", ("asc", "desc"))
    return default if direction is None else direction == "desc"


def whole_number(words: Words, name: str) -> int | None:
    value = word(words, name)
    if value is not None and re.fullmatch("[0-9]{1,18}", value) is None:
        raise OsmosisError(f"'{name}' must be a whole number from 0, not {value[:40]!r}.")
    return int(value) if value is not None else None


def _range(words: Words, name: str, scale: float) -> tuple[float | None, float | None]:
    low, high = (number_of(words, f"{end}_{name}", scale) for end in ("min", "max"))
    if low is not None and high is not None and low > high:
        raise OsmosisError(f"'min_{name}' is above 'max_{name}'.")
    return low, high


def number_of(words: Words, name: str, scale: float = 1.0) -> float | None:
    value = word(words, name)
    if value is None:
        return None
    try:
        number = float(value) * scale
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise OsmosisError(f"'{name}' must be a number, not {value!r}.")
    return number


def _moment(words: Words, name: str, *, end_of_day: bool = False) -> datetime | None:
    """Return a moment, in UTC by default; a date stands for its start or end."""
    value = word(words, name)
    if value is None:
        return None
    moment = parse_date(value)
    if moment is None:
        raise OsmosisError(f"'{name}' must be a date or time such as 2026-01-31, not {value!r}.")
    is_last = end_of_day and len(value) == len("2026-01-01")
    return datetime.combine(moment, time.max, moment.tzinfo) if is_last else moment
