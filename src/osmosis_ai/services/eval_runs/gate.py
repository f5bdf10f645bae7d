"""`osmosis eval gate`: check a run of this machine or of a platform against thresholds.

Local runs are read from the journal, so the numbers are always computed by this release. Self-hosted
platforms send estimates. The hosted service sends counts only; bounds computed from them assume independent
rows. The result file of a judge has its own metrics.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from osmosis_ai.decisions.gate import (
    RUBRIC_METRICS,
    RUN_METRICS,
    Evidence,
    Rule,
    RuleResult,
    Verdict,
    evidence_of,
    evidence_of_figure,
    evidence_of_mean,
    evidence_of_share,
    overall,
    require_known,
    require_pass_at,
    weakest,
)
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.statistics.estimates import CONFIDENCE

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.decisions.changes import ChangeSettings
    from osmosis_ai.decisions.compare import RunTotals
    from osmosis_ai.decisions.samples import CountsOnly


@dataclass(frozen=True)
class GatedRun:
    """A run and its evidence for each rule.

    Attributes:
        place: directory or page URL.
        unfinished: sentence explaining why the run is incomplete; None if it is complete.
        scored, tried: attempts with a score, and attempts made; None if unknown.
        evidence: returns the evidence for a rule's metric.
        metrics: metrics that the run may have.
        passes_at: available k of pass@k for a finished run; None if unknown.
        notes: sentences about the evidence.
        subject: identity that is stable across runs, such as the config.
    """

    name: str
    source: Literal["local", "platform", "rubric"]
    status: str
    place: str | None
    unfinished: str | None
    scored: int | None
    tried: int | None
    evidence: Callable[[Rule, ChangeSettings], Evidence]
    metrics: tuple[str, ...] = RUN_METRICS
    passes_at: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()
    subject: str = ""
    revision: int = 0

    @property
    def unscored(self) -> int:
        return 0 if self.scored is None or self.tried is None else max(0, self.tried - self.scored)

    def require(self, rules: Sequence[Rule]) -> None:
        """Check that the run can have the metrics of the rules."""
        require_known(rules, self.metrics, "a judge's result file" if self.source == "rubric" else "a run")
        if self.passes_at is not None:
            require_pass_at(rules, self.passes_at)


@dataclass(frozen=True)
class GateReport:
    """The results of all rules.

    Attributes:
        confidence: confidence level of each bound.
        baseline: totals of the baseline.
        decided_by: display name of the decide file that rules came from.
        undecided: sentence explaining why no rule could be decided; such a run never passes.
    """

    run: GatedRun
    judgements: tuple[RuleResult, ...]
    warnings: tuple[str, ...]
    confidence: float = CONFIDENCE
    baseline: RunTotals | None = None
    decided_by: str | None = None
    undecided: str | None = None

    @property
    def verdict(self) -> Verdict:
        """The combined verdict of all rules."""
        return overall(self.judgements)

    @property
    def without_number(self) -> bool:
        """Whether the run lacks the metric of some rule."""
        return any(judgement.evidence.value is None for judgement in self.judgements)

    def resource(self) -> dict[str, Any]:
        run = self.run
        return {
            "verdict": self.verdict,
            "run": {
                "name": run.name,
                "revision": run.revision,
                "source": run.source,
                "status": run.status,
                ("url" if run.source == "platform" else "path"): run.place,
                "scored": run.scored,
                "tried": run.tried,
            },
            "baseline": None if self.baseline is None else self.baseline.data(),
            "confidence": self.confidence,
            "decided_by": self.decided_by,
            "rules": [judgement.data() for judgement in self.judgements],
            "warnings": list(self.warnings),
        }


def local_run(directory: Path) -> GatedRun:
    """Read a run of this machine.

    Raises:
        OsmosisError: the directory is damaged or does not contain a run.
    """
    from osmosis_ai.evaluation.local_results import read_local_results

    found = read_local_results(directory)
    estimates = found.metrics.estimates.model_dump(mode="json")
    # Match a platform's estimates: JSON object keys are strings.
    estimates["pass_at_k"] = {str(k): value for k, value in estimates["pass_at_k"].items()}
    counts = found.metrics.estimates.counts
    planned = counts.planned
    unfinished = found.unfinished
    return GatedRun(
        name=found.name,
        source="local",
        status=found.status,
        place=str(directory),
        unfinished=unfinished,
        scored=counts.scored,
        tried=planned - counts.pending - counts.skipped,
        evidence=lambda rule, settings: _with_threshold(
            rule,
            evidence_of(rule.metric, estimates, rows=found.rows, confidence=settings.confidence),
            found.pass_threshold,
        ),
        passes_at=_passes_at(estimates) if unfinished is None else None,
        subject=_subject(directory),
    )


def _subject(directory: Path) -> str:
    from osmosis_ai.decisions.local_runs import read_inputs

    inputs = read_inputs(directory)
    return inputs.config or f"{inputs.rollout}/{inputs.dataset_name}"


def _passes_at(estimates: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the available k of pass@k; None if no sample has a score."""
    if estimates.get("pass_rate") is None:
        return None
    return tuple(sorted(int(k) for k in estimates.get("pass_at_k") or {}))


