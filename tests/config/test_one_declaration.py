"""A config key is declared in one place: adding one is one edit, and nothing else lists the keys of a section."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import osmosis_ai
from osmosis_ai.config.checks import EVAL, TRAINING
from osmosis_ai.config.reference import SECTIONS
from tests.package_source import syntax_trees

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


@pytest.mark.integration
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


_NOT_A_CONFIG = {
    # `osmosis eval -m` reads none: its options have defaults, bounds and meanings of their own.
    "services/classic_eval.py",
    # What a finished run elsewhere was made from: objects with digests where a config has names.
    "api/wire/eval_imports.py",
}


@pytest.mark.imports_much
def test_no_key_is_declared_or_listed_a_second_time() -> None:
    again = [
        f"{path}:{line} {section}"
        for path, tree in syntax_trees().items()
        if not path.startswith("config/") and path not in _NOT_A_CONFIG
        for line, section in _declared_again(tree)
    ]
    assert again == []


_KEYS = {section: frozenset(model.model_fields) for section, model in SECTIONS.items()}
# What a run was started with is in many messages about it; they do not say how it is written.
_REQUIRED = {
    section: {key for key, field in model.model_fields.items() if field.is_required()}
    for section, model in SECTIONS.items()
}


def _declared_again(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield where a class has fields named like keys of a section, and where a literal lists all keys of one.

    Two fields are few enough to be those of a part that is told what it needs.
    """
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):
            fields = [field.target for field in node.body if isinstance(field, ast.AnnAssign)]
            names = {field.id for field in fields if isinstance(field, ast.Name)}
            for section, keys in _KEYS.items():
                if len(names & keys) >= min(3, len(keys)) and _REQUIRED[section] <= names:
                    yield node.lineno, section
        elif isinstance(node, (ast.Tuple, ast.List, ast.Set, ast.Dict)):
            items = node.keys if isinstance(node, ast.Dict) else node.elts
            listed = {item.value for item in items if isinstance(item, ast.Constant)}
            yield from ((node.lineno, section) for section, keys in _KEYS.items() if keys <= listed)
