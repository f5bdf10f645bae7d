"""The environment of a rollout: which Python runs it, and what uv installs for it."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import threading
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.controller import environments
from osmosis_ai.controller.environments import (
    RolloutEnvironment,
    RolloutProject,
    Uv,
    prepare_environment,
    read_project,
    unmet_requirements,
)
from osmosis_ai.errors import OsmosisError
from osmosis_ai.sandbox.bubblewrap import interpreter_places
from tests.controller.wheels import make_sdk_dependencies, make_wheel

SDK_VERSION = metadata.version("osmosis-ai")


@pytest.fixture(scope="session")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What stands for the index; its `osmosis-ai` is somebody else's package."""
    directory = tmp_path_factory.mktemp("wheelhouse")
    make_sdk_dependencies(directory)
    make_wheel(directory, "tinydep", "1.0")
    make_wheel(directory, "tinydep", "2.0")
    make_wheel(directory, "latecomer", "1.0")
    make_wheel(directory, "imposters-friend", "1.0")
    make_wheel(
        directory,
        "osmosis-ai",
        "9.9",
        requires=["litellm==0.1", "imposters-friend"],
        extras=["server"],
        files={"osmosis_ai/__init__.py": "raise ImportError('the wrong package')\n"},
    )
    make_wheel(directory, "litellm", "0.1", files={})
    return directory


