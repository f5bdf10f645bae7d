"""`osmosis eval gate`: check a run of this machine or of a platform against thresholds and, if asked, a baseline.

Local runs are read from the journal, so the numbers are always computed by this release. Self-hosted
platforms send estimates. The hosted service sends counts only; bounds computed from them assume independent
rows. The result file of a judge has its own metrics. Samples are read only when a rule needs them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from osmosis_ai.api.capabilities import Capability
from osmosis_ai.config.decisions import Decisions, margin_problem, needs_scores
from osmosis_ai.decisions import gate as rulings
from osmosis_ai.decisions.changes import ChangeSettings, unscored_of
from osmosis_ai.decisions.comparability import (
    Allowances,
    Comparability,
    require_comparable,
    require_vouched_for,
)
from osmosis_ai.decisions.compare import FEWEST_ROWS, RunTotals, require_in_range
from osmosis_ai.decisions.gate import Evidence, Judge, Rule, RuleResult, Verdict
from osmosis_ai.decisions.local_runs import read_inputs
from osmosis_ai.decisions.samples import CountsOnly, LabelledRun, RunPair, RunSamples, by_slice
from osmosis_ai.errors import ConflictError, OsmosisError, UsageError, WorkspaceRequiredError
from osmosis_ai.evaluation.local_results import read_local_results
from osmosis_ai.files import expanded
from osmosis_ai.services.eval_runs.info import describe_run
from osmosis_ai.services.eval_runs.resolver import Client, ResolvedRun, resolve_run, run_of_file
from osmosis_ai.services.eval_runs.samples import (
    counts_of,
    find_run_samples,
    read_run_directory,
    unfinished_there,
)
from osmosis_ai.statistics.estimates import CONFIDENCE
from osmosis_ai.statistics.variance import VarianceComponents
from osmosis_ai.workspace.config_files import decisions_of_run, load_decisions
from osmosis_ai.workspace.layout import find_workspace

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient

_OF_SAMPLES = ("cost_per_row", "tokens", "latency")
"""Metrics that are missing from a run's estimates and computed from its samples."""


@dataclass(frozen=True)
class GateQuestion:
    """Rules and options of a gate; missing ones come from the decide file, which is named or next to the config.

    A given rule overrides the file's rule for the same metric and bound. ``decided_by`` names the file if any of
    its rules apply.
    """

    rules: tuple[Rule, ...] = ()
    against: str | None = None
    rules_file: Path | None = None
    slices: tuple[str, ...] = ()
    confidence: float | None = None
    reward_range: tuple[float, float] | None = None
    allowed: Allowances = field(default_factory=Allowances)
    allow_imported: bool = False
    decided_by: str | None = None

    @property
    def margins(self) -> list[Rule]:
        return [rule for rule in self.rules if rule.bound == "margin"]

    @property
    def limits(self) -> list[Rule]:
        return [rule for rule in self.rules if rule.bound != "margin"]


@dataclass(frozen=True)
class GatedRun:
    """A run and its evidence for each rule.

    ``scored`` and ``tried`` count attempts. ``passes_at`` lists the available k of pass@k for a finished run, None if
    unknown. ``subject`` is an identity that is stable across runs, such as the config.
    """

    name: str
    source: Literal["local", "platform", "rubric"]
    status: str
    place: str | None
    unfinished: str | None
    scored: int | None
    tried: int | None
    evidence: Callable[[Rule, ChangeSettings], Evidence]
    metrics: tuple[str, ...] = rulings.RUN_METRICS
    passes_at: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()
    subject: str = ""
    revision: int = 0

    @property
    def unscored(self) -> int:
        return 0 if self.scored is None or self.tried is None else max(0, self.tried - self.scored)


@dataclass(frozen=True)
class GateReport:
    """The results of all rules; ``undecided`` explains why no rule could be decided."""

    run: GatedRun
    judgements: tuple[RuleResult, ...]
    warnings: tuple[str, ...]
    confidence: float = CONFIDENCE
    baseline: RunTotals | None = None
    decided_by: str | None = None
    undecided: str | None = None

    @property
    def verdict(self) -> Verdict:
        return rulings.overall(self.judgements)

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


