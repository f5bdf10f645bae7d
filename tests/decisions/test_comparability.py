"""Whether two runs can be compared, which of their rows match, and the numbers of a slice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.decisions.comparability import Allowances, require_comparable
from osmosis_ai.decisions.samples import RunSamples, match_rows, run_slices
from osmosis_ai.errors import ConflictError
from tests.decisions.builders import INPUTS, run_of


def other_model(**fields: Any) -> Any:
    return replace(INPUTS, **{"model": "another", **fields})


def test_no_common_rows() -> None:
    a = run_of([[1.0]] * 4, name="a", keys=[f"{row:032x}" for row in range(1, 5)])
    b = run_of(
        [[1.0]], name="b", keys=["f" * 32], inputs=other_model(dataset_name="divide", dataset_sha256="e" * 64)
    )
    with pytest.raises(ConflictError, match="no row of a is in b") as caught:
        require_comparable(a, b)
    assert "a has 4 rows of multiply (000000000000, 000000000000, 000000000000, …)" in caught.value.message
    assert "b has 1 row of divide (ffffffffffff)" in caught.value.message
    assert "--unpaired" in caught.value.hint
    found = require_comparable(a, b, Allowances(unpaired=True))
    assert found.matched is None
    assert "unpaired" in found.notes[0]


def test_few_common_rows() -> None:
    a = run_of([[1.0]] * 10, name="a")
    b = run_of([[1.0]] * 12, name="b", keys=[f"row-{row}" for row in range(6, 18)])
    found = require_comparable(a, b)
    assert found.notes[0] == "4 rows are in both runs, of 10 and 12."
    assert "40% of the smaller run" in found.undecided
    half = run_of([[1.0]] * 12, name="b", keys=[f"row-{row}" for row in range(5, 17)])
    assert require_comparable(a, half).undecided is None


def test_changed_ground_truth(tmp_path: Path) -> None:
    def run(name: str, answers: list[str]) -> Any:
        file = tmp_path / f"{name}.jsonl"
        lines = [
            {"user_prompt": f"question {row}", "ground_truth": answer} for row, answer in enumerate(answers)
        ]
        file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return run_of(
            [[1.0]] * len(answers),
            name=name,
            keys=[f"{row}-{answer}" for row, answer in enumerate(answers)],
            inputs=other_model(model=name, dataset_sha256=name * 64),
            open_dataset=lambda: file,
        )

    found = require_comparable(run("a", ["1", "2", "3"]), run("b", ["1", "4", "3"]))
    assert [(row.a, row.b) for row in found.matched.changed] == [(1, 1)]
    assert "1 row with the same prompt" in " ".join(found.notes)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"grader_digest": "8" * 64},
            "the variables or time limit of the grader (digests 999999999999 and 88",
        ),
        ({"grader_digest": "8" * 64, "source_digest": "6" * 64}, "the grader (digests 999999999999"),
        ({"judges": ("gpt-y",)}, "the judge (gpt-x and gpt-y)"),
        ({"pass_threshold": 0.5}, "pass_threshold (1 and 0.5)"),
    ],
)
def test_different_graders(fields: dict[str, Any], said: str) -> None:
    a = run_of([[1.0]], name="a", inputs=replace(INPUTS, judges=("gpt-x",)))
    b = run_of([[1.0]], name="b", inputs=other_model(**{"judges": ("gpt-x",), **fields}))
    with pytest.raises(ConflictError, match="graded by different rules") as caught:
        require_comparable(a, b)
    assert said in caught.value.message
    label = require_comparable(a, b, Allowances(different_grader=True)).label
    assert label.startswith("graded differently: ")


def test_unknown_grader() -> None:
    a = run_of([[1.0]], name="a", inputs=replace(INPUTS, grader_digest=None))
    b = run_of([[1.0]], name="b", inputs=other_model(source_digest="6" * 64, judges=INPUTS.judges))
    said = "The grader of a is unknown"
    assert any(said in note for note in require_comparable(a, b).notes)
    same = replace(b, inputs=replace(b.inputs, source_digest=INPUTS.source_digest))
    assert not any(said in note for note in require_comparable(a, same).notes)


def test_identical_samples() -> None:
    a, b = run_of([[1.0]], name="a", inputs=INPUTS), run_of([[1.0]], name="b", inputs=INPUTS)
    with pytest.raises(ConflictError, match=r"a and a\.archive are the same run"):
        require_comparable(a, replace(a, name="a.archive"), Allowances(same=True))
    with pytest.raises(ConflictError, match="have the same attempts: seed 0, model osmosis/tiny"):
        require_comparable(a, b)
    for change in ({"seed": 1}, {"source_digest": "6" * 64}, {"env": {"STYLE": "terse"}}):
        assert require_comparable(a, replace(b, inputs=replace(INPUTS, **change))).notes == ()


def test_unfinished_run() -> None:
    sentence = "the run is not finished: 3 of 4 attempts are pending; run it again to go on."
    a = run_of([[1.0]], name="a")
    b = run_of([[1.0]], name="b", unfinished=sentence)
    with pytest.raises(ConflictError, match=r"b: the run is not finished") as caught:
        require_comparable(a, b)
    assert "--partial" in caught.value.hint
    found = require_comparable(a, b, Allowances(partial=True))
    assert found.undecided == f"b: {sentence}"


def test_rows_without_digests() -> None:
    a = run_of([[1.0]] * 2, name="a", keyed_by="dataset-and-index", keys=["d:0", "d:1"], notes=("imported.",))
    found = require_comparable(a, run_of([[1.0]] * 2, name="b"))
    assert found.matched.common == 2
    assert "imported." in found.notes
    elsewhere = run_of([[1.0]] * 2, name="b", inputs=other_model(dataset_sha256="e" * 64, dataset_name="x"))
    with pytest.raises(ConflictError, match="no row of a is in b"):
        require_comparable(a, elsewhere)


@pytest.mark.parametrize(
    ("differing", "same"), [({}, 6), ({"tokens": 1}, 5), ({"reward": 1}, 5), ({"reward": 4}, None)]
)
def test_shared_seed_note(differing: dict[str, int], same: int | None) -> None:
    rewards = [[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]
    a = run_of(rewards, name="a", keys=["x", "y", "z"])
    b = run_of(
        [*reversed(rewards), [1.0, 0.0]],
        name="b",
        keys=["z", "y", "x", "w"],
        inputs=replace(INPUTS, commit="e" * 40, source_digest="6" * 64),
    )
    a = replace(a, inputs=replace(INPUTS, source_digest="5" * 64))
    for run in (a, b):
        order = [run.row_keys[row] for row in run.samples["row"]]
        run.samples["tokens"] = [100.0 + ord(key) for key in order]
    for field, count in differing.items():
        b.samples[field][:count] += 0.5
    note = (
        f"a and b share seed 0, and {same} of 6 attempts have the same reward and tokens: the comparison says little "
        "about other seeds."
    )
    notes = require_comparable(a, b).notes
    assert (note in notes) if same else not any("share seed" in each for each in notes)
    # Equal results of different seeds have no note.
    other = replace(b, inputs=replace(b.inputs, seed=1))
    assert not any("share seed" in each for each in require_comparable(a, other).notes)


def sliced(tmp_path: Path, rewards: list[list[float | None]], values: list[str | None]) -> RunSamples:
    """Return a run on a dataset whose rows have these values of `topic`, and their number in their metadata."""
    dataset = tmp_path / "data.jsonl"
    rows = [{"user_prompt": f"{n}", "topic": value, "metadata": {"n": n}} for n, value in enumerate(values)]
    dataset.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run_of(rewards, open_dataset=lambda: dataset)


def test_run_slices(tmp_path: Path) -> None:
    rewards: list[list[float | None]] = [[1.0, 1.0], [0.0, 1.0], [0.0, None], [1.0, 0.0], [None, None]]
    run = sliced(tmp_path, rewards, ["b", "a", "b", None, "c"])
    assert [(each.column, each.value) for each in run_slices(run, ["n", "topic"])][4:6] == [
        ("n", "4"),
        ("topic", "a"),
    ]
    found = run_slices(run, ["topic", "topic"])
    assert [(each.value, each.rows) for each in found] == [("a", 1), ("b", 2), ("c", 1), (None, 1)]
    rates = [each.pass_rate.value if each.pass_rate else None for each in found]
    assert rates == [0.5, 0.5, None, 0.5]
    b = found[1].pass_rate
    assert (b.n, b.clusters) == (3, 2)
    assert found[2].data()["reward"]["reason"] == "nothing to compare"


def test_match_rows() -> None:
    matched = match_rows(
        run_of([[1.0]] * 3, keys=["a", "b", "c"]), run_of([[0.0]] * 4, keys=["c", "x", "a", "y"])
    )
    assert matched.index_a.tolist() == [0, 2]
    assert matched.index_b.tolist() == [2, 0]
    assert (matched.only_a.tolist(), matched.only_b.tolist()) == ([1], [1, 3])
    assert matched.words == "2 rows are in both runs, of 3 and 4"
    assert matched.share == 2 / 3
