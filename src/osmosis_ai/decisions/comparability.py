"""Whether two runs may be compared at all.

A comparison that would mislead is refused with what is wrong with it, and the option that allows it all the same
where one does. What only weakens it is said beside the numbers, and no gate decides on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from osmosis_ai.decisions.samples import ComparedInputs, MatchedRows, RunSamples, counted_rows, match_rows
from osmosis_ai.errors import ConflictError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


LEAST_SHARED = 0.5
"""Of the smaller run's rows: with fewer in common, a gate decides nothing."""
# Independent runs rarely agree in tokens; in rewards they do wherever most rows are easy or hard.
_SAME_BY_TOKENS, _SAME_BY_REWARD = 0.5, 0.9
_SHOWN_KEYS = 3


@dataclass(frozen=True)
class Allowances:
    """What the user allows that is refused otherwise, each the option of its name."""

    unpaired: bool = False
    partial: bool = False
    different_grader: bool = False
    same: bool = False


@dataclass(frozen=True)
class Comparability:
    """What a comparison of two runs has to say beside its numbers."""

    matched: MatchedRows | None
    notes: tuple[str, ...] = ()
    label: str | None = None
    undecided: str | None = None


def require_comparable(a: RunSamples, b: RunSamples, allowed: Allowances | None = None) -> Comparability:
    """Find out whether ``b`` may be compared with the baseline ``a``, and what is to be said of it."""
    allowed = allowed or Allowances()
    _require_two_runs(a, b)
    undecided = [_require_finished(run, allowed) for run in (a, b)]
    label = _require_same_grader(a, b, allowed)
    counts_only = [run.name for run in (a, b) if run.summary is not None]
    if counts_only or allowed.unpaired:
        matched, notes = None, _unpaired_notes(a, b, counts_only)
    else:
        matched = match_rows(a, b)
        notes = [*_require_common_rows(a, b, matched), *matched.notes]
        undecided.append(_too_few_common(matched))
        if matched.common:
            _require_other_samples(a, b, allowed)
            notes += _same_samples(a, b, matched)
    said = [*notes, *_weaknesses(a, b), *a.notes, *b.notes]
    return Comparability(
        matched=matched,
        notes=tuple(dict.fromkeys(said)),
        label=label,
        undecided=next(filter(None, undecided), None),
    )


def require_vouched_for(run: RunSamples, *, allow_imported: bool) -> None:
    """Refuse, for a gate, a run that was uploaded: its platform has not seen it run."""
    if run.imported is not None and not allow_imported:
        raise ConflictError(
            f"the run {run.name} was imported ({run.imported}): the platform cannot vouch for its results.",
            hint="if you trust who uploaded it, gate it with --allow-imported",
        )


def differing_graders(a: RunSamples, b: RunSamples) -> list[str]:
    """Return what differs between how two runs were graded, as far as it is known of both; a clause each."""
    one, other = a.inputs, b.inputs
    found = []
    digests = [one.grader_digest, other.grader_digest]
    if None not in digests and digests[0] != digests[1]:
        same_files = one.source_digest is not None and one.source_digest == other.source_digest
        what = "the variables or time limit of the grader" if same_files else "the grader"
        found.append(f"{what} (digests {str(digests[0])[:12]} and {str(digests[1])[:12]})")
    if one.judges and other.judges and one.judges != other.judges:
        found.append(f"the judge ({', '.join(one.judges)} and {', '.join(other.judges)})")
    if one.eval_functions != other.eval_functions:
        named = [", ".join(inputs.eval_functions) or "none" for inputs in (one, other)]
        found.append(f"the eval functions ({named[0]} and {named[1]})")
    if one.pass_threshold != other.pass_threshold:
        found.append(f"pass_threshold ({one.pass_threshold:g} and {other.pass_threshold:g})")
    return found


