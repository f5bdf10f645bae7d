"""Result files of judging sessions: written atomically record by record, read leniently, and compared.

One writer and one reader serve `osmosis eval rubric` and `osmosis eval-rubric`. The reader treats a value that is not a
number as a missing score and skips unreadable data.

A comparison pairs records by all judged content if at least half of the smaller session matches that way, and otherwise
by question. Duplicates count as one record. Scores of another judge or rubric are compared and labelled; scores on
another scale are not.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import orjson

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.lenient_json import as_number, as_objects, as_table, as_text, loads
from osmosis_ai.files import replacing
from osmosis_ai.rubric.records import RubricRecord, require_file
from osmosis_ai.ui import numbers

if TYPE_CHECKING:
    from osmosis_ai.controller.record import TerminalRecord
    from osmosis_ai.decisions.differences import Difference, Pairs

CallStatus = Literal["scored", "unscored", "failed"]
PREVIEW_CHARACTERS = 140
_LARGEST_BYTES = 64 << 20


def json_bytes(value: Any, *, indent: bool = False) -> bytes:
    """Encode ``value`` as UTF-8 JSON, whatever texts and numbers it holds."""
    try:
        return orjson.dumps(value, option=orjson.OPT_INDENT_2 if indent else None)
    except TypeError:  # integers beyond 64 bits, lone surrogates
        text = json.dumps(value, ensure_ascii=False, default=str, indent=2 if indent else None)
        return text.encode("utf-8", "replace")


def text_digest(text: str | None) -> str | None:
    """Return the digest of a text, or None."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest() if text is not None else None


def statistics(scores: Sequence[float]) -> dict[str, float]:
    """Return mean, population variance, standard deviation and extremes of the scores; 0.0 without any."""
    if not scores:
        return dict.fromkeys(("average", "variance", "stdev", "min", "max"), 0.0)
    # Relative to the first score, so that the mean of equal scores is that score.
    average = scores[0] + math.fsum(score - scores[0] for score in scores) / len(scores)
    variance = math.fsum((score - average) ** 2 for score in scores) / len(scores)
    return {
        "average": average,
        "variance": variance,
        "stdev": math.sqrt(variance),
        "min": min(scores),
        "max": max(scores),
    }


def describe_outside_scale(outside: int, scored: int) -> str:
    """Describe how many scores were clamped; "" if there are none."""
    if not outside:
        return ""
    return f"{outside:,} of {scored:,} {'score' if scored == 1 else 'scores'} outside the scale, clamped"


@dataclass(frozen=True)
class JudgedRecord:
    """A record and its calls, by judge and run; None where a call is pending."""

    record: RubricRecord
    calls: list[TerminalRecord | None]

    @property
    def scores(self) -> list[float]:
        return [call.reward for call in self.calls if call is not None and call.reward is not None]

    def with_status(self, status: CallStatus) -> list[TerminalRecord]:
        return [call for call in self.calls if call is not None and call_status(call) == status]


def write_document(
    path: Path,
    head: Mapping[str, Any],
    records: Iterator[dict[str, Any]],
    tail: Mapping[str, Any] | None = None,
) -> None:
    """Write ``{…head, "records": […], …tail}`` with a two-space indent, atomically and in constant memory."""
    with replacing(path) as handle:
        opening = json_bytes(dict(head), indent=True)
        handle.write(opening.removesuffix(b"\n}") + b',\n  "records": [')
        separator = b"\n    "
        for record in records:
            handle.write(separator + json_bytes(record, indent=True).replace(b"\n", b"\n    "))
            separator = b",\n    "
        handle.write(b"]" if separator == b"\n    " else b"\n  ]")
        for key, value in (tail or {}).items():
            encoded = json_bytes(value, indent=True).replace(b"\n", b"\n  ")
            handle.write(b",\n  " + json_bytes(key) + b": " + encoded)
        handle.write(b"\n}\n")


