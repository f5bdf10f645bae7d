"""`osmosis demo --train`: what it says of the model before and after, and what it refuses before it begins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.evaluation.comparison.numbers import Difference
from osmosis_ai.services import demo as service
from osmosis_ai.services.demo import DemoOutcome, Scratch
from osmosis_ai.services.demo.outcome import DemoEvaluation, TrainedRun
from tests.cli.conftest import Cli
from tests.lazily import needs


def evaluated(scratch: Scratch, name: str, model: str, pass_rate: float, scored: int) -> DemoEvaluation:
    estimate = {"value": pass_rate, "low": pass_rate - 0.05, "high": pass_rate + 0.05}
    counts = {
        "planned": 400,
        "scored": scored,
        "failed_by_boundary": {"agent": 400 - scored} if scored < 400 else {},
    }
    return DemoEvaluation(
        status=0,
        results=scratch.workspace / ".osmosis" / "evals" / name,
        metrics={
            "eval_run": {"name": name, "model_name": model},
            "summary": {},
            "estimates": {
                "counts": counts,
                "pass_threshold": 1.0,
                "pass_rate": estimate,
                "reward": estimate,
                "tokens": {"per_sample": 94.1},
            },
        },
        sample=None,
        run=None,
    )


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replace what takes minutes; return what it was asked for. ``scored`` may be changed."""
    needs("torch")  # the command refuses to begin without it
    asked: dict[str, Any] = {"scored": 400}

    def run(scratch: Scratch, **options: Any) -> DemoOutcome:
        asked.update(options)
        model = "osmosis/tiny:calm-fern-1-step-40"
        difference = Difference(0.535, 0.495, 0.575, 0.5, 0.57, 100, 800, "paired-t", 0.0)
        return DemoOutcome(
            scratch,
            evaluated(scratch, "after", model, 0.9525, asked["scored"]),
            "http://127.0.0.1:8733" if options["keep"] else None,
            base=evaluated(scratch, "before", "osmosis/tiny", 0.4175, 400),
            run=TrainedRun("calm-fern-1", options["seed"], (0.4, 0.9), 61.0, "calm-fern-1-step-40", model),
            pass_rate=difference,
            reward=difference,
        )

    monkeypatch.setattr(service, "run_demo", run)
    return asked


def test_scripts_get_one_document_with_both_pass_rates_and_their_paired_difference(
    cli: Cli, trained: dict[str, Any], tmp_path: Path
) -> None:
    result = cli("demo", "--train", "--seed", "2", "--json", "--keep-dir", str(tmp_path / "d"))
    assert result.status == 0, result.err
    document = json.loads(result.out)
    assert (document["base"]["pass_rate"], document["trained"]["pass_rate"]) == (0.4175, 0.9525)
    assert document["trained"]["model"] == "osmosis/tiny:calm-fern-1-step-40"
    assert (document["difference"]["pass_rate"]["low"], document["training_run"]["seed"]) == (0.495, 2)
    assert document["training_run"]["rewards"] == [0.4, 0.9]
    assert (document["operation"], document["status"]) == ("demo", "success")


def test_people_see_both_side_by_side(cli: Cli, trained: dict[str, Any], tmp_path: Path) -> None:
    trained["scored"] = 399
    result = cli("demo", "--train", "--keep", "--plain", "--keep-dir", str(tmp_path / "d"))
    assert result.status == 1, result.err
    lines = result.out.splitlines()
    assert lines[0] == (
        "2 training steps in 1m 1s took the pass rate from 41.8 % to 95.2 % on rows that were not trained on."
    )
    assert (
        "Pass rate (reward >= 1.0, scored samples only)\t41.8 % (36.8 – 46.8)\t95.2 % (90.2 – 100.2)\t"
        "+53.5 points (+49.5 – +57.5)"
    ) in lines
    assert "Samples scored\t400 of 400 planned\t399 of 400 planned\t–" in lines
    assert "Samples failed\t0\t1: 1 agent\t–" in lines
    assert "paired over the 100 rows" in result.out
    assert "model download calm-fern-1-step-40" in result.out
    assert trained["seed"] == 0


def test_a_sample_that_is_not_scored_makes_the_demo_fall_short(
    cli: Cli, trained: dict[str, Any], tmp_path: Path
) -> None:
    trained["scored"] = 399
    result = cli("demo", "--train", "--json", "--keep-dir", str(tmp_path / "d"))
    assert (result.status, json.loads(result.out)["status"]) == (1, "partial")


@pytest.mark.parametrize(
    "options", [("--train", "--local"), ("--seed", "1"), ("--train", "--keep", "--clean")]
)
def test_what_does_not_go_together_is_refused_before_anything_is_done(
    cli: Cli, options: tuple[str, ...], tmp_path: Path
) -> None:
    result = cli("demo", *options, "--keep-dir", str(tmp_path / "d"))
    assert (result.status, result.out) == (1, "")
    assert not (tmp_path / "d").exists()


def test_without_the_extra_it_says_which_to_install_before_anything_is_done(
    cli: Cli, trained: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from osmosis_ai import training

    monkeypatch.setattr(training, "find_spec", lambda name: None)
    result = cli("demo", "--train", "--json", "--keep-dir", str(tmp_path / "d"))
    error = json.loads(result.err)["error"]
    assert "`train` extra" in error["message"] and "[train]" in error["hint"]
    assert not (tmp_path / "d").exists()