def gate(reference: str, question: GateQuestion, *, client: Client) -> GateReport:
    """Decide whether a run, or a result file of `osmosis eval rubric`, meets its rules."""
    file = expanded(reference)
    if file.is_file() and run_of_file(file) is None:
        run, found = rubric_results(file), None
        question = _with_decisions(question, None)
    else:
        found = resolve_run(reference, client=client)
        question = _with_decisions(question, found)
        if found.directory is not None:
            run = local_run(found.directory)
        else:
            run = platform_run(client(), found.name, allow_imported=question.allow_imported)
    return _Gate(run, found, question, client).report()


def _with_decisions(question: GateQuestion, found: ResolvedRun | None) -> GateQuestion:
    """Fill in the decide file, and check the question."""
    decisions = _decisions(question, found)
    given = {(rule.metric, rule.bound) for rule in question.rules}
    written = [rule for rule in rules_of(decisions) if (rule.metric, rule.bound) not in given]
    asked = replace(
        question,
        rules=(*question.rules, *written),
        against=question.against or decisions.against,
        slices=question.slices or decisions.slices,
        confidence=question.confidence or decisions.confidence,
        reward_range=question.reward_range or decisions.reward_range,
        decided_by=decisions.shown if written else None,
    )
    rulings.require_rules(asked.rules)
    if asked.margins and asked.against is None:
        rule = asked.margins[0]
        where = "" if rule in question.rules else f" of {asked.decided_by}"
        raise UsageError(f"`{rule}`{where} needs a baseline.", hint="name a run: --against BASE")
    if question.against is not None and not asked.margins:
        raise UsageError("no rule uses the baseline.", hint="set the accepted loss: --margin pass_rate=0.03")
    for rule in asked.margins:
        problem = margin_problem(rule.described, rule.limit, asked.reward_range)
        if problem:
            raise UsageError(f"`--margin {rule.metric}={rule.limit:g}`: {problem}.")
    return asked


def rules_of(decisions: Decisions) -> Iterator[Rule]:
    for metric, limit in decisions.minima.items():
        yield Rule(metric, "min", limit)
    for metric, limit in decisions.maxima.items():
        yield Rule(metric, "max", limit)
    for metric, limit in decisions.margins.items():
        yield Rule(metric, "margin", limit)


def _decisions(question: GateQuestion, found: ResolvedRun | None) -> Decisions:
    try:
        workspace = find_workspace(require_scaffold=False)
    except WorkspaceRequiredError:
        workspace = None
    if question.rules_file is not None:
        named = expanded(question.rules_file).absolute()
        if not named.is_file():
            problem = "is a directory" if named.is_dir() else "not found"
            raise UsageError(
                f"rules file `{question.rules_file}` {problem}.", hint="name a .decide.toml: --rules FILE"
            )
        return load_decisions(named, workspace)
    if found is None or found.directory is None or workspace is None:
        return Decisions()
    return decisions_of_run(read_inputs(found.directory).config, workspace)


