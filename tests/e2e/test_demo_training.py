"""The whole way as a newcomer sees it: evaluate, train, deploy, evaluate again, through a platform of one's own."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from osmosis_ai.services import demo as service
from osmosis_ai.services.demo import CONFIG, TRAINING_CONFIG, Scratch, prepare_scratch, run_demo
from tests.warm_osmosis import warm_osmosis

pytestmark = pytest.mark.e2e

SEED = 1
"""Any will do: seeds 0, 1 and 2 end between 93% and 95%."""
STEPS = 12


def make_short(scratch: Scratch) -> None:
    """A quarter of the rows, and as many steps of half the prompts as show that something was learned."""
    for config, changes in {
        CONFIG: {"limit = 100": "limit = 25"},
        TRAINING_CONFIG: {
            "max_steps = 40": f"max_steps = {STEPS}",
            "eval_interval = 10": f"eval_interval = {STEPS}",
            "rollout_batch_size = 16": "rollout_batch_size = 8",
            "lr = 1e-3": "lr = 2e-3",
        },
    }.items():
        text = (scratch.workspace / config).read_text()
        for key, short in changes.items():
            assert key in text
            text = text.replace(key, short)
        (scratch.workspace / config).write_text(text)


def test_short_training_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_PROGRAM", tuple(warm_osmosis(torch=True)))
    scratch = prepare_scratch(tmp_path / "demo")
    make_short(scratch)
    demo = run_demo(scratch, show=lambda _: nullcontext(lambda _: None), local=False, keep=False, seed=SEED)
    assert demo.base is not None and demo.training is not None and demo.difference is not None
    assert demo.base.complete and demo.evaluation.complete
    base, trained = (found.metrics["estimates"] for found in (demo.base, demo.evaluation))
    assert base["counts"]["scored"] == trained["counts"]["scored"] == 100
    difference = demo.difference["pass_rate"]
    assert difference["value"] == pytest.approx(trained["pass_rate"]["value"] - base["pass_rate"]["value"])
    assert difference["rows"] == 25 and difference["low"] > 0.1
    assert set(demo.difference) == {"pass_rate", "reward"}
    assert (demo.training.seed, len(demo.training.rewards)) == (SEED, STEPS)
    assert demo.training.model == f"osmosis/tiny:{demo.training.checkpoint}"


@pytest.mark.nightly
def test_training_demo(tmp_path: Path, home: Path) -> None:
    before = sorted(home.rglob("*"))
    options = ["--train", "--seed", str(SEED), "--json", "--keep-dir", str(tmp_path / "demo")]
    demo = subprocess.run(
        [sys.executable, "-m", "osmosis_ai", "demo", *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert demo.returncode == 0, demo.stderr
    document = json.loads(demo.stdout)
    base, trained = document["base"], document["trained"]
    assert 0.3 < base["pass_rate"] < 0.5
    assert trained["pass_rate"] > 0.85
    assert base["scored"] == trained["scored"] == 400
    difference = document["difference"]["pass_rate"]
    assert difference["value"] == pytest.approx(trained["pass_rate"] - base["pass_rate"])
    assert difference["rows"] == 100 and difference["low"] > 0.3
    run = document["training_run"]
    assert (run["seed"], len(run["rewards"])) == (SEED, 40)
    assert trained["model"] == f"osmosis/tiny:{run['checkpoint']}"
    assert sorted(home.rglob("*")) == before
