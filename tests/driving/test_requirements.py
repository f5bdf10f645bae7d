from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from osmosis_ai.driving.requirements import RolloutProject, read_project, unmet_requirements


class Installed(metadata.Distribution):
    """A distribution that is installed nowhere."""

    def __init__(self, version: str, requires: list[str] | None = None, direct_url: str = "") -> None:
        self._texts = {
            "METADATA": "\n".join(
                ["Metadata-Version: 2.1", "Name: x", f"Version: {version}"]
                + [f"Requires-Dist: {line}" for line in requires or []]
            ),
            "direct_url.json": direct_url,
        }

    def read_text(self, filename: str) -> str | None:
        return self._texts.get(filename) or None

    def locate_file(self, path: object) -> Path:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    packages = {
        "osmosis-ai": Installed(
            "0.3.10", ["fastapi>=1; extra == 'server'", "agents; extra == 'openai-agents'"]
        ),
        "fastapi": Installed("1.5"),
        "plain": Installed("1.0"),
        "preview": Installed("2.0rc1"),
        "extras": Installed(
            "1.0",
            [
                "base-need",
                "fast>=2; extra == 'fast'",
                "extras[fast]; extra == 'all'",
                "extras[all]; extra == 'all'",
            ],
        ),
        "fast": Installed("1.0"),
        "from-git": Installed(
            "1.0",
            direct_url='{"url": "https://host/r.git", "vcs_info": {"vcs": "git", "requested_revision": "v1"}}',
        ),
    }

    def distribution(name: str) -> metadata.Distribution:
        try:
            return packages[canonicalize_name(name)]
        except KeyError:
            raise metadata.PackageNotFoundError(name) from None

    monkeypatch.setattr(metadata, "distribution", distribution)


def unmet(tmp_path: Path, *dependencies: str, more: str = "", head: str = "") -> list[str]:
    text = f'[project]\nname = "mine"\n{head}\ndependencies = {list(dependencies)!r}\n{more}'
    (tmp_path / "pyproject.toml").write_text(text)
    project = read_project(tmp_path)
    assert isinstance(project, RolloutProject)
    return unmet_requirements(project)


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
        ("osmosis_ai[openai-agents]", "`agents` is not installed"),
        ("from-git @ git+https://host/r.git@v1", None),
        ("from-git @ git+https://host/r.git@v2", "`from-git` comes from git+https://host/r.git@v2"),
        ("plain @ https://host/plain.whl", "`plain` comes from https://host/plain.whl"),
    ],
)
def test_a_requirement_is_met_by_what_is_installed(
    tmp_path: Path, requirement: str, problem: str | None
) -> None:
    assert unmet(tmp_path, requirement) == ([problem] if problem else [])


def test_serving_is_always_required(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sdk = Installed("0.3.10", ["uvicorn; extra == 'server'"])
    monkeypatch.setattr(metadata, "distribution", lambda name: sdk if name == "osmosis-ai" else missing(name))
    assert unmet(tmp_path) == ["`uvicorn` is not installed"]


def missing(name: str) -> metadata.Distribution:
    raise metadata.PackageNotFoundError(name)


def test_the_python_version_is_part_of_it(tmp_path: Path) -> None:
    (problem,) = unmet(tmp_path, head='requires-python = ">=3.99"')
    assert problem.startswith("it needs Python >=3.99 and this is 3.")


def test_a_package_from_another_source_is_not_the_installed_one(tmp_path: Path) -> None:
    more = '[tool.uv.sources]\nplain = { git = "https://host/plain" }\nosmosis-ai = { path = "../sdk" }\n'
    assert unmet(tmp_path, "plain", "osmosis-ai", more=more) == ["`plain` comes from `[tool.uv.sources]`"]


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
def test_sources_on_this_machine_are_told_apart(
    tmp_path: Path, source: str, local: bool, can_be_copied: bool
) -> None:
    unmet(tmp_path, "plain", more=f"[tool.uv.sources]\nplain = {source}\n")
    project = read_project(tmp_path)
    assert project is not None
    assert (project.local_sources, project.can_be_copied) == ({"plain"} if local else set(), can_be_copied)