def _require_two_runs(a: RunSamples, b: RunSamples) -> None:
    if a.run_id == b.run_id:
        raise ConflictError(
            f"{a.name} and {b.name} are the same run."
            if a.name != b.name
            else f"the run {a.name} is compared with itself.",
            details={"run_id": a.run_id},
            hint="name another run as the baseline",
        )


def _require_finished(run: RunSamples, allowed: Allowances) -> str | None:
    if run.unfinished is None:
        return None
    if not allowed.partial:
        raise ConflictError(
            f"{run.name}: {run.unfinished}",
            hint="add --partial to compare the finished attempts",
        )
    return f"{run.name}: {run.unfinished}"


def _require_same_grader(a: RunSamples, b: RunSamples, allowed: Allowances) -> str | None:
    found = differing_graders(a, b)
    if not found:
        return None
    if not allowed.different_grader:
        raise ConflictError(
            f"{a.name} and {b.name} were graded by different rules: {'; '.join(found)}.",
            details={"differs": found},
            hint="a difference may be the grader's: grade both alike, or allow it with --allow-different-grader",
        )
    return f"graded differently: {'; '.join(found)}"


def _require_other_samples(a: RunSamples, b: RunSamples, allowed: Allowances) -> None:
    """Refuse runs whose samples are the same by what they were computed from: no difference between them is news."""
    one, other = a.inputs, b.inputs
    if not allowed.same and _same_settings(one, other):
        raise ConflictError(
            f"{a.name} and {b.name} have the same samples: seed {one.seed}, model {one.model} and the same code.",
            hint="give one another --seed; or compare them all the same with --allow-same",
        )


def _same_settings(one: ComparedInputs, other: ComparedInputs) -> bool:
    """Tell whether all that samples depend on is known to be the same, rows aside."""
    if one.settings_digest is not None and other.settings_digest is not None:
        return one.settings_digest == other.settings_digest
    alike = ("seed", "model", "entrypoint", "env")
    known = one.seed is not None and one.model is not None
    return (
        known and _same_code(one, other) and all(getattr(one, name) == getattr(other, name) for name in alike)
    )


def _same_code(one: ComparedInputs, other: ComparedInputs) -> bool:
    if one.source_digest is not None and other.source_digest is not None:
        return one.source_digest == other.source_digest
    clean = one.dirty is False and other.dirty is False
    return clean and one.commit is not None and (one.commit, one.rollout) == (other.commit, other.rollout)


def _same_samples(a: RunSamples, b: RunSamples, matched: MatchedRows) -> list[str]:
    """Report runs with the same seed and nearly the same attempts: they are not independent draws."""
    import numpy as np

    one, other = a.inputs, b.inputs
    if one.seed is None or (one.seed, one.model) != (other.seed, other.model):
        return []
    of_a, of_b = _common_attempts(a, b, matched)
    same = of_a["reward"] == of_b["reward"]
    tokens_a, tokens_b = of_a["tokens"], of_b["tokens"]
    counted = np.isfinite(tokens_a) & np.isfinite(tokens_b)
    # A constant identifies no attempt.
    by_tokens = np.unique(tokens_a[counted]).size > 1
    if by_tokens:
        same &= ~counted | (tokens_a == tokens_b)
    elif np.unique(of_a["reward"][same]).size < 2:
        return []
    if same.mean() < (_SAME_BY_TOKENS if by_tokens else _SAME_BY_REWARD):
        return []
    what = "reward and tokens" if by_tokens else "reward"
    return [
        f"{a.name} and {b.name} share seed {one.seed}, and {np.count_nonzero(same):,} of {same.size:,} attempts have the "
        f"same {what}: the comparison says little about other seeds."
    ]


