"""Apply the rules of the command line and of the decide file to a run and, if needed, its baseline.

Data is read only when a rule needs it. Without a baseline, the run's own estimates are sufficient.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis_ai.config.decisions import Decisions, needs_scores
from osmosis_ai.decisions.comparability import (
    Allowances,
    Comparability,
    require_comparable,
    require_vouched_for,
)
from osmosis_ai.decisions.gate import (
    SHARES,
    Evidence,
    Judge,
    Rule,
    RuleResult,
    judge,
    judge_together,
    require_rules,
)
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.files import expanded
from osmosis_ai.services.eval_runs.gate import (
    GatedRun,
    GateReport,
    asks_about_unscored,
    local_run,
    platform_run,
    rubric_results,
    warnings_of,
)
from osmosis_ai.services.eval_runs.resolver import (
    Client,
    ResolvedRun,
    find_run_samples,
    read_run_directory,
    resolve_run,
    run_of_file,
)
from osmosis_ai.statistics.estimates import CONFIDENCE

if TYPE_CHECKING:
    from osmosis_ai.decisions.changes import ChangeSettings
    from osmosis_ai.decisions.compare import RunTotals
    from osmosis_ai.decisions.samples import LabelledRun, RunPair, RunSamples

_OF_SAMPLES = ("cost_per_row", "tokens", "latency")
"""Metrics that are missing from a run's estimates and computed from its samples."""


class GateUsageError(OsmosisError):
    """The question does not apply to this run: a usage error, not a failed gate."""


@dataclass(frozen=True)
class GateQuestion:
    """Options of a gate.

    Attributes:
        rules: rules of the command line; they override those of the file for the same metric and bound.
        against: baseline; None for that of the file, if any.
        rules_file: decide file; None for the one next to the run's config, if it exists.
        slices: columns; empty for those of the file.
        confidence: confidence level; None for that of the file, or 0.95.
        reward_range: lowest and highest possible reward.
        allowed: differences that do not prevent a comparison.
        allow_imported: accept uploaded runs, which the platform did not execute itself.
    """

    rules: tuple[Rule, ...] = ()
    against: str | None = None
    rules_file: Path | None = None
    slices: tuple[str, ...] = ()
    confidence: float | None = None
    reward_range: tuple[float, float] | None = None
    allowed: Allowances = field(default_factory=Allowances)
    allow_imported: bool = False


def gate(reference: str, question: GateQuestion, *, client: Client) -> GateReport:
    """Decide whether a run meets its rules.

    Args:
        reference: a run (see :func:`resolve_run`), or a result file of `osmosis eval rubric`.
        question: rules and options.
        client: connects to the platform; called only if needed.

    Raises:
        GateUsageError: the rules are missing or do not apply to this run.
        OsmosisError: a run does not exist, is damaged, or is not comparable.
    """
    file = expanded(reference)
    if file.is_file() and run_of_file(file) is None:
        return _Gate(
            rubric_results(file), None, _asked(question, _decisions(question, None)), client
        ).report()
    found = resolve_run(reference, client=client)
    asked = _asked(question, _decisions(question, found))
    if found.directory is not None:
        run = local_run(found.directory)
    else:
        run = platform_run(client(), found.name, allow_imported=question.allow_imported)
    return _Gate(run, found, asked, client).report()


@dataclass(frozen=True)
class _Asked:
    """The question merged with the decide file."""

    rules: tuple[Rule, ...]
    against: str | None
    slices: tuple[str, ...]
    confidence: float
    reward_range: tuple[float, float] | None
    allowed: Allowances
    allow_imported: bool
    decided_by: str | None

    @property
    def margins(self) -> list[Rule]:
        return [rule for rule in self.rules if rule.bound == "margin"]


