"""What the pages for the next developer name exists: files, make targets, and nothing that was renamed since."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPOSITORY = Path(__file__).parents[2]
SOURCE = REPOSITORY / "src" / "osmosis_ai"
PAGES = [
    REPOSITORY / name
    for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "AGENTS.md", "SECURITY.md", "README.md")
] + sorted((REPOSITORY / "docs" / "design").glob("*.md"))
# A path has a slash and ends in a file's kind or in a slash; a placeholder such as `<name>` makes it none of ours.
PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)*(?:/|\.(?:py|md|toml|yml|sh))")
# Of a workspace or of a run, not of this repository.
ELSEWHERE = re.compile(
    r"(?:blobs|git|keys|runs|sources|trajectories|artifacts|rollout_trials|served_adapters|checkpoints)/"
)


def names(page: Path) -> Iterator[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for quoted in re.findall(r"`([^`\n]+)`", text):
        if PATH.fullmatch(quoted) and not ELSEWHERE.fullmatch(quoted):
            yield quoted


def is_there(name: str) -> bool:
    return (REPOSITORY / name).exists() or (SOURCE / name).exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    assert [name for name in names(page) if not is_there(name)] == []


def test_the_layers_are_those_that_import_linter_holds() -> None:
    table = (
        (REPOSITORY / "ARCHITECTURE.md")
        .read_text(encoding="utf-8")
        .partition("| layer |")[2]
        .partition("\n\n")[0]
    )
    rows = [re.findall(r"`(\w+)(?:\.py)?`", line.split("|")[2]) for line in table.splitlines()[2:]]
    assert {path.parent.name for path in SOURCE.glob("*/__init__.py")} <= {
        name for row in rows for name in row
    }
    held = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = [re.findall(r"osmosis_ai\.(\w+)", layer) for layer in held["contracts"][0]["layers"]]
    *lines, below_all = rows
    assert lines == layers[: len(lines)]
    rest = [name for layer in layers[len(lines) :] for name in layer]
    assert below_all == [name for name in rest if name in below_all]


def test_the_workflow_calls_targets_of_the_makefile_on_every_supported_python() -> None:
    workflow = yaml.safe_load(
        (REPOSITORY / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    )
    targets = set(
        re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert commands
    assert {command.removeprefix("make ") for command in commands} <= targets
    declared = re.findall(r"Python :: (3\.\d+)", (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    assert workflow["jobs"]["pythons"]["strategy"]["matrix"]["python"] == declared
    assert {name for name, job in workflow["jobs"].items() if "schedule" in job.get("if", "")} == {
        "pythons",
        "nightly",
    }