@pytest.fixture(autouse=True)
def offline(wheelhouse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("UV_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(wheelhouse))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))


class World:
    """A rollout's directory and a cache."""

    def __init__(self, root: Path) -> None:
        self.rollout_dir = root / "rollouts" / "mine"
        self.rollout_dir.mkdir(parents=True)
        self.cache_dir = root / "cache"
        self.notes: list[str] = []

    def write(self, dependencies: list[str], *, python: str = ">=3.10", more: str = "") -> None:
        self.write_file(
            "pyproject.toml",
            f'[project]\nname = "mine"\nversion = "0.1.0"\nrequires-python = "{python}"\n'
            f"dependencies = {dependencies!r}\n{more}",
        )

    def write_file(self, name: str, text: str) -> None:
        path = self.rollout_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def prepare(self) -> RolloutEnvironment:
        return prepare_environment(self.rollout_dir, cache_dir=self.cache_dir, note=self.notes.append)

    def lock(self) -> None:
        subprocess.run([uv_path(), "lock", "--quiet"], cwd=self.rollout_dir, check=True)

    def fingerprint(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.rollout_dir)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in self.rollout_dir.rglob("*")
            if path.is_file()
        }

    def built(self) -> list[Path]:
        return sorted(path for path in self.cache_dir.glob("environments/*") if path.is_dir())


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def uv_path() -> str:
    found = Uv.find()
    assert found is not None
    return str(found.path)


def run_in(environment: RolloutEnvironment, code: str) -> str:
    result = subprocess.run(
        [str(environment.python), "-I", "-c", code], capture_output=True, text=True, check=False, cwd="/"
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.fixture
def without_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Uv, "find", classmethod(lambda cls: None))


@pytest.mark.usefixtures("without_uv")
def test_the_running_interpreter_is_used_if_it_suffices(world: World) -> None:
    world.write(["osmosis-ai[server]>=0.3.0rc1,<0.4", "pydantic>=2", "nothing; python_version < '3'"])
    environment = world.prepare()
    assert environment == RolloutEnvironment(
        Path(sys.executable),
        "running-interpreter",
        f"the running Python {platform.python_version()}, which meets `mine/pyproject.toml`",
        interpreter_places(Path(sys.executable)),
    )
    assert world.notes == []
    assert not world.cache_dir.exists()
    world.write_file("uv.lock", "")
    assert world.prepare().summary.endswith(" (its uv.lock is not used)")


@pytest.mark.usefixtures("without_uv")
def test_a_missing_uv_is_explained(world: World) -> None:
    world.write(["tinydep>=1", "pydantic<2"])
    with pytest.raises(OsmosisError) as caught:
        world.prepare()
    assert "`tinydep` is not installed" in caught.value.message
    assert f"`pydantic` is {metadata.version('pydantic')}, not <2" in caught.value.message
    assert "[eval]" in (caught.value.hint or "")


@pytest.mark.e2e
def test_an_environment_has_the_running_sdk(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    source = '[tool.uv.sources]\nosmosis-ai = { path = "imposter" }\n'
    world.write(["osmosis-ai[server]>=9", "tinydep"], more=source)
    world.write_file("main.py", "print('hello')\n")
    before = world.fingerprint()
    # Relative paths mean the same to uv, which runs in another directory.
    monkeypatch.chdir(world.rollout_dir.parent)
    world.rollout_dir = Path("mine")
    environment = world.prepare()
    assert environment.kind == "uv"
    assert "`tinydep` is not installed" in environment.summary
    assert run_in(environment, "import tinydep; print(tinydep.VERSION)") == "2.0"
    version = run_in(environment, "from importlib.metadata import version; print(version('osmosis-ai'))")
    assert version == SDK_VERSION
    where = Path(run_in(environment, "import osmosis_ai.processes as it; print(it.__file__)"))
    assert where.is_relative_to(world.cache_dir.resolve())
    assert where.resolve() == Path(environments.__file__).parents[1].resolve() / "processes" / "__init__.py"
    assert [entry.name for entry in where.parents[2].iterdir()] == ["osmosis_ai"]
    assert world.fingerprint() == before
    assert world.notes == [
        f"`osmosis-ai[server]>=9` is ignored: the rollout uses the running SDK, {SDK_VERSION}",
        "building an environment for `mine` with uv",
    ]


def start_run(world: World) -> subprocess.Popen[str]:
    """Start a process that prepares an environment, prints its Python and uses it until its input ends."""
    code = (
        "import sys; from pathlib import Path; from osmosis_ai.controller.environments import prepare_environment\n"
        "found = prepare_environment(Path(sys.argv[1]), cache_dir=Path(sys.argv[2]), note=lambda _: None)\n"
        "print(found.python, flush=True); sys.stdin.read()"
    )
    arguments = [sys.executable, "-c", code, str(world.rollout_dir), str(world.cache_dir)]
    return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.e2e
def test_an_environment_is_built_once_until_something_changes(world: World) -> None:
    world.write(["osmosis-ai[server]", "tinydep"])
    with start_run(world) as one, start_run(world) as other:
        pythons = {process.communicate()[0].strip() for process in (one, other)}
    [directory] = world.built()
    assert pythons == {str(world.prepare().python)} == {str(directory / "environment" / "bin" / "python")}
    assert world.notes == []
    os.utime(directory, (0, 0))
    world.prepare()
    assert directory.stat().st_mtime > 0
    for name in ("uv.toml", "pyproject.toml"):
        with (world.rollout_dir / name).open("a") as file:
            file.write("# changed\n")
        world.prepare()
    assert len(world.built()) == 3


@pytest.mark.e2e
def test_unused_environments_are_removed_after_a_build(world: World) -> None:
    world.write(["osmosis-ai[server]", "tinydep"])
    directory = world.prepare().python.parents[2]
    (directory / "environment" / "bin" / "python").unlink()
    for name, age_s in (("unused", 31 * 24 * 3600), ("used", 29 * 24 * 3600), ("run-killed", 0)):
        (directory.parent / name).mkdir()
        os.utime(directory.parent / name, (time.time() - age_s,) * 2)
    assert run_in(world.prepare(), "import tinydep; print(tinydep.VERSION)") == "2.0"
    assert world.built() == [directory, directory.parent / "used"]


@pytest.mark.e2e
def test_locked_versions_are_kept_and_what_only_the_locked_sdk_needed_is_not(world: World) -> None:
    world.write(["osmosis-ai[server]", "tinydep<2"])
    world.lock()
    assert "imposters-friend" in (world.rollout_dir / "uv.lock").read_text()
    world.write(["osmosis-ai[server]", "tinydep", "latecomer"])
    before = world.fingerprint()
    environment = world.prepare()
    digest = hashlib.sha256((world.rollout_dir / "uv.lock").read_bytes()).hexdigest()
    assert environment.description.endswith(f", uv.lock SHA-256 {digest}")
    assert run_in(environment, "import tinydep, latecomer; print(tinydep.VERSION)") == "1.0"
    assert run_in(environment, "from importlib.metadata import version; print(version('litellm'))") != "0.1"
    found = run_in(environment, "from importlib.util import find_spec; print(find_spec('imposters_friend'))")
    assert found == "None"
    assert world.fingerprint() == before


@pytest.mark.e2e
def test_a_wheel_that_does_not_match_the_hash_in_the_lock_is_refused(world: World) -> None:
    world.write(["osmosis-ai[server]", "tinydep==1.0"])
    world.lock()
    world.prepare()
    lock, wheel = (world.rollout_dir / "uv.lock").read_text(), 'tinydep-1.0-py3-none-any.whl"'
    world.write_file("uv.lock", lock.replace(wheel, f'{wheel}, hash = "sha256:{"0" * 64}"'))
    # It is refused although it is in uv's cache.
    with pytest.raises(environments.UvError, match=r"Hash mismatch for `tinydep==1\.0`"):
        world.prepare()
    assert len(world.built()) == 1


@pytest.mark.e2e
def test_unresolvable_dependencies_are_explained_by_uv(world: World) -> None:
    world.write(["osmosis-ai[server]", "tinydep>=3"])
    with pytest.raises(OsmosisError) as caught:
        world.prepare()
    message = caught.value.message
    assert message.startswith(f"installing the dependencies of `{world.rollout_dir}/pyproject.toml` failed: ")
    assert "tinydep" in message and ">=3" in message
    assert "Using Python" not in message
    assert world.built() == []


@pytest.mark.e2e
def test_a_local_library_is_always_rebuilt(world: World) -> None:
    backend = """
import pathlib, zipfile

def build_wheel(directory, config_settings=None, metadata_directory=None):
    name = "shared-0.1.0-py3-none-any.whl"
    info = "shared-0.1.0.dist-info"
    with zipfile.ZipFile(pathlib.Path(directory) / name, "w") as wheel:
        wheel.write("shared.py")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: shared\\nVersion: 0.1.0\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return name
"""
    world.write(
        ["osmosis-ai[server]", "shared"], more='[tool.uv.sources]\nshared = { path = "libs/shared" }\n'
    )
    world.write_file(
        "libs/shared/pyproject.toml",
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "shared"\nversion = "0.1.0"\n',
    )
    world.write_file("libs/shared/backend.py", backend)
    for answer in ("1", "2"):
        world.write_file("libs/shared/shared.py", f"ANSWER = {answer}\n")
        environment = world.prepare()
        assert run_in(environment, "import shared; print(shared.ANSWER)") == answer
    with start_run(world) as ends, start_run(world) as killed, start_run(world) as runs:
        pythons = [environment.python]
        for process in (ends, killed, runs):
            assert process.stdout is not None
            pythons.append(Path(process.stdout.readline().strip()))
            assert pythons[-1].exists()
        ends.communicate()
        killed.kill()
        killed.wait()
        pythons.append(world.prepare().python)
        assert [python.exists() for python in pythons] == [True, False, False, True, True]
        runs.communicate()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[project\n", r"line 1, column 9"),
        ('[project]\nname = "x"\ndependencies = ["not a requirement!"]\n', r"not a requirement!"),
        ('[project]\nname = "x"\ndependencies = "tinydep"\n', r"`dependencies` must be a list"),
        ('[project]\nname = "x"\nrequires-python = "three"\n', r"Invalid specifier: 'three'"),
    ],
)
def test_a_pyproject_that_cannot_be_read_is_named(world: World, text: str, complaint: str) -> None:
    world.write_file("pyproject.toml", text)
    with pytest.raises(OsmosisError, match=complaint) as caught:
        world.prepare()
    assert str(world.rollout_dir / "pyproject.toml") in caught.value.message


def fake_uv(directory: Path, script: str, **changes: Any) -> Uv:
    """Return a uv that is a shell script."""
    path = directory / "uv"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return Uv(path, **changes)


@pytest.mark.parametrize(
    ("script", "message", "is_infrastructure"),
    [
        (
            "echo 'error: https://me:hunter2@index.example/simple refused' >&2; exit 2",
            "building failed: https://[REDACTED]@index.example/simple refused",
            False,
        ),
        ("exit 1", "building failed: uv gave no reason.", False),
        ("kill -9 $$", "building was interrupted: uv was ended by signal 9.", True),
    ],
)
def test_a_failure_of_uv_is_explained_without_passwords(
    tmp_path: Path, script: str, message: str, is_infrastructure: bool
) -> None:
    with pytest.raises(environments.UvError) as caught:
        fake_uv(tmp_path, script).run([], cwd=tmp_path, doing="building")
    assert (caught.value.message, caught.value.is_infrastructure) == (message, is_infrastructure)


def test_an_abandoned_uv_is_ended(tmp_path: Path) -> None:
    abandoned = threading.Event()
    abandoned.set()
    with pytest.raises(environments.UvInterruptedError):
        fake_uv(tmp_path, "exec sleep 600", abandoned=abandoned).run([], cwd=tmp_path, doing="building")


def test_the_python_of_the_caller_does_not_affect_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "PYTHONPATH"):
        monkeypatch.setenv(name, "/elsewhere")
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS", "automatic")
    monkeypatch.setenv("UV_INDEX_URL", "https://index.example/simple")
    env = fake_uv(tmp_path, "env").run([], cwd=tmp_path, doing="looking")
    assert "/elsewhere" not in env
    assert "UV_PYTHON_DOWNLOADS=never" in env
    assert "UV_INDEX_URL=https://index.example/simple" in env


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extras = (
        "base-need",
        "fast>=2; extra == 'fast'",
        "extras[fast]; extra == 'all'",
        "extras[all]; extra == 'all'",
    )
    for name, version, *requires in (
        ("osmosis-ai", "0.3.10", "fastapi>=1; extra == 'server'", "absent; extra == 'another'"),
        ("fastapi", "1.5"),
        ("plain", "1.0"),
        ("preview", "2.0rc1"),
        ("extras", "1.0", *extras),
        ("fast", "1.0"),
    ):
        wheel = make_wheel(tmp_path, name, version, requires=requires, files={})
        monkeypatch.syspath_prepend(str(wheel))


