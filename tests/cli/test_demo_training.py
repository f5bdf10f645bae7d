"""`osmosis demo --train`: its result, and what it refuses before it begins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.services import demo as service
from osmosis_ai.services.demo import DemoEvaluation, DemoOutcome, Scratch, TrainedRun
from tests.cli.conftest import Cli
from tests.lazily import needs


def evaluated(scratch: Scratch, name: str, model: str, pass_rate: float, scored: int) -> DemoEvaluation:
    estimate = {"value": pass_rate, "low": pass_rate - 0.05, "high": pass_rate + 0.05}
    counts = {"planned": 400, "scored": scored}
    return DemoEvaluation(
        name=name,
        results=scratch.workspace / ".osmosis" / "evals" / name,
        metrics={
            "eval_run": {"name": name, "model_name": model},
            "summary": {},
            "estimates": {"counts": counts, "pass_rate": estimate, "reward": estimate},
        },
        complete=scored == 400,
        sample=None,
        run=None,
    )


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replace what takes minutes; return the options of the call. ``scored`` may be changed."""
    needs("torch")  # the command refuses to begin without it
    asked: dict[str, Any] = {"scored": 400}

    def run(scratch: Scratch, **options: Any) -> DemoOutcome:
        asked.update(options)
        model = "osmosis/tiny:calm-fern-1-step-40"
        difference = {"value": 0.535, "low": 0.495, "high": 0.575, "rows": 100}
        return DemoOutcome(
            evaluated(scratch, "after", model, 0.9525, asked["scored"]),
            "http://127.0.0.1:8733" if options["keep"] else None,
            base=evaluated(scratch, "before", "osmosis/tiny", 0.4175, 400),
            training=TrainedRun(
                "calm-fern-1", options["seed"], [0.4, 0.9], 61.0, "calm-fern-1-step-40", model
            ),
            difference={"pass_rate": difference, "reward": difference},
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


def test_the_summary_names_both_pass_rates_and_the_adapter(
    cli: Cli, trained: dict[str, Any], tmp_path: Path
) -> None:
    result = cli("demo", "--train", "--keep", "--plain", "--keep-dir", str(tmp_path / "d"))
    assert result.status == 0, result.err
    assert result.out.splitlines()[0] == (
        "2 training steps in 1m 1s took the pass rate from 41.8 % to 95.2 % on rows that were not trained on."
    )
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
