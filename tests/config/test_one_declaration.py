"""A config key is declared in one place: adding one is one edit."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import osmosis_ai
from osmosis_ai.config.checks import EVAL, TRAINING

PACKAGE = Path(osmosis_ai.__file__).parent
ADDED = {
    "EvaluationSettings": "added_to_evaluation",
    "TrainingSection": "added_to_training",
    "SamplingSection": "added_to_sampling",
    "CheckpointsSection": "added_to_checkpoints",
    "AdvancedSection": "added_to_advanced",
}
DECLARATION = "    {key}: Count = Field(default=3, description='a key that a test has added')\n\n\n"


@pytest.fixture(scope="module")
def package_with_a_key_more(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the package as it is, but for one line more at the end of each section."""
    copy = tmp_path_factory.mktemp("src") / "osmosis_ai"
    copy.mkdir()
    for entry in PACKAGE.iterdir():
        if entry.name not in ("config", "__pycache__"):
            (copy / entry.name).symlink_to(entry)
    shutil.copytree(PACKAGE / "config", copy / "config", ignore=shutil.ignore_patterns("__pycache__"))
    edits = 0
    for file in ("sections.py", "training.py"):
        lines = (copy / "config" / file).read_text().splitlines(keepends=True)
        classes = [node for node in ast.parse("".join(lines)).body if isinstance(node, ast.ClassDef)]
        for found in reversed(classes):
            if found.name in ADDED:
                lines.insert(found.end_lineno or 0, DECLARATION.format(key=ADDED[found.name]))
                edits += 1
        (copy / "config" / file).write_text("".join(lines))
    assert edits == len(ADDED)
    return copy.parent


def test_a_key_that_is_declared_is_known_everywhere(package_with_a_key_more: Path, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, str(Path(__file__).with_name("key_added.py")), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(package_with_a_key_more)},
        check=True,
        timeout=120,
    )


def test_the_body_of_a_submit_has_a_part_for_every_section() -> None:
    from osmosis_ai.api.wire.runs import EvalRunSubmit, TrainingRunSubmit

    for kind, body in ((EVAL, EvalRunSubmit), (TRAINING, TrainingRunSubmit)):
        assert list(body.model_fields) == [*kind.parts, "secrets"]