def _with_threshold(rule: Rule, evidence: Evidence, threshold: float) -> Evidence:
    """Note a pass threshold other than 1."""
    if threshold == 1.0 or rule.kind not in ("pass_rate", "pass@K"):
        return evidence
    said = f"a sample passes at a reward of {threshold:g}."
    return replace(evidence, note=f"{evidence.note.rstrip('.')}; {said}" if evidence.note else said)


def platform_run(client: PlatformClient, name: str, *, allow_imported: bool = False) -> GatedRun:
    """Read a run of a platform.

    Args:
        client: the platform.
        name: the run's name or id.
        allow_imported: accept an uploaded run, which the platform did not execute itself.

    Raises:
        PlatformError: the run does not exist or the request failed.
        ConflictError: the run was imported, and ``allow_imported`` is not set.
    """
    from osmosis_ai.services.eval_runs.info import describe_run
    from osmosis_ai.services.eval_runs.platform_samples import counts_of, unfinished_there

    found = describe_run(client, name)
    run, metrics = found.run, found.metrics
    if run.imported is not None and not allow_imported:
        raise ConflictError(
            f"the run {run.name or run.id} was imported ({run.imported.words}): the platform cannot vouch for its results.",
            hint="if you trust who uploaded it, gate it with --allow-imported",
        )
    results = found.detail.results
    rows = results.sampled_rows if results is not None else None
    unfinished, passes_at = unfinished_there(run), None
    estimates = (metrics.estimates if metrics is not None else None) or {}
    if estimates:
        counts = estimates.get("counts") or {}
        planned, pending, skipped = (counts.get(key) or 0 for key in ("planned", "pending", "skipped"))
        scored, tried = counts.get("scored"), planned - pending - skipped
        passes_at = _passes_at(estimates) if unfinished is None else None

        def evidence(rule: Rule, settings: ChangeSettings) -> Evidence:
            return evidence_of(rule.metric, estimates, rows=rows, confidence=settings.confidence)

    else:
        told = counts_of(found)
        scored, tried = told.scored, told.tried

        def evidence(rule: Rule, settings: ChangeSettings) -> Evidence:
            return _evidence_of_counts(told, rule, settings)

    return GatedRun(
        name=run.name or run.id,
        source="platform",
        status=run.status,
        place=run.platform_url,
        unfinished=unfinished,
        scored=scored,
        tried=tried,
        evidence=evidence,
        passes_at=passes_at,
        revision=run.revision,
        subject="/".join(
            part.name
            for part in (found.detail.rollout, found.detail.dataset)
            if part is not None and part.name
        ),
    )


def rubric_results(file: Path) -> GatedRun:
    """Read a result file of `osmosis eval rubric`; with several judges, every judge must meet each rule.

    Raises:
        OsmosisError: the file is not a rubric result.
    """
    import msgspec

    from osmosis_ai.rubric.agreement import AgreementReport
    from osmosis_ai.rubric.documents import describe_outside_scale

    try:
        document = json.loads(file.read_bytes())
        report = msgspec.convert(document["trust"], AgreementReport)
        counts = report.counts
        scored, unscored, pending = counts.scored_calls, counts.unscored_calls, counts.pending_calls
        clamped = describe_outside_scale(int(document.get("counts", {}).get("outside_scale") or 0), scored)
        judges = [
            (judge.model, judge.unscored_calls, msgspec.to_builtins(judge.figures)) for judge in report.judges
        ]
        if not all(figures["mean"] and figures["alpha"] for *_, figures in judges) or not judges:
            raise ValueError("the file has no judge")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise OsmosisError(
            f"{file} is not a result file of `osmosis eval rubric`.",
            hint="write one with: osmosis eval rubric --output FILE",
        ) from None

    def evidence(rule: Rule, settings: ChangeSettings) -> Evidence:
        if rule.metric == "unscored":
            return evidence_of_share(
                unscored, scored + unscored, counts.records, confidence=settings.confidence
            )
        found = []
        for model, missing, figures in judges:
            note = f"the weakest of {len(judges)} judges is {model}." if len(judges) > 1 else ""
            if rule.metric == "score":
                mean = evidence_of_figure(figures["mean"], note=note)
                found.append(_with_unscored_calls(mean, missing, figures))
            else:
                found.append(evidence_of_figure(figures["alpha"], note=note))
        return weakest(rule, found)

    return GatedRun(
        name=file.name,
        source="rubric",
        status="incomplete" if pending else "finished",
        place=str(file),
        unfinished=f"{pending} calls are pending: continue with --resume." if pending else None,
        scored=scored,
        tried=scored + unscored,
        evidence=evidence,
        metrics=RUBRIC_METRICS,
        subject=file.name,
        notes=(f"{clamped}.",) if clamped else (),
    )