def _common_attempts(
    a: RunSamples, b: RunSamples, matched: MatchedRows
) -> tuple[NDArray[np.void], NDArray[np.void]]:
    """Return the attempts that both runs made on their common rows, pairwise; only the first of copies of a row."""
    import numpy as np

    found = []
    for run, rows in ((a, matched.index_a), (b, matched.index_b)):
        places = np.full(len(run.row_keys), -1, dtype=np.int64)
        places[rows] = np.arange(len(rows))
        place = places[run.samples["row"]]
        common = np.flatnonzero(place >= 0)
        names = place[common] << 32 | run.samples["attempt"][common]
        names, first = np.unique(names, return_index=True)
        found.append((names, run.samples[common[first]]))
    (names_a, samples_a), (names_b, samples_b) = found
    _, in_a, in_b = np.intersect1d(names_a, names_b, assume_unique=True, return_indices=True)
    return samples_a[in_a], samples_b[in_b]


def _require_common_rows(a: RunSamples, b: RunSamples, matched: MatchedRows) -> list[str]:
    if matched.common:
        complete = not matched.only_a.size and not matched.only_b.size
        return [] if complete else [f"{matched.words}."]
    for run in (a, b):
        if not run.row_keys:
            raise ConflictError(
                f"the run {run.name} has no attempt yet: there is nothing to compare.",
                hint="wait until it has some, or run it again to go on",
            )
    raise ConflictError(
        f"no row of {a.name} is in {b.name}: {_rows_words(a)}; {_rows_words(b)}.",
        details={"rows": [len(a.row_keys), len(b.row_keys)], "changed": len(matched.changed)},
        hint=(f"{matched.notes[-1].rstrip('.')}; " if matched.changed else "")
        + "to compare them as runs on different rows: --unpaired",
    )


def _rows_words(run: RunSamples) -> str:
    """Return ``run-a has 100 rows of multiply (1f2e…, …)``."""
    shown = ", ".join(_short(key) for key in run.row_keys[:_SHOWN_KEYS])
    more = ", …" if len(run.row_keys) > _SHOWN_KEYS else ""
    dataset = run.inputs.dataset_name or "a dataset whose name is not known"
    return f"{run.name} has {counted_rows(len(run.row_keys))} of {dataset} ({shown}{more})"


def _short(key: str) -> str:
    digest, colon, place = key.partition(":")
    return f"{digest[:12]}{colon}{place}"


def _too_few_common(matched: MatchedRows) -> str | None:
    if matched.share >= LEAST_SHARED:
        return None
    return f"only {matched.words}, {matched.share * 100:.0f} % of the smaller run: what they say of the others is a guess."


def _unpaired_notes(a: RunSamples, b: RunSamples, counts_only: list[str]) -> list[str]:
    if counts_only:
        return [
            f"of {name} only counts are known, not which row a sample is of: the runs are compared unpaired."
            for name in counts_only
        ]
    matched = match_rows(a, b)
    if not matched.common:
        return ["the runs have no row in common: they are compared unpaired."]
    return [f"the runs are compared unpaired, although {matched.words}: paired, smaller differences show."]


def _weaknesses(a: RunSamples, b: RunSamples) -> Iterator[str]:
    """Yield what weakens a comparison without making it wrong."""
    one, other = a.inputs, b.inputs
    if one.n is not None and other.n is not None and one.n != other.n:
        yield f"{_attempts(one.n)} a row in {a.name}, {_attempts(other.n)} in {b.name}: the means of rows are compared."
    for run in (a, b):
        if run.summary is None and run.samples.size and not run.scored.any():
            yield f"no attempt of {run.name} has a score."
        if run.imported is not None:
            yield f"{run.name} was imported ({run.imported}): the platform cannot vouch for its results."
        if run.unfinished is not None:
            yield f"{run.name}: {run.unfinished}"
        if run.inputs.grader_digest is None and _may_be_graded_differently(a, b):
            yield f"The grader of {run.name} is unknown; the two runs may have been graded differently."


def _may_be_graded_differently(a: RunSamples, b: RunSamples) -> bool:
    """Whether it is unknown if two runs, one of them without a grader digest, were graded alike."""
    one, other = a.inputs, b.inputs
    alike = one.source_digest is not None and one.source_digest == other.source_digest
    return not (alike or differing_graders(a, b))


def _attempts(n: int) -> str:
    return "one attempt" if n == 1 else f"{n} attempts"