def unmet(tmp_path: Path, *dependencies: str, more: str = "") -> list[str]:
    text = f'[project]\nname = "mine"\ndependencies = {list(dependencies)!r}\n{more}'
    (tmp_path / "pyproject.toml").write_text(text)
    project = read_project(tmp_path)
    assert isinstance(project, RolloutProject)
    return unmet_requirements(project)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("requirement", "problem"),
    [
        ("plain", None),
        ("Plain>=1,<2", None),
        ("plain>=2", "`plain` is 1.0, not >=2"),
        ("preview>=2.0rc1", None),
        ("absent", "`absent` is not installed"),
        ("absent; python_version < '3'", None),
        ("absent; sys_platform == 'never'", None),
        ("extras", None),
        ("extras[fast]", "`fast` is 1.0, not >=2"),
        ("extras[all]", "`fast` is 1.0, not >=2"),
        ("extras[unheard-of]", None),
        ("osmosis-ai==7", None),
        ("osmosis_ai[another]", "`absent` is not installed"),
        ("plain @ git+https://host/r.git@v1", "`plain` comes from git+https://host/r.git@v1"),
        ("plain @ https://me:hunter2@host/plain.whl", "`plain` comes from https://[REDACTED]@host/plain.whl"),
    ],
)
def test_requirements_of_the_interpreter(tmp_path: Path, requirement: str, problem: str | None) -> None:
    assert unmet(tmp_path, requirement) == ([problem] if problem else [])