def judged_record(judged: JudgedRecord, models: Sequence[str]) -> dict[str, Any]:
    """Return a record in the format of `osmosis eval rubric`."""
    record, scored = judged.record, judged.with_status("scored")
    runs = len(judged.calls) // len(models)
    calls = [(models[place // runs], place % runs + 1, call) for place, call in enumerate(judged.calls)]
    entry: dict[str, Any] = {
        "index": record.index,
        "label": record.label,
        "scores": judged.scores,
        "explanations": [facts_of(call).get("explanation") for call in scored],
        "errors": [call.error for call in judged.with_status("failed")],
        "statistics": statistics(judged.scores),
        "unscored": [
            {"reason": call.error_type, "detail": call.error} for call in judged.with_status("unscored")
        ],
        "judgements": [_judgement(*each) for each in calls],
    }
    if len(models) > 1:
        entry["consensus"] = mean_of_judges(
            (model, call.reward if call is not None else None) for model, _, call in calls
        )
    if record.human_score is not None:
        entry["human_score"] = record.human_score
    return entry | _identity(record)


def classic_record(judged: JudgedRecord, *, pending: str | None) -> dict[str, Any]:
    """Return a record in the format of `osmosis eval-rubric`; ``pending`` is why calls are."""
    record, scores = judged.record, judged.scores
    identifier = record.source.get("id")
    total = len(judged.calls)
    return {
        "id": str(identifier) if identifier not in (None, "") else record.label,
        "record_index": record.index,
        "conversation_id": record.label,
        "input_record": record.source,
        "statistics": {
            **statistics(scores),
            "total_runs": total,
            "success_count": len(scores),
            "failure_count": total - len(scores),
        },
        "runs": [_run(record, run, call, pending) for run, call in enumerate(judged.calls, start=1)],
        **_identity(record),
    }


def _identity(record: RubricRecord) -> dict[str, Any]:
    """Return the fields by which later sessions find the record, and its own scale if it has one."""
    names = ("digest", "question_digest", "score_min", "score_max")
    return {name: value for name in names if (value := getattr(record, name)) is not None}


def mean_of_judges(scores: Iterable[tuple[str, float | None]]) -> float | None:
    """Return the mean of the judges' means, which weighs judges equally; None without scores."""
    by_judge: dict[str, list[float]] = {}
    for model, score in scores:
        if score is not None:
            by_judge.setdefault(model, []).append(score)
    means = [sum(each) / len(each) for each in by_judge.values()]
    return sum(means) / len(means) if means else None


def facts_of(call: TerminalRecord) -> Mapping[str, Any]:
    """Return what only calls of judges have: explanation, stated score, retries, times and perhaps the raw reply."""
    return call.judgements[0] if call.judgements else {}


def _judgement(model: str, run: int, call: TerminalRecord | None) -> dict[str, Any]:
    if call is None:
        return {"model": model, "run": run, "status": "pending", "score": None}
    facts = facts_of(call)
    known = {
        "model": model,
        "run": run,
        "status": call_status(call),
        "score": call.reward,
        "stated_score": facts.get("stated_score"),
        "explanation": facts.get("explanation"),
        "reason": call.error_type,
        "error": call.error,
        "input_tokens": call.prompt_tokens,
        "output_tokens": call.completion_tokens,
        "cost_usd": call.cost_usd,
        "duration_s": call.duration_ms / 1000,
        "retries": facts.get("retries", 0),
    }
    return {key: value for key, value in known.items() if value is not None or key == "score"}


def call_status(call: TerminalRecord) -> CallStatus:
    """Return what became of a call."""
    if call.reward is not None:
        return "scored"
    return "unscored" if call.boundary == "grader" else "failed"


def _run(record: RubricRecord, run: int, call: TerminalRecord | None, pending: str | None) -> dict[str, Any]:
    text = " ".join(record.solution_str.split())
    facts = facts_of(call) if call is not None else {}
    score = call.reward if call is not None else None
    error = call.error if call is not None else f"not judged yet: {pending}" if pending else "not judged yet"
    return {
        "run_index": run,
        "status": "error" if score is None else "success",
        "started_at": facts.get("started_at"),
        "completed_at": facts.get("completed_at"),
        "duration_seconds": call.duration_ms / 1000 if call is not None else None,
        "score": score,
        "explanation": facts.get("explanation"),
        "preview": text if len(text) <= PREVIEW_CHARACTERS else text[: PREVIEW_CHARACTERS - 3] + "...",
        "error": error,
        "raw": facts.get("raw"),
        "outcome": call_status(call) if call is not None else "pending",
    }


class ReadCall(NamedTuple):
    """Result of one call about a record."""

    model: str
    run: int
    score: float | None
    explanation: str | None
    error: str | None

    @property
    def who(self) -> str:
        return f"{self.model}, run {self.run}" if self.model else f"Run {self.run}"


class ReadRecord(NamedTuple):
    """A record and its calls. ``mean`` is None if no call has a score; ``people`` is the human score."""

    number: int
    label: str
    mean: float | None
    people: float | None
    texts: Sequence[tuple[str, str]]
    calls: Sequence[ReadCall]

    @classmethod
    def of(cls, record: Mapping[str, Any], place: int) -> ReadRecord:
        """Read a record of either format."""
        calls = list(read_calls(record))
        number = record.get("index", record.get("record_index"))
        texts = as_table(record.get("texts")).items()
        return cls(
            number=number if type(number) is int and number > 0 else place,
            label=str(record.get("label", record.get("conversation_id")) or ""),
            mean=mean_of_judges((call.model, call.score) for call in calls),
            people=as_number(record.get("human_score")),
            texts=[(title, part) for title, part in texts if isinstance(part, str) and part],
            calls=calls,
        )


def read_records(document: Mapping[str, Any]) -> list[ReadRecord]:
    """Return the records of a result file in their order."""
    found = as_objects(document.get("records"))
    return [ReadRecord.of(each, place) for place, each in enumerate(found, start=1)]


def describe_result(document: Mapping[str, Any], records: Sequence[ReadRecord]) -> str:
    """Return the mean score of a result file, its scale and the number of scored records."""
    average = as_number(as_table(document.get("overall_statistics")).get("average"))
    low, high = (as_number(document.get(end)) for end in ("score_min", "score_max"))
    scale = "" if low is None or high is None else f" on a scale from {low:g} to {high:g}"
    measured = as_table(as_table(document.get("trust")).get("counts"))
    scored, total = (as_number(measured.get(name)) for name in ("scored_records", "records"))
    if scored is None or total is None:
        scored, total = sum(record.mean is not None for record in records), len(records)
    many = f"{total:,.0f} {'record' if total == 1 else 'records'}"
    if average is None or not scored:
        return f"{many}, none with a score."
    over = many if scored == total else f"the {scored:,.0f} of {many} that have a score"
    counts = as_table(document.get("counts"))
    outside, scores = (int(as_number(counts.get(name)) or 0) for name in ("outside_scale", "scored"))
    clamped = describe_outside_scale(outside, scores)
    return f"Mean score {numbers.number(average)}{scale}, over {over}{f' ({clamped})' if clamped else ''}."


def read_result(path: Path) -> Mapping[str, Any]:
    """Return the document of a result file; ValueError if it is none."""
    size = path.stat().st_size
    if size > _LARGEST_BYTES:
        raise ValueError(f"it has {size:,} bytes; {_LARGEST_BYTES:,} are read")
    document = loads(path.read_bytes().decode("utf-8-sig", "replace"))
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")
    return document


def read_calls(record: Mapping[str, Any]) -> Iterator[ReadCall]:
    """Yield the calls of a record of either format."""
    for call in as_objects(record.get("judgements", record.get("runs"))):
        run = call.get("run", call.get("run_index"))
        yield ReadCall(
            model=str(call.get("model") or ""),
            run=run if isinstance(run, int) and run > 0 else 1,
            score=as_number(call.get("score")),
            explanation=as_text(call.get("explanation")),
            error=as_text(call.get("error")) or as_text(call.get("reason")),
        )


Pairing = Literal["record", "question"]

_TOP_LEVEL = ("average", "variance", "stdev")
_LABELS = (
    ("another judge", frozenset({"models", "reasoning_effort", "system_prompt"})),
    ("another rubric", frozenset({"rubric", "original_input", "ground_truth"})),
    ("another order of texts (--swap)", frozenset({"swap"})),
)
_EXPECTED_TO_DIFFER = frozenset({"data", "rubric_id", "reading"})
_EDITED = {"data": "the file's content changed", "rubric": "its text changed"}
# Inputs whose values are shown if they changed, with their names in messages.
_SHOWN = {
    "models": "models",
    "api_base": "addresses of the models",
    "reasoning_effort": "reasoning effort",
    "runs": "calls per record (`-n`)",
    "seed": "seed",
    "swap": "swap",
    "bounds": "score bounds",
    "rubric_id": "rubric id",
}


class ScoredRecord(NamedTuple):
    """A scored record and the digests that identify it."""

    score: float
    digest: str | None = None
    question: str | None = None

    def key(self, by: Pairing) -> str | None:
        """Return the pairing key, or None if the file does not contain it."""
        return self.digest if by == "record" else self.question or self.digest


class Baseline(NamedTuple):
    """An earlier session."""

    source_path: Path
    statistics: Mapping[str, float]
    records: Sequence[ScoredRecord]
    inputs: Mapping[str, Any]

    def changed_inputs(self, now: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the inputs that differ from the baseline's, as far as its file contains them."""
        known = (key for key in now if key in self.inputs and key not in _EXPECTED_TO_DIFFER)
        return tuple(key for key in known if self.inputs[key] != now[key])


@dataclass(frozen=True)
class SessionComparison:
    """Change of the scores since an earlier session. Differences are current minus baseline."""

    baseline: Baseline
    delta_statistics: Mapping[str, float]
    difference: Difference | None
    paired_by: Pairing | None
    common: int
    current_records: int
    changed: tuple[str, ...]
    changes: tuple[str, ...]
    reason: str | None

    @property
    def verdict(self) -> str:
        """The comparison in one sentence."""
        found, label = self.difference, describe_change(self.changed)
        if found is None:
            return f"The scores are not compared: {self.reason}."
        by = f" ({label})" if label else ""
        if found.low is None or found.high is None:
            return f"The mean score differs by {found.value:+.4f}{by}; no interval: {found.reason}."
        to = "–" if found.low >= 0 else " to "
        over = f"95% CI {found.low:.4f}{to}{found.high:.4f}, {self.common:,} records"
        if not found.excludes_none:
            return f"No significant difference{by}: {found.value:+.4f} ({over})."
        way = "higher" if found.value > 0 else "lower"
        return f"The mean score is {way}{by}: {found.value:+.4f} ({over})."

    @property
    def warnings(self) -> list[str]:
        found = [self.difference.warning] if self.difference is not None and self.difference.warning else []
        smaller = min(len(self.baseline.records), self.current_records)
        if self.paired_by and 2 * self.common < smaller:
            found.append(
                f"only {self.common:,} of {smaller:,} records are in both: they may not represent the others"
            )
        return found

    def data(self) -> dict[str, Any]:
        """Return the comparison for result files. The first three keys are those of the public 0.2 SDK."""
        from osmosis_ai.decisions.differences import number_data

        return {
            "source_path": str(self.baseline.source_path),
            "baseline_statistics": dict(self.baseline.statistics),
            "delta_statistics": dict(self.delta_statistics),
            "verdict": self.verdict,
            "difference": number_data(self.difference),
            "paired_by": self.paired_by,
            "records": {
                "common": self.common,
                "baseline": len(self.baseline.records),
                "current": self.current_records,
            },
            "changed_inputs": list(self.changed),
            "reason": self.reason,
            "warnings": self.warnings,
        }


def describe_change(changed: Iterable[str]) -> str:
    """Describe the changed inputs, such as "another judge and another rubric"; "" if unchanged."""
    found = set(changed)
    return " and ".join(label for label, keys in _LABELS if found & keys)


def input_differences(
    changed: Iterable[str], before: Mapping[str, Any], now: Mapping[str, Any]
) -> Iterator[str]:
    """Yield a line for each changed input, with both values if they are short and not texts."""
    for key in changed:
        if key in _SHOWN:
            yield f"{_SHOWN[key]}: was {_shown(before.get(key))}, now {_shown(now.get(key))}"
        else:
            yield f"{key.replace('_', ' ')}: {_EDITED.get(key, 'changed')}"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ", ".join(map(_shown, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)


def compare_sessions(
    baseline: Baseline,
    current: Sequence[ScoredRecord],
    inputs: Mapping[str, Any],
    statistics: Mapping[str, float],
    *,
    bounds: tuple[float, float],
    seed: int,
) -> SessionComparison:
    """Compare a session, whose records, inputs and statistics these are, with an earlier one."""
    from osmosis_ai.decisions.differences import mean_difference

    changed = baseline.changed_inputs(inputs)
    low, high = bounds
    earlier = [record for record in baseline.records if low <= record.score <= high or "bounds" in changed]
    baseline = baseline._replace(records=earlier)
    difference, paired_by, common, reason = None, None, 0, None
    if "bounds" in changed:
        reason = "they are on another scale"
    elif not earlier:
        reason = "the baseline's file contains no records with scores"
    elif not current:
        reason = "no record has a score"
    elif (paired_by := _pairing(earlier, current)) is None:
        known = any(record.digest or record.question for record in earlier)
        reason = (
            "no record is in both sessions" if known else "the baseline's file does not identify its records"
        )
    else:
        pairs = _pairs(paired_by, earlier, current, bounds)
        difference, common = mean_difference(pairs, seed=seed), pairs.rows
    before = baseline.statistics.items()
    return SessionComparison(
        baseline=baseline,
        delta_statistics={key: statistics[key] - old for key, old in before if key in statistics},
        difference=difference,
        paired_by=paired_by,
        common=common,
        current_records=len(current),
        changed=changed,
        changes=tuple(input_differences(changed, baseline.inputs, inputs)),
        reason=reason,
    )


def _pairing(earlier: Sequence[ScoredRecord], current: Sequence[ScoredRecord]) -> Pairing | None:
    before, now = ({record.digest for record in records} - {None} for records in (earlier, current))
    if before & now and 2 * len(before & now) >= min(len(before), len(now)):
        return "record"
    before, now = ({record.key("question") for record in records} - {None} for records in (earlier, current))
    return "question" if before & now else None


def _pairs(
    by: Pairing, earlier: Sequence[ScoredRecord], current: Sequence[ScoredRecord], scale: tuple[float, float]
) -> Pairs:
    from osmosis_ai.decisions.differences import Pairs

    rows: dict[str, int] = {}

    def columns(records: Sequence[ScoredRecord]) -> tuple[list[float], list[int]]:
        known = [(record.score, key) for record in records if (key := record.key(by)) is not None]
        return [score for score, _ in known], [rows.setdefault(key, len(rows)) for _, key in known]

    pairs = Pairs.of(*columns(earlier), *columns(current), scale=scale)
    assert pairs is not None  # the pairing found common records
    return pairs


def read_baseline(path: Path) -> Baseline:
    """Read an earlier result; OsmosisError if it is none."""
    require_file(path, "Baseline path")
    try:
        document = loads(path.read_bytes().decode("utf-8-sig"))
        found = document.get("overall_statistics")
        if not isinstance(found, dict):
            found = {key: document[key] for key in document if all(name in document for name in _TOP_LEVEL)}
        if not found:
            raise ValueError("it has no statistics")
    except (ValueError, RecursionError, AttributeError):
        raise OsmosisError(
            f"'{path}' is not a result file of 'osmosis eval rubric'.",
            hint="write one with: osmosis eval rubric --output FILE",
        ) from None
    numbers = {key: value for key, raw in found.items() if (value := _number(raw)) is not None}
    if not numbers:
        raise OsmosisError(f"'{path}' has no numeric statistics.")
    inputs = _inputs(document)
    return Baseline(path, numbers, list(_scored_records(document, inputs)), inputs)


def _inputs(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs that determine the scores, as far as the file contains them."""
    known: dict[str, Any] = {"models": document.get("models")}
    if isinstance(document.get("rubric"), str):
        known["rubric"] = text_digest(document["rubric"])
    if (bounds := _bounds(document.get("score_min"), document.get("score_max"))) is not None:
        known["bounds"] = list(bounds)
    known |= as_table(document.get("inputs"))
    return {key: value for key, value in known.items() if value is not None and _is_plain(value)}


def _is_plain(value: object) -> bool:
    """Return whether a value is a text, a number or a list of them, as sessions write."""
    return not any(isinstance(part, list | dict) for part in (value if isinstance(value, list) else [value]))


def _scored_records(document: Mapping[str, Any], inputs: Mapping[str, Any]) -> Iterator[ScoredRecord]:
    from osmosis_ai.rubric.agreement import rescaled

    given = inputs.get("bounds")
    bounds = _bounds(*given) if isinstance(given, list) and len(given) == 2 else None
    for entry in as_objects(document.get("records")):
        score = mean_of_judges((call.model, call.score) for call in read_calls(entry))
        if score is None:
            continue
        if bounds is not None:
            ends = (
                entry.get(name, end) for name, end in zip(("score_min", "score_max"), bounds, strict=True)
            )
            own = _bounds(*ends) or bounds
            if own != bounds:
                score = float(rescaled(score, *own, to_low=bounds[0], to_high=bounds[1]))
        if math.isfinite(score):
            yield ScoredRecord(score, as_text(entry.get("digest")), as_text(entry.get("question_digest")))


def _bounds(low: object, high: object) -> tuple[float, float] | None:
    lowest, highest = _number(low), _number(high)
    return None if lowest is None or highest is None or lowest >= highest else (lowest, highest)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
