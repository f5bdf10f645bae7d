"""Check whether two runs may be compared.

A comparison that would mislead is refused with the reason, and with the option that allows it if there is one. A
problem that only weakens a comparison is printed as a note, and gates ignore it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from osmosis_ai.decisions.samples import ComparedInputs, MatchedRows, RunSamples, counted_rows, match_rows
from osmosis_ai.errors import ConflictError

LEAST_SHARED = 0.5
"""Of the smaller run's rows: with fewer in common, a gate decides nothing."""
# Independent runs rarely agree in tokens; in rewards they do wherever most rows are easy or hard.
_SAME_BY_TOKENS, _SAME_BY_REWARD = 0.5, 0.9
_SHOWN_KEYS = 3


@dataclass(frozen=True)
class Allowances:
    """Differences that are refused unless the user allows them, each by the option of its name."""

    unpaired: bool = False
    partial: bool = False
    different_grader: bool = False
    same: bool = False


@dataclass(frozen=True)
class Comparability:
    """The matched rows of a comparison, and the notes next to its numbers."""

    matched: MatchedRows | None
    notes: tuple[str, ...] = ()
    label: str | None = None
    undecided: str | None = None


def require_comparable(a: RunSamples, b: RunSamples, allowed: Allowances | None = None) -> Comparability:
    """Check whether ``b`` may be compared with the baseline ``a``, and return the notes of the comparison."""
    allowed = allowed or Allowances()
    if a.run_id == b.run_id:
        raise ConflictError(
            f"{a.name} and {b.name} are the same run."
            if a.name != b.name
            else f"the run {a.name} is compared with itself.",
            details={"run_id": a.run_id},
            hint="name another run as the baseline",
        )
    undecided = [f"{run.name}: {run.unfinished}" for run in (a, b) if run.unfinished is not None]
    if undecided and not allowed.partial:
        raise ConflictError(undecided[0], hint="add --partial to compare the finished attempts")
    graders = differing_graders(a, b)
    if graders and not allowed.different_grader:
        raise ConflictError(
            f"{a.name} and {b.name} were graded by different rules: {'; '.join(graders)}.",
            details={"differs": graders},
            hint="use the same grader for both, or pass --allow-different-grader",
        )
    counts_only = [run.name for run in (a, b) if run.summary is not None]
    matched = None
    if counts_only or allowed.unpaired:
        notes = _unpaired_notes(a, b, counts_only)
    else:
        matched = match_rows(a, b)
        _require_common_rows(a, b, matched)
        if not allowed.same and _same_settings(a.inputs, b.inputs):
            # No difference between them is news.
            raise ConflictError(
                f"{a.name} and {b.name} have the same attempts: seed {a.inputs.seed}, model {a.inputs.model} and the "
                "same code.",
                hint="run one of them with another --seed, or pass --allow-same",
            )
        complete = not matched.only_a.size and not matched.only_b.size
        notes = [*([] if complete else [f"{matched.words}."]), *matched.notes, *_same_samples(a, b, matched)]
        if matched.share < LEAST_SHARED:
            undecided.append(
                f"only {matched.words}, {matched.share * 100:.0f}% of the smaller run: too few for a verdict."
            )
    return Comparability(
        matched=matched,
        notes=tuple(dict.fromkeys([*notes, *_weaknesses(a, b), *a.notes, *b.notes])),
        label=f"graded differently: {'; '.join(graders)}" if graders else None,
        undecided=next(iter(undecided), None),
    )


def require_vouched_for(run: RunSamples, *, allow_imported: bool) -> None:
    """Refuse, for a gate, a run that was uploaded: its platform has not seen it run."""
    if run.imported is not None and not allow_imported:
        raise ConflictError(
            f"the run {run.name} was imported ({run.imported}): the platform cannot vouch for its results.",
            hint="if you trust the uploader, pass --allow-imported",
        )


def differing_graders(a: RunSamples, b: RunSamples) -> list[str]:
    """Return the known differences between the graders of two runs, one clause each."""
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


def _same_settings(one: ComparedInputs, other: ComparedInputs) -> bool:
    """Whether all that samples depend on is known to be the same, apart from rows."""
    if one.settings_digest is not None and other.settings_digest is not None:
        return one.settings_digest == other.settings_digest
    if one.seed is None or one.model is None:
        return False
    if one.source_digest is not None and other.source_digest is not None:
        same_code = one.source_digest == other.source_digest
    else:
        clean = one.dirty is False and other.dirty is False
        same_commit = (one.commit, one.rollout) == (other.commit, other.rollout)
        same_code = clean and one.commit is not None and same_commit
    alike = ("seed", "model", "entrypoint", "env")
    return same_code and all(getattr(one, name) == getattr(other, name) for name in alike)


def _same_samples(a: RunSamples, b: RunSamples, matched: MatchedRows) -> list[str]:
    """Report runs with the same seed and nearly the same attempts: they are not independent draws."""
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


def _require_common_rows(a: RunSamples, b: RunSamples, matched: MatchedRows) -> None:
    if matched.common:
        return
    for run in (a, b):
        if not run.row_keys:
            raise ConflictError(
                f"the run {run.name} has no attempt yet: there is nothing to compare.",
                hint="wait for attempts, or run it again to resume",
            )

    def short(key: str) -> str:
        digest, colon, place = key.partition(":")
        return f"{digest[:12]}{colon}{place}"

    def rows_words(run: RunSamples) -> str:
        shown = ", ".join(map(short, run.row_keys[:_SHOWN_KEYS]))
        more = ", …" if len(run.row_keys) > _SHOWN_KEYS else ""
        dataset = run.inputs.dataset_name or "a dataset whose name is not known"
        return f"{run.name} has {counted_rows(len(run.row_keys))} of {dataset} ({shown}{more})"

    raise ConflictError(
        f"no row of {a.name} is in {b.name}: {rows_words(a)}; {rows_words(b)}.",
        details={"rows": [len(a.row_keys), len(b.row_keys)], "changed": len(matched.changed)},
        hint=(f"{matched.notes[-1].rstrip('.')}; " if matched.changed else "")
        + "--unpaired compares runs on different rows",
    )


def _unpaired_notes(a: RunSamples, b: RunSamples, counts_only: list[str]) -> list[str]:
    if counts_only:
        return [
            f"{name} has only counts, without rows: the runs are compared unpaired." for name in counts_only
        ]
    matched = match_rows(a, b)
    if not matched.common:
        return ["the runs have no row in common: they are compared unpaired."]
    return [
        f"the runs are compared unpaired, although {matched.words}; a paired comparison detects smaller differences."
    ]


def _weaknesses(a: RunSamples, b: RunSamples) -> Iterator[str]:
    """Yield what weakens a comparison without making it wrong."""
    one, other = a.inputs, b.inputs
    if one.n is not None and other.n is not None and one.n != other.n:
        first, second = ("one attempt" if n == 1 else f"{n} attempts" for n in (one.n, other.n))
        yield f"{first} a row in {a.name}, {second} in {b.name}: the means of rows are compared."
    alike = one.source_digest is not None and one.source_digest == other.source_digest
    known = alike or differing_graders(a, b)
    for run in (a, b):
        if run.summary is None and run.samples.size and not run.scored.any():
            yield f"no attempt of {run.name} has a score."
        if run.imported is not None:
            yield f"{run.name} was imported ({run.imported}): the platform cannot vouch for its results."
        if run.unfinished is not None:
            yield f"{run.name}: {run.unfinished}"
        if run.inputs.grader_digest is None and not known:
            yield f"The grader of {run.name} is unknown; the two runs may have been graded differently."