@pytest.mark.parametrize(
    ("source", "local", "can_be_copied"),
    [
        ('{ git = "https://host/r" }', False, True),
        ('{ path = "libs/plain" }', True, True),
        ('{ path = "/opt/plain" }', True, True),
        ('{ path = "../plain" }', True, False),
        ('{ path = "libs/../../plain" }', True, False),
        ('{ path = "libs/plain", editable = true }', True, False),
        ("{ workspace = true }", True, False),
        ('[{ index = "mine" }, { path = "../plain" }]', True, False),
    ],
)
def test_local_sources(tmp_path: Path, source: str, local: bool, can_be_copied: bool) -> None:
    unmet(tmp_path, "plain", more=f"[tool.uv.sources]\nplain = {source}\n")
    project = read_project(tmp_path)
    assert project is not None
    assert (project.local_sources, project.can_be_copied) == ({"plain"} if local else set(), can_be_copied)


@pytest.mark.e2e
def test_another_python_is_used_if_the_project_needs_it(world: World) -> None:
    versions = f">=3.10,!={platform.python_version()}"
    find = [uv_path(), "python", "find", "--system", "--no-project", versions]
    if subprocess.run(find, capture_output=True, check=False).returncode != 0:
        pytest.skip("no other Python is installed")
    world.write(["osmosis-ai[server]", "tinydep"], python=versions)
    environment = world.prepare()
    code = "import platform, tinydep; print(platform.python_version())"
    assert run_in(environment, code) not in ("", platform.python_version())
    assert world.prepare() == environment


def test_a_missing_python_is_named(world: World) -> None:
    world.write(["osmosis-ai[server]"], python=">=3.99")
    with pytest.raises(environments.UvError, match=r"No interpreter found for Python .*>=3\.99") as caught:
        world.prepare()
    assert "Python is never downloaded" in (caught.value.hint or "")
    assert world.built() == []
