"""What runs were not computed from alike: what may explain a difference, or spoil it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_ai.evaluation.comparison.run_samples import ComparedInputs, RunSamples

_DIGEST_CHARACTERS = 12


@dataclass(frozen=True, slots=True)
class InputDifference:
    """An input that runs do not share."""

    name: str
    values: tuple[str | None, ...]

    def data(self) -> dict[str, Any]:
        """Return it as scripts see it."""
        return {"input": self.name, "values": list(self.values)}


def input_differences(runs: Sequence[RunSamples]) -> Iterator[InputDifference]:
    """Yield each input of which not all runs have the same."""
    for name, value in _INPUTS.items():
        values = tuple(value(run.inputs) for run in runs)
        if len(set(values)) > 1:
            yield InputDifference(name, values)
    rows = tuple(f"{len(run.row_keys):,}" if run.row_keys else None for run in runs)
    if len(set(rows)) > 1:
        yield InputDifference("distinct rows", rows)


def _digest(text: str | None) -> str | None:
    return None if text is None else text.removeprefix("sha256:")[:_DIGEST_CHARACTERS]


def _commit(inputs: ComparedInputs) -> str | None:
    if inputs.commit is None:
        return None
    return f"{inputs.commit[:_DIGEST_CHARACTERS]}{' with changes' if inputs.dirty else ''}"


def _number(number: float | None) -> str | None:
    return None if number is None else f"{number:g}"


def _whole(number: int | None) -> str | None:
    """Return every digit: of large seeds the last ones tell them apart."""
    return None if number is None else str(number)


_INPUTS: dict[str, Callable[[ComparedInputs], str | None]] = {
    "model": lambda inputs: inputs.model,
    "rollout": lambda inputs: inputs.rollout,
    "entrypoint": lambda inputs: inputs.entrypoint,
    "commit": _commit,
    "code": lambda inputs: _digest(inputs.source_digest),
    "grader": lambda inputs: _digest(inputs.grader_digest),
    "judges": lambda inputs: ", ".join(inputs.judges) or None,
    "passes at": lambda inputs: _number(inputs.pass_threshold),
    "n": lambda inputs: _whole(inputs.n),
    "seed": lambda inputs: _whole(inputs.seed),
    "dataset": lambda inputs: inputs.dataset_name,
    "dataset's content": lambda inputs: _digest(inputs.dataset_sha256),
    "config": lambda inputs: inputs.config,
}
