"""The installed wheel works without a checkout and leaves the user's home unchanged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from osmosis_ai.services.rollouts import list_templates

pytestmark = pytest.mark.e2e

REPOSITORY = Path(__file__).parents[2]


def pip(*arguments: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], check=True, timeout=900)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-build-isolation", "-w", target, REPOSITORY)
    return next(target.glob("osmosis_ai-*.whl"))


@pytest.fixture(scope="module")
def interpreter(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel and the dependencies of this environment."""
    root = tmp_path_factory.mktemp("installed")
    venv.create(root, with_pip=False)
    python = root / "bin" / "python"
    site_packages = next((root / "lib").glob("python3*/site-packages"))
    (site_packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    pip("--python", python, "install", "--no-deps", "--no-index", wheel)
    return python


def files_below(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_contents_of_the_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for needed in (
        "osmosis_ai/py.typed",
        "osmosis_ai/inference/models/tiny/model.safetensors",
        *(f"osmosis_ai/samples/{path}" for template in list_templates() for path in template.paths()),
    ):
        assert needed in names
    assert not [name for name in names if "__pycache__" in name or name.endswith(".gitkeep")]


def test_demo_of_an_installed_wheel(interpreter: Path, tmp_path: Path) -> None:
    home, empty, scratch = tmp_path / "home", tmp_path / "empty", tmp_path / "tmp"
    for directory in (home, empty, scratch):
        directory.mkdir()
    (home / ".gitconfig").write_text("[user]\n\tname = Somebody\n")
    (home / ".config" / "osmosis").mkdir(parents=True)
    (home / ".config" / "osmosis" / "credentials.json").write_text("{}")
    before = files_below(home)
    environment = {
        "HOME": str(home),
        "PATH": f"{interpreter.parent}{os.pathsep}{os.environ['PATH']}",
        "TMPDIR": str(scratch),
    }
    result = subprocess.run(
        [interpreter.parent / "osmosis", "demo", "--json"],
        cwd=empty,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        stdin=subprocess.DEVNULL,
    )
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["schema_version"] == 1
    assert files_below(home) == before
    assert (home / ".gitconfig").read_text() == "[user]\n\tname = Somebody\n"
    assert (home / ".config" / "osmosis" / "credentials.json").read_text() == "{}"
    assert files_below(empty) == set()
    imported_from = subprocess.run(
        [interpreter, "-c", "import osmosis_ai; print(osmosis_ai.__file__)"],
        cwd=empty,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert str(interpreter.parents[1]) in imported_from