def _with_unscored_calls(found: Evidence, missing: int, figures: Mapping[str, Any]) -> Evidence:
    """Add a judge's mean score with every unscored call at either end of the scale."""
    worst, best = figures.get("mean_at_worst"), figures.get("mean_at_best")
    if not missing:
        return found
    if worst is None or best is None:
        reason = f"{missing:,} calls have no score, and the file has no bounds for them."
        return replace(found, unscored=missing, undecided=reason)
    return replace(found, unscored=missing, extremes=(evidence_of_figure(worst), evidence_of_figure(best)))


def _evidence_of_counts(counts: CountsOnly, rule: Rule, settings: ChangeSettings) -> Evidence:
    """Return the evidence that counts give for a rule's metric."""
    from osmosis_ai.decisions.gate import describe_unknown_range

    metric, rows = rule.metric, counts.rows
    note = (
        "the platform does not report the row of each sample: each row counts once."
        if rows is not None
        else "the platform does not report the number of rows: samples are treated as independent."
    )

    def share(hits: float | None, samples: int | None) -> Evidence:
        if hits is None or samples is None:
            return Evidence(note=f"the platform does not report `{metric}`.")
        return evidence_of_share(
            hits, samples, rows, note=note if samples else "", confidence=settings.confidence
        )

    if metric in ("unscored", "failed"):
        return share(counts.unscored if metric == "unscored" else counts.failed, counts.tried)
    if counts.unscored is None:
        scored = counts.scored or 0
        found = _evidence_of_counts(replace(counts, scored=scored, tried=scored), rule, settings)
        return replace(found, undecided="the platform does not report how many attempts have no score.")
    missing, scored = counts.unscored, counts.scored or 0
    if metric == "pass_rate":
        found = share(counts.passed, counts.scored)
        if not missing or counts.passed is None:
            return found
        extremes = share(counts.passed, counts.tried), share(counts.passed + missing, counts.tried)
        return replace(found, unscored=missing, extremes=extremes)
    if metric.startswith("pass@"):
        value = counts.pass_at_k.get(int(metric.removeprefix("pass@")))
        # A row needs k attempts to be included.
        rows = None if rows is None else min(rows, (counts.tried or 0) // int(metric.removeprefix("pass@")))
        if value is None or not rows:
            return Evidence(value, note=f"the platform does not report {metric} and its number of rows.")
        found = share(value * rows, rows)
        if not missing:
            return found
        # The hosted pass@k counts unscored attempts as failed. One more pass changes only its own row, by at
        # most 1.
        extremes = found, share(min(rows, value * rows + missing), rows)
        return replace(found, unscored=missing, extremes=extremes)
    if metric == "reward":
        if counts.reward is None or not scored:
            return Evidence(note="the platform does not report the mean and variance of the rewards.")
        mean, std = counts.reward

        def mean_with(more: int, reward: float) -> Evidence:
            total = scored + more
            value = (scored * mean + more * reward) / total
            squares = scored * (std**2 + (mean - value) ** 2) + more * (reward - value) ** 2
            spread = math.sqrt(squares / total)
            return evidence_of_mean(value, spread, total, rows, note=note, confidence=settings.confidence)

        found = mean_with(0, 0.0)
        if not missing:
            return found
        if settings.reward_range is None:
            return replace(found, unscored=missing, undecided=describe_unknown_range(missing))
        lowest, highest = settings.reward_range
        return replace(
            found,
            unscored=missing,
            extremes=(mean_with(missing, lowest), mean_with(missing, highest)),
        )
    return Evidence(note=f"the platform does not report `{metric}`.")


def warnings_of(run: GatedRun, rules: Sequence[Rule]) -> list[str]:
    """Return warnings to show next to the verdict, one sentence each."""
    found = [*run.notes]
    if run.unscored and not asks_about_unscored(rules):
        found.append(
            f"{run.unscored:,} of {run.tried:,} attempts have no score and are excluded from rates; add a rule "
            "such as --max unscored=0.1"
        )
    return found


def asks_about_unscored(rules: Sequence[Rule]) -> bool:
    return any(rule.metric == "unscored" for rule in rules)
