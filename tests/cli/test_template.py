"""Templates: agents that work, written into the user's repository."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.workspace.builders import make_repository

EVAL, MAIN = "configs/eval/multiply.toml", "rollouts/multiply/main.py"


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Git repository that is no workspace yet."""
    root = make_repository(tmp_path / "work")
    monkeypatch.chdir(root)
    return root


def tree(root: Path) -> dict[str, bytes]:
    """Every file outside Git's directory, by path."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and ".git" not in path.relative_to(root).parts
    }


def test_conflicts_and_diff(cli: Cli, repository: Path) -> None:
    cli("template", "apply", "multiply")
    (repository / EVAL).write_text((repository / EVAL).read_text().replace("limit = 100", "limit = 3"))
    (repository / "rollouts/multiply/mine.py").write_text("")
    (repository / "data/multiply.jsonl").write_text("")
    before = tree(repository)
    outcome = cli("template", "apply", "multiply", "--plain", "--diff")
    assert outcome.status == 1
    assert "\n-limit = 3 " in outcome.err and "\n+limit = 100 " in outcome.err
    assert tree(repository) == before
    error = cli("template", "apply", "multiply", "--json").error
    assert error["code"] == "CONFLICT"
    # The other data file is the template's own, word for word.
    assert error["details"]["conflicts"] == [
        *("rollouts/multiply", EVAL, "configs/training/multiply.toml", "data/multiply.jsonl")
    ]
    assert error["details"]["differences"].keys() == {EVAL, "rollouts/multiply", "data/multiply.jsonl"}


def test_force(cli: Cli, repository: Path) -> None:
    cli("template", "apply", "multiply")
    fresh = tree(repository)
    (repository / MAIN).write_text("mine")
    (repository / "rollouts/multiply/mine.py").write_text("")
    (repository / "data/multiply.jsonl").write_text("")
    (repository / "data/other.jsonl").write_text("kept")
    assert cli("template", "apply", "multiply", "-f").status == 0
    assert tree(repository) == {**fresh, "data/other.jsonl": b"kept"}


def test_unchanged_template(cli: Cli, repository: Path) -> None:
    cli("template", "apply", "multiply")
    (repository / "rollouts/multiply/__pycache__").mkdir()
    (repository / "rollouts/multiply/__pycache__/main.pyc").touch()
    before = tree(repository)
    for force in ((), ("--force",)):
        done = cli("template", "apply", "multiply", *force, "--json").json
        assert (done["status"], done["resource"]["files"]) == ("noop", [])
    assert "is already applied" in cli("template", "apply", "multiply").out
    assert tree(repository) == before
    (repository / "rollouts/multiply/mine.py").touch()
    assert cli("template", "apply", "multiply").status == 1


@pytest.mark.parametrize("link", ["rollouts", "rollouts/multiply", "configs", EVAL, "data/multiply.jsonl"])
def test_symbolic_links(cli: Cli, repository: Path, tmp_path: Path, link: str) -> None:
    target = tmp_path / "elsewhere"
    target.write_text("precious") if "." in link else target.mkdir()
    (repository / link).parent.mkdir(parents=True, exist_ok=True)
    (repository / link).symlink_to(target)
    before = tree(tmp_path)
    outcome = cli("template", "apply", "multiply", "--force")
    assert outcome.status == 1
    assert f"  - {link}\n" in outcome.err
    assert tree(tmp_path) == before


def test_partial_write_is_rolled_back(cli: Cli, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / "rollouts/multiply").mkdir(parents=True)
    (repository / MAIN).write_text("mine")
    before = tree(repository)
    rename = Path.rename

    def full(path: Path, target: Path) -> Path:
        if Path(target) == repository / "data/multiply_train.jsonl":
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", full)
    outcome = cli("template", "apply", "multiply", "--force")
    assert (outcome.status, "No space left on device" in outcome.err) == (1, True)
    assert tree(repository) == before
    assert sorted(path.name for path in repository.iterdir()) == [".git", "rollouts"]


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A team's own templates: one, with data of its own, as it stands after it was used."""
    root = tmp_path / "theirs"
    rollout = root / "rollouts/greeter"
    rollout.mkdir(parents=True)
    (rollout / "main.py").write_text("print()\n")
    (rollout / "pyproject.toml").write_text('[project]\nname = "greeter"\ndescription = "Says hello."\n')
    for junk in (".env", ".venv/bin/python", "__pycache__/main.pyc"):
        (rollout / junk).parent.mkdir(parents=True, exist_ok=True)
        (rollout / junk).write_text("SECRET=1")
    (root / "configs/eval").mkdir(parents=True)
    (root / "configs/eval/greeter.toml").write_text('[experiment]\ndataset = "names"\n')
    (root / "data").mkdir()
    (root / "data/names.csv").write_text("user_prompt\n")
    monkeypatch.setenv("OSMOSIS_WORKSPACE_TEMPLATE_PATH", str(root))
    return root


def test_custom_templates(cli: Cli, repository: Path, theirs: Path) -> None:
    assert cli("template", "list", "--json").json["items"] == [{"name": "greeter", "summary": "Says hello."}]
    assert cli("template", "apply", "greeter").status == 0
    assert tree(repository).keys() == {
        *("rollouts/greeter/main.py", "rollouts/greeter/pyproject.toml", "configs/eval/greeter.toml"),
        *("data/names.csv", ".gitignore"),
    }


@pytest.mark.parametrize(
    "spoil, message",
    [
        (lambda root: (root / "rollouts/greeter/keys").symlink_to("/etc/passwd"), "is a link, or no file"),
        (lambda root: (root / "rollouts/greeter/etc").symlink_to("/etc"), "is a link, or no file"),
        (lambda root: (root / "configs/eval/greeter.toml").write_text("["), "Invalid TOML"),
        (lambda root: (root / "rollouts/empty").mkdir(), "has no files"),
        (lambda root: (root / "rollouts").rename(root / "r"), "has no directory `rollouts`"),
    ],
)
def test_invalid_custom_templates(
    cli: Cli, repository: Path, theirs: Path, spoil: Callable[[Path], object], message: str
) -> None:
    spoil(theirs)
    outcome = cli("template", "apply", "empty" if message == "has no files" else "greeter")
    assert (outcome.status, message in outcome.err) == (1, True)
    assert tree(repository) == {}


def test_repository_variable_is_rejected(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSMOSIS_WORKSPACE_TEMPLATE_REPO", "Osmosis-AI/workspace-template")
    outcome = cli("template", "apply", "multiply")
    assert outcome.status == 1
    assert "Templates are not fetched" in outcome.err
    assert "OSMOSIS_WORKSPACE_TEMPLATE_PATH" in outcome.err


def test_rollout_init_example(cli: Cli, repository: Path) -> None:
    for directory in ("rollouts", "configs/eval", "configs/training", "data"):
        (repository / directory).mkdir(parents=True)
    assert cli("rollout", "init", "--example").status == 0
    assert (repository / ".gitignore").is_file()
    assert cli("template", "apply", "multiply", "--json").json["status"] == "noop"
    envelope = cli("rollout", "init", "my-agent", "--example", "--json").json
    assert envelope["resource"]["configs"]["eval"] == "configs/eval/my-agent.toml"
    config = (repository / "configs/eval/my-agent.toml").read_text()
    assert "osmosis eval run configs/eval/my-agent.toml" in config
    assert 'name = "my-agent"' in (repository / "rollouts/my-agent/pyproject.toml").read_text()
    assert "rollouts/multiply" not in (repository / "rollouts/my-agent/README.md").read_text()
    assert cli("rollout", "init", "--plain").status == 2