def _asked(question: GateQuestion, decisions: Decisions) -> _Asked:
    given = {(rule.metric, rule.bound) for rule in question.rules}
    written = [rule for rule in rules_of(decisions) if (rule.metric, rule.bound) not in given]
    asked = _Asked(
        rules=(*question.rules, *written),
        against=question.against or decisions.against,
        slices=question.slices or decisions.slices,
        confidence=question.confidence or decisions.confidence,
        reward_range=question.reward_range or decisions.reward_range,
        allowed=question.allowed,
        allow_imported=question.allow_imported,
        decided_by=decisions.shown if written else None,
    )
    _require_askable(question, asked)
    return asked


def rules_of(decisions: Decisions) -> Iterator[Rule]:
    """Yield the rules of a decide file."""
    for metric, limit in decisions.minima.items():
        yield Rule(metric, "min", limit)
    for metric, limit in decisions.maxima.items():
        yield Rule(metric, "max", limit)
    for metric, limit in decisions.margins.items():
        yield Rule(metric, "margin", limit)


def _require_askable(question: GateQuestion, asked: _Asked) -> None:
    from osmosis_ai.config.decisions import margin_problem

    try:
        require_rules(asked.rules)
    except OsmosisError as error:
        raise GateUsageError(error.message, hint=error.hint) from None
    if asked.margins and asked.against is None:
        rule = asked.margins[0]
        where = "" if rule in question.rules else f" of {asked.decided_by}"
        raise GateUsageError(f"`{rule}`{where} needs a baseline.", hint="name a run: --against BASE")
    if question.against is not None and not asked.margins:
        raise GateUsageError(
            "no rule uses the baseline.",
            hint="set the accepted loss: --margin pass_rate=0.03",
        )
    for rule in asked.margins:
        problem = margin_problem(rule.described, rule.limit, asked.reward_range)
        if problem:
            raise GateUsageError(f"`--margin {rule.metric}={rule.limit:g}`: {problem}.")


def _decisions(question: GateQuestion, found: ResolvedRun | None) -> Decisions:
    """Return the named decide file, or else the one next to the run's config."""
    from osmosis_ai.decisions.local_runs import read_inputs
    from osmosis_ai.errors import WorkspaceRequiredError
    from osmosis_ai.workspace.config_files import decisions_of_run, load_decisions
    from osmosis_ai.workspace.layout import find_workspace

    try:
        workspace = find_workspace(require_scaffold=False)
    except WorkspaceRequiredError:
        workspace = None
    if question.rules_file is not None:
        named = expanded(question.rules_file).absolute()
        if not named.is_file():
            raise GateUsageError(
                f"file not found: `{question.rules_file}`.", hint="name a .decide.toml: --rules FILE"
            )
        return load_decisions(named, workspace)
    if found is None or found.directory is None or workspace is None:
        return Decisions()
    return decisions_of_run(read_inputs(found.directory).config, workspace)


@dataclass(frozen=True)
class _Compared:
    """A run compared with its baseline."""

    pair: RunPair
    comparability: Comparability
    baseline: RunTotals