@dataclass
class _Gate:
    """One decision; samples are read at most once, when a rule needs them."""

    _run: GatedRun
    _found: ResolvedRun | None
    _question: GateQuestion
    _client: Client
    _read: RunSamples | None = None
    _notes: list[str] = field(default_factory=list)

    @property
    def _confidence(self) -> float:
        return self._question.confidence or CONFIDENCE

    def report(self) -> GateReport:
        asked, run = self._question, self._run
        self._require_known()
        compared = self._compare() if asked.margins else None
        questions: dict[Rule, Judge] = {
            rule: self._judged(rule, partial(self._evidence, rule)) for rule in asked.limits
        }
        questions |= self._limits_of_slices()
        undecided, baseline = run.unfinished, None
        if compared is not None:
            pair, comparability, baseline = compared
            undecided = undecided or comparability.undecided
            questions |= self._margins(pair, undecided)
        found = rulings.judge_together(questions, confidence=self._confidence)
        for rule in asked.limits:
            found[rule] = self._settled(found[rule])
        results = [found[rule] for rule in asked.rules]
        results += [each for rule, each in found.items() if rule.slice is not None]
        notes = [*run.notes]
        if run.unscored and not self._asks_about_unscored():
            notes.append(
                f"{run.unscored:,} of {run.tried:,} attempts have no score and are excluded from rates; add a rule "
                "such as --max unscored=0.1"
            )
        return GateReport(
            run,
            tuple(results),
            tuple(dict.fromkeys([*notes, *self._notes])),
            confidence=self._confidence,
            baseline=baseline,
            decided_by=asked.decided_by,
            undecided=undecided,
        )

    def _require_known(self) -> None:
        asked, run = self._question, self._run
        is_rubric = run.source == "rubric"
        if is_rubric and (asked.margins or asked.slices or self._confidence != CONFIDENCE):
            raise UsageError(
                "a judge's result file can only be checked against limits.",
                hint="compare it with another: osmosis eval rubric --baseline FILE",
            )
        rulings.require_known(asked.limits, run.metrics, "a judge's result file" if is_rubric else "a run")
        if run.passes_at is not None:
            rulings.require_pass_at(asked.limits, run.passes_at)

    def _asks_about_unscored(self) -> bool:
        return any(rule.metric == "unscored" for rule in self._question.rules)

    def _settings(self, confidence: float) -> ChangeSettings:
        return ChangeSettings(confidence, reward_range=self._question.reward_range)

    def _samples(self) -> RunSamples:
        if self._read is None:
            assert self._found is not None  # a judge's file was refused
            if self._found.directory is None:
                reference = f"platform:{self._found.name}"
                self._read = find_run_samples(reference, client=self._client)
            else:
                self._read = read_run_directory(
                    self._found.directory, place=self._found.place, client=self._client
                )
            require_in_range([self._read], self._question.reward_range)
        return self._read

    def _judged(self, rule: Rule, evidence: Callable[[float], Evidence]) -> Judge:
        """Return the judge of a limit; ``evidence`` depends on the confidence level."""

        def judge_at(confidence: float) -> RuleResult:
            return rulings.judge(
                rule, evidence(confidence), unfinished=self._run.unfinished, confidence=confidence
            )

        return judge_at

    def _evidence(self, rule: Rule, confidence: float) -> Evidence:
        run, settings = self._run, self._settings(confidence)
        if rule.described.compared and (
            rule.metric in _OF_SAMPLES
            or (confidence != CONFIDENCE and rule.metric != "failed")
            or (rule.kind == "pass^K" and run.source == "local")
            or (rule.metric == "reward" and self._question.reward_range is not None)
        ):
            attempts = self._attempts()
            if attempts is not None:
                return rulings.sampled_evidence(attempts, rule, settings)
        found = run.evidence(rule, settings)
        if run.unfinished is not None or not run.unscored or not needs_scores(rule.metric):
            return found
        if found.undecided is not None or found.extremes is not None:
            return found
        attempts = self._attempts()
        if attempts is None:
            return replace(
                found,
                unscored=run.unscored,
                undecided=f"{run.unscored:,} attempts have no score, and the platform does not list attempts.",
            )
        return rulings.with_unscored(found, attempts, rule.metric, settings)

    def _attempts(self) -> LabelledRun | None:
        """Return the run's attempts; None for a judge's file or a platform that only counts attempts."""
        if self._run.source == "rubric":
            return None
        if self._run.source == "platform":
            offers = self._client().offers
            if offers is None or Capability.EVAL_SAMPLES not in offers or self._samples().summary is not None:
                return None
        return rulings.alone(self._samples()).b

    def _settled(self, found: RuleResult) -> RuleResult:
        """Add what would settle an inconclusive result, if known."""
        run, evidence, rule = self._run, found.evidence, found.rule
        if found.verdict != "unclear" or found.settles is not None or evidence.undecided is not None:
            return found
        if run.unfinished is not None or run.source == "rubric" or evidence.value is None:
            return found
        attempts = self._attempts()
        if attempts is None:
            # Only counts are known: independent rows. Rows with identical outcomes give no variance estimate;
            # assume that of a share at the limit.
            share, rows = evidence.value, evidence.rows or evidence.samples
            if rule.metric not in ("pass_rate", *rulings.SHARES) or not rows:
                return found
            spread = VarianceComponents(share * (1 - share) or rule.limit * (1 - rule.limit), None, rows, 1.0)
            known = rulings.settle(spread, share - rule.limit, rows, 1, confidence=self._confidence)
            return replace(found, settles=known)
        measured = rulings.spread_of_run(attempts, rule.metric)
        if evidence.rows is None or measured is None:
            return found
        known = rulings.settle(
            measured,
            evidence.value - rule.limit,
            evidence.rows,
            rulings.attempts_of(attempts.run),
            confidence=self._confidence,
            cost_attempt=rulings.cost_of_attempt(attempts.run),
        )
        return replace(found, settles=known)

    def _limits_of_slices(self) -> dict[Rule, Judge]:
        rules = self._question.limits
        if not rules or not self._question.slices:
            return {}

        def evidence(attempts: LabelledRun, rule: Rule, confidence: float) -> Evidence:
            return rulings.sampled_evidence(attempts, rule, self._settings(confidence))

        return {
            (in_slice := replace(rule, slice=where)): self._judged(
                in_slice, partial(evidence, part.b, in_slice)
            )
            for where, part in self._parts(rulings.alone(self._samples())).items()
            for rule in rules
        }

    def _compare(self) -> tuple[RunPair, Comparability, RunTotals]:
        asked, run = self._question, self._samples()
        assert asked.against is not None  # required with a margin
        baseline = find_run_samples(asked.against, client=self._client, like=run.inputs)
        for each in (run, baseline):
            require_vouched_for(each, allow_imported=asked.allow_imported)
        require_in_range([baseline], asked.reward_range)
        try:
            comparability = require_comparable(baseline, run, asked.allowed)
        except ConflictError:
            unfinished = [f"{each.name}: {each.unfinished}" for each in (run, baseline) if each.unfinished]
            if not unfinished:
                raise
            # The runs may have no common row yet.
            comparability = Comparability(None, (), None, undecided=unfinished[0])
        self._notes += comparability.notes
        if comparability.label:
            self._notes.append(comparability.label)
        pair = RunPair.of(baseline, run, comparability.matched)
        missing = unscored_of(pair.a)
        if missing and not self._asks_about_unscored():
            self._notes.append(f"{missing:,} attempts of the baseline {baseline.name} have no score.")
        return pair, comparability, RunTotals.of(baseline, baseline.name)

    def _margins(self, pair: RunPair, undecided: str | None) -> dict[Rule, Judge]:
        def judge_at(rule: Rule, part: RunPair, confidence: float) -> RuleResult:
            return rulings.judge_pair(rule, part, self._settings(confidence), undecided)

        found: dict[Rule, Judge] = {rule: partial(judge_at, rule, pair) for rule in self._question.margins}
        for where, part in self._parts(pair).items():
            for rule in self._question.margins:
                in_slice = replace(rule, slice=where)
                found[in_slice] = partial(judge_at, in_slice, part)
        return found

    def _parts(self, pair: RunPair) -> dict[tuple[str, str | None], RunPair]:
        """Return the slices that are large enough for a verdict, and note the others."""
        parts = {}
        for column in self._question.slices:
            for where, part in by_slice(pair, column).items():
                if rulings.rows_of(part) >= FEWEST_ROWS:
                    parts[where] = part
                else:
                    said = f"{column} = {where[1]}" if where[1] is not None else f"no {column}"
                    self._notes.append(
                        f"slice {said}: {rulings.rows_of(part)} rows; below {FEWEST_ROWS} there is no verdict."
                    )
        return parts


