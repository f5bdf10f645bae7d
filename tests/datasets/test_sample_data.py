from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from osmosis_ai.datasets import validate_dataset

ROOT = Path(__file__).resolve().parents[2]
NAMES = {"multiply": 200, "multiply_train": 2000}


def factors_of(name: str) -> set[tuple[int, ...]]:
    pairs = set()
    for line in (ROOT / "data" / f"{name}.jsonl").read_text().splitlines():
        row = json.loads(line)
        a, b = sorted(int(digits) for digits in re.findall(r"\d+", row["user_prompt"]))
        assert row["ground_truth"] == str(a * b)
        pairs.add((a, b))
    return pairs


def test_the_sample_files_are_valid_datasets() -> None:
    for name, rows in NAMES.items():
        report = validate_dataset(ROOT / "data" / f"{name}.jsonl")
        assert (report.valid, report.row_count, report.warnings) == (True, rows, [])


def test_training_never_shows_a_product_of_the_evaluation() -> None:
    evaluation, training = factors_of("multiply"), factors_of("multiply_train")
    assert (len(evaluation), len(training)) == (200, 2000)
    assert not evaluation & training


@pytest.mark.integration
def test_the_script_makes_the_files_that_are_kept(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "make_multiply_data.py"
    command = [sys.executable, str(script), "--directory", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    for name in NAMES:
        made, kept = tmp_path / f"{name}.jsonl", ROOT / "data" / f"{name}.jsonl"
        assert made.read_bytes() == kept.read_bytes()