class _Gate:
    """One decision; samples are read at most once, when a rule needs them."""

    def __init__(self, run: GatedRun, found: ResolvedRun | None, asked: _Asked, client: Client) -> None:
        self._run = run
        self._found = found
        self._asked = asked
        self._client = client
        self._read: RunSamples | None = None
        self._notes: list[str] = []

    def report(self) -> GateReport:
        """Apply all rules: first those of the whole run, then those of slices."""
        asked, run = self._asked, self._run
        self._require_known()
        compared = self._compare() if asked.margins else None
        limits = {rule: self._limit(rule) for rule in asked.rules if rule.bound != "margin"}
        questions = {**limits, **self._limits_of_slices()}
        if compared is not None:
            questions |= self._margins(compared)
        found = judge_together(questions, confidence=asked.confidence)
        for rule in limits:
            found[rule] = self._settled(found[rule])
        results = [found[rule] for rule in asked.rules]
        results += [each for rule, each in found.items() if rule.slice is not None]
        return GateReport(
            run,
            tuple(results),
            tuple(dict.fromkeys([*warnings_of(run, asked.rules), *self._notes])),
            confidence=asked.confidence,
            baseline=compared.baseline if compared is not None else None,
            decided_by=asked.decided_by,
            undecided=run.unfinished or (compared.comparability.undecided if compared is not None else None),
        )

    def _require_known(self) -> None:
        asked, run = self._asked, self._run
        if run.source == "rubric" and (asked.margins or asked.slices or asked.confidence != CONFIDENCE):
            raise GateUsageError(
                "a judge's result file can only be checked against limits.",
                hint="compare it with another: osmosis eval rubric --baseline FILE",
            )
        try:
            run.require([rule for rule in asked.rules if rule.bound != "margin"])
        except OsmosisError as error:
            raise GateUsageError(error.message, hint=error.hint) from None

    def _settings(self, confidence: float) -> ChangeSettings:
        from osmosis_ai.decisions.changes import ChangeSettings

        return ChangeSettings(confidence=confidence, reward_range=self._asked.reward_range)

    def _samples(self) -> RunSamples:
        if self._read is None:
            from osmosis_ai.decisions.compare import require_in_range

            assert self._found is not None  # a judge's file was refused
            if self._found.directory is None:
                reference = f"platform:{self._found.name}"
                self._read = find_run_samples(reference, client=self._client)
            else:
                self._read = read_run_directory(
                    self._found.directory, place=self._found.place, client=self._client
                )
            require_in_range([self._read], self._asked.reward_range)
        return self._read

    # -- limits ----------------------------------------------------------------------------

    def _limit(self, rule: Rule) -> Judge:
        def judge_at(confidence: float) -> RuleResult:
            evidence = self._evidence(rule, confidence)
            return judge(rule, evidence, unfinished=self._run.unfinished, confidence=confidence)

        return judge_at

    def _evidence(self, rule: Rule, confidence: float) -> Evidence:
        """Return the whole run's evidence for a rule's metric."""
        from osmosis_ai.decisions.gate import sampled_evidence, with_unscored

        run, settings = self._run, self._settings(confidence)
        if rule.described.compared and (
            rule.metric in _OF_SAMPLES
            or (confidence != CONFIDENCE and rule.metric != "failed")
            or (rule.kind == "pass^K" and run.source == "local")
            or (rule.metric == "reward" and self._asked.reward_range is not None)
        ):
            attempts = self._attempts()
            if attempts is not None:
                return sampled_evidence(attempts, rule, settings)
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
        return with_unscored(found, attempts, rule.metric, settings)

    def _attempts(self) -> LabelledRun | None:
        """Return the run's attempts; None for a judge's file or a platform that does not list attempts."""
        from osmosis_ai.decisions.gate import alone

        if self._run.source == "rubric" or (self._run.source == "platform" and not self._lists_attempts()):
            return None
        return alone(self._samples()).b

    def _lists_attempts(self) -> bool:
        """Whether the platform lists the run's attempts instead of only counting them."""
        from osmosis_ai.api.capabilities import Capability

        offers = self._client().offers
        return offers is not None and Capability.EVAL_SAMPLES in offers and self._samples().summary is None

    def _settled(self, found: RuleResult) -> RuleResult:
        """Add what would settle an inconclusive result, if known."""
        run = self._run
        if found.verdict != "unclear" or found.settles is not None or found.evidence.undecided is not None:
            return found
        if run.unfinished is not None or run.source == "rubric":
            return found
        attempts = self._attempts()
        if attempts is None:
            return settled_by_counts(found, self._asked.confidence)
        return settled_by(found, attempts, self._asked.confidence)

    def _limits_of_slices(self) -> dict[Rule, Judge]:
        from osmosis_ai.decisions.gate import alone, sampled_evidence

        rules = [rule for rule in self._asked.rules if rule.bound != "margin"]
        if not rules or not self._asked.slices:
            return {}

        def judge_slice(rule: Rule, attempts: LabelledRun) -> Judge:
            def judge_at(confidence: float) -> RuleResult:
                evidence = sampled_evidence(attempts, rule, self._settings(confidence))
                return judge(rule, evidence, unfinished=self._run.unfinished, confidence=confidence)

            return judge_at

        return {
            (in_slice := replace(rule, slice=where)): judge_slice(in_slice, part.b)
            for where, part in self._parts(alone(self._samples())).items()
            for rule in rules
        }

    # -- margins ---------------------------------------------------------------------------

    def _compare(self) -> _Compared:
        from osmosis_ai.decisions.changes import unscored_of
        from osmosis_ai.decisions.compare import RunTotals, require_in_range
        from osmosis_ai.decisions.samples import RunPair

        asked, run = self._asked, self._samples()
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
            # There may be no common row yet.
            comparability = Comparability(None, (), None, undecided=unfinished[0])
        self._notes += comparability.notes
        if comparability.label:
            self._notes.append(comparability.label)
        pair = RunPair.of(baseline, run, comparability.matched)
        missing = unscored_of(pair.a)
        if missing and not asks_about_unscored(asked.rules):
            self._notes.append(f"{missing:,} attempts of the baseline {baseline.name} have no score.")
        return _Compared(pair, comparability, RunTotals.of(baseline, baseline.name))

    def _margins(self, compared: _Compared) -> dict[Rule, Judge]:
        from osmosis_ai.decisions import gate

        undecided = self._run.unfinished or compared.comparability.undecided

        def judge_pair(rule: Rule, pair: RunPair) -> Judge:
            def judge_at(confidence: float) -> RuleResult:
                return gate.judge_pair(rule, pair, self._settings(confidence), undecided)

            return judge_at

        found = {rule: judge_pair(rule, compared.pair) for rule in self._asked.margins}
        for where, part in self._parts(compared.pair).items():
            for rule in self._asked.margins:
                in_slice = replace(rule, slice=where)
                found[in_slice] = judge_pair(in_slice, part)
        return found

    def _parts(self, pair: RunPair) -> dict[tuple[str, str | None], RunPair]:
        """Return the slices that are large enough for a verdict, and note the others."""
        from osmosis_ai.decisions.compare import FEWEST_ROWS
        from osmosis_ai.decisions.gate import rows_of
        from osmosis_ai.decisions.samples import by_slice

        parts = {}
        for column in self._asked.slices:
            for where, part in by_slice(pair, column).items():
                if rows_of(part) >= FEWEST_ROWS:
                    parts[where] = part
                else:
                    said = f"{column} = {where[1]}" if where[1] is not None else f"no {column}"
                    self._notes.append(
                        f"slice {said}: {rows_of(part)} rows; below {FEWEST_ROWS} there is no verdict."
                    )
        return parts