def local_run(directory: Path) -> GatedRun:
    found, inputs = read_local_results(directory), read_inputs(directory)
    estimates = found.metrics.estimates.model_dump(mode="json")
    # Match a platform's estimates: JSON object keys are strings.
    estimates["pass_at_k"] = {str(k): value for k, value in estimates["pass_at_k"].items()}
    counts, threshold = found.metrics.estimates.counts, found.pass_threshold

    def evidence(rule: Rule, settings: ChangeSettings) -> Evidence:
        known = rulings.evidence_of(rule.metric, estimates, rows=found.rows, confidence=settings.confidence)
        if threshold == 1.0 or rule.kind not in ("pass_rate", "pass@K"):
            return known
        said = f"an attempt passes at a reward of {threshold:g} or more."
        return replace(known, note=f"{known.note.rstrip('.')}; {said}" if known.note else said)

    return GatedRun(
        name=found.name,
        source="local",
        status=found.status,
        place=str(directory),
        unfinished=found.unfinished,
        scored=counts.scored,
        tried=counts.planned - counts.pending - counts.skipped,
        evidence=evidence,
        passes_at=_passes_at(estimates) if found.unfinished is None else None,
        subject=inputs.config or f"{inputs.rollout}/{inputs.dataset_name}",
    )


def _passes_at(estimates: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the available k of pass@k; None if no sample has a score."""
    if estimates.get("pass_rate") is None:
        return None
    return tuple(sorted(int(k) for k in estimates.get("pass_at_k") or {}))


def platform_run(client: PlatformClient, name: str, *, allow_imported: bool = False) -> GatedRun:
    found = describe_run(client, name)
    run, metrics = found.run, found.metrics
    if run.imported is not None and not allow_imported:
        raise ConflictError(
            f"the run {run.name or run.id} was imported ({run.imported.words}): the platform cannot vouch for its results.",
            hint="if you trust the uploader, pass --allow-imported",
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
            return rulings.evidence_of(rule.metric, estimates, rows=rows, confidence=settings.confidence)

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
    """Read a result file of `osmosis eval rubric`; with several judges, every judge must meet each rule."""
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
            (each.model, each.unscored_calls, msgspec.to_builtins(each.figures)) for each in report.judges
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
            return rulings.evidence_of_share(
                unscored, scored + unscored, counts.records, confidence=settings.confidence
            )
        found = []
        for model, missing, figures in judges:
            note = f"the weakest of {len(judges)} judges is {model}." if len(judges) > 1 else ""
            if rule.metric == "score":
                mean = rulings.evidence_of_figure(figures["mean"], note=note)
                found.append(mean)
                worst, best = figures.get("mean_at_worst"), figures.get("mean_at_best")
                if missing and (worst is None or best is None):
                    reason = f"{missing:,} calls have no score, and the file has no bounds for them."
                    found[-1] = replace(mean, unscored=missing, undecided=reason)
                elif missing:
                    # Every unscored call at either end of the scale.
                    extremes = rulings.evidence_of_figure(worst), rulings.evidence_of_figure(best)
                    found[-1] = replace(mean, unscored=missing, extremes=extremes)
            else:
                found.append(rulings.evidence_of_figure(figures["alpha"], note=note))
        return rulings.weakest(rule, found)

    return GatedRun(
        name=file.name,
        source="rubric",
        status="incomplete" if pending else "finished",
        place=str(file),
        unfinished=f"{pending} calls are pending: continue with --resume." if pending else None,
        scored=scored,
        tried=scored + unscored,
        evidence=evidence,
        metrics=rulings.RUBRIC_METRICS,
        subject=file.name,
        notes=(f"{clamped}.",) if clamped else (),
    )


def _evidence_of_counts(counts: CountsOnly, rule: Rule, settings: ChangeSettings) -> Evidence:
    """Return the evidence that counts give for a rule's metric."""
    metric, rows = rule.metric, counts.rows
    note = (
        "the platform does not report the row of each attempt: each row counts once."
        if rows is not None
        else "the platform does not report the number of rows: attempts are treated as independent."
    )

    def share(hits: float | None, samples: int | None) -> Evidence:
        if hits is None or samples is None:
            return Evidence(note=f"the platform does not report `{metric}`.")
        return rulings.evidence_of_share(
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
            return rulings.evidence_of_mean(
                value, spread, total, rows, note=note, confidence=settings.confidence
            )

        found = mean_with(0, 0.0)
        if not missing:
            return found
        if settings.reward_range is None:
            return replace(found, unscored=missing, undecided=rulings.describe_unknown_range(missing))
        lowest, highest = settings.reward_range
        return replace(
            found, unscored=missing, extremes=(mean_with(missing, lowest), mean_with(missing, highest))
        )
    return Evidence(note=f"the platform does not report `{metric}`.")