def settled_by(found: RuleResult, attempts: LabelledRun, confidence: float) -> RuleResult:
    """Add what would settle an inconclusive result, if known."""
    from osmosis_ai.decisions.gate import attempts_of, cost_of_attempt, settle, spread_of_run

    evidence, rule = found.evidence, found.rule
    if evidence.value is None or evidence.rows is None:
        return found
    spread = spread_of_run(attempts, rule.metric)
    if spread is None:
        return found
    words = settle(
        spread,
        evidence.value - rule.limit,
        evidence.rows,
        attempts_of(attempts.run),
        confidence=confidence,
        cost_attempt=cost_of_attempt(attempts.run),
    ).words
    return replace(found, settles=words)


def settled_by_counts(found: RuleResult, confidence: float) -> RuleResult:
    """Add how many independent rows would settle a share of which only counts are known."""
    from osmosis_ai.decisions.gate import settle
    from osmosis_ai.statistics.variance import VarianceComponents

    evidence, rule = found.evidence, found.rule
    share, rows = evidence.value, evidence.rows or evidence.samples
    if rule.metric not in ("pass_rate", *SHARES) or share is None or not rows:
        return found
    # Rows with identical outcomes give no variance estimate; assume that of a share at the limit.
    spread = VarianceComponents(share * (1 - share) or rule.limit * (1 - rule.limit), None, rows, 1.0)
    return replace(found, settles=settle(spread, share - rule.limit, rows, 1, confidence=confidence).words)
