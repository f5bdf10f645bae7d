"""The interpreter a rollout runs in: the running one where it suffices, else one that uv builds.

In either the name ``osmosis-ai`` is the SDK that runs, never what an index holds under that name.
Environments live in the cache, keyed by everything that decides what is in them; the rollout's
directory, its lock file included, is read and never written.
"""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Literal

from packaging.specifiers import SpecifierSet

from osmosis_ai.driving.environment_cache import EnvironmentCache, python_of
from osmosis_ai.driving.requirements import RolloutProject, read_project, sdk_notices, unmet_requirements
from osmosis_ai.driving.sdk_wheel import read_sdk_content
from osmosis_ai.driving.uv import INSTALL_TIMEOUT_S, QUERY_TIMEOUT_S, Containment, Uv, UvError
from osmosis_ai.errors import OsmosisError, install_command
from osmosis_ai.installation import DISTRIBUTION
from osmosis_ai.process_environment import program_environment
from osmosis_ai.sandbox import Sandbox, interpreter_places

Note = Callable[[str], None]

# Everything in a rollout's directory that uv reads when it resolves.
_DECIDING_FILES = ("pyproject.toml", "uv.lock", "uv.toml")
# Raised when environments are built differently from the same files.
_LAYOUT = "1"


@dataclass(frozen=True)
class RolloutEnvironment:
    """Where a rollout runs."""

    python: Path
    kind: Literal["running-interpreter", "uv"]
    note: str
    places: tuple[Path, ...] = ()
    lock_sha256: str | None = None

    @property
    def words(self) -> str:
        """What a run's record says of it."""
        return self.note if self.lock_sha256 is None else f"{self.note}, uv.lock SHA-256 {self.lock_sha256}"


def running_environment(why: str) -> RolloutEnvironment:
    """Return the environment of this very process."""
    return _running(f"the running Python {platform.python_version()}, {why}")


def _running(summary: str) -> RolloutEnvironment:
    python = Path(sys.executable)
    return RolloutEnvironment(python, "running-interpreter", summary, interpreter_places(python))


def prepare_environment(
    rollout_dir: Path, *, cache_dir: Path, note: Note, sandbox: Sandbox | None = None
) -> RolloutEnvironment:
    """Find or build the environment of a rollout; blocking, for minutes where packages are fetched."""
    rollout_dir, cache_dir = rollout_dir.resolve(), cache_dir.resolve()
    running = f"the running Python {platform.python_version()}"
    project = read_project(rollout_dir)
    if project is None:
        return _running(f"{running} (the rollout has no pyproject.toml)")
    for notice in sdk_notices(project):
        note(notice)
    unmet = unmet_requirements(project)
    if not unmet:
        summary = f"{running}, which has everything `{rollout_dir.name}/pyproject.toml` asks for"
        if (rollout_dir / "uv.lock").is_file():
            summary += " (its uv.lock is not used)"
        return _running(summary)
    reasons = "; ".join(unmet)
    uv = Uv.find()
    if uv is None:
        raise OsmosisError(
            f"{running} does not have what `{rollout_dir / 'pyproject.toml'}` asks for ({reasons}), "
            "and uv, which would build an environment for it, was not found.",
            details={"unmet": unmet},
            hint=f"install it with: {install_command('eval')}",
        )
    builder = _UvEnvironment(rollout_dir, project, uv, note, sandbox)
    environment = builder.get(cache_dir)
    return RolloutEnvironment(
        python_of(environment),
        "uv",
        f"an environment of its own, built by uv ({reasons})",
        (environment, *interpreter_places(builder.base)),
        lock_sha256=_lock_digest(rollout_dir),
    )


def _lock_digest(rollout_dir: Path) -> str | None:
    try:
        return hashlib.sha256((rollout_dir / "uv.lock").read_bytes()).hexdigest()
    except OSError:
        return None


class _UvEnvironment:
    """Builds one rollout's environment with uv."""

    def __init__(
        self, rollout_dir: Path, project: RolloutProject, uv: Uv, note: Note, sandbox: Sandbox | None
    ) -> None:
        self._rollout_dir = rollout_dir
        self._project = project
        self._uv = uv
        self._note = note
        self._sandbox = sandbox
        self._sdk = read_sdk_content()
        # Of the machine, chosen before anything is built: what a build writes names no interpreter.
        self.base = self._choose_python()

    def get(self, cache_dir: Path) -> Path:
        python = self.base
        key = self._key(python)
        if self._is_built_from_sources:
            # Files beyond the key decide what is in it, so it is built every time.
            key = f"{key}-{secrets.token_hex(4)}"
        return EnvironmentCache(cache_dir / "environments").get(
            key,
            lambda scratch, target: self._build(python, scratch, target, cache_dir),
            on_wait=lambda: self._note("waiting for another process that builds the same environment"),
        )

    @property
    def _is_built_from_sources(self) -> bool:
        return self._project.is_dynamic or bool(self._project.local_sources)

    def _choose_python(self) -> Path:
        own = SpecifierSet(metadata.metadata(DISTRIBUTION)["Requires-Python"] or "")
        versions = self._project.requires_python & own
        if versions.contains(platform.python_version(), prereleases=True):
            return Path(sys.executable)
        return self._uv.find_python(versions, cwd=self._rollout_dir)

    def _key(self, python: Path) -> str:
        digest = hashlib.sha256()
        for part in (_LAYOUT, self._sdk.wheel_name, *_identity(python)):
            digest.update(os.fsencode(f"{part}\0"))
        for name in _DECIDING_FILES:
            path = self._rollout_dir / name
            content = path.read_bytes() if path.is_file() else b""
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
        return digest.hexdigest()[:24]

    def _build(self, python: Path, scratch: Path, target: Path, cache_dir: Path) -> None:
        self._note(f"building an environment for `{self._rollout_dir.name}` with uv")
        uv = self._contained(python, scratch, cache_dir / "uv")
        project_dir = self._rollout_dir
        if self._is_built_from_sources and self._project.can_be_copied:
            # Build backends write beside the sources they read.
            project_dir = scratch / "project"
            shutil.copytree(
                self._rollout_dir,
                project_dir,
                symlinks=True,
                ignore=shutil.ignore_patterns(".venv", ".git", "__pycache__"),
            )
        wheel = self._sdk.write_wheel(scratch)
        sdk = f"{DISTRIBUTION}[{','.join(self._project.sdk_extras)}] @ {wheel.resolve().as_uri()}"
        overrides = scratch / "overrides.txt"
        overrides.write_text(f"{sdk}\n", encoding="utf-8")
        arguments = ["--override", str(overrides), "-r", str(project_dir / "pyproject.toml"), sdk]
        locked = self._rollout_dir / "uv.lock"
        if locked.is_file():
            arguments += ["--constraint", str(self._export_lock(uv, python, scratch))]
        for name in sorted(self._project.local_sources):
            # uv takes a directory's earlier build from its cache as long as its metadata is the same.
            arguments += ["--reinstall-package", name]
        uv.run(
            ["venv", "--relocatable", "--no-project", "--python", str(python), str(target)],
            cwd=project_dir,
            timeout_s=QUERY_TIMEOUT_S,
            doing="creating a virtual environment",
        )
        try:
            uv.run(
                ["pip", "install", "--python", str(python_of(target)), *arguments],
                cwd=project_dir,
                timeout_s=INSTALL_TIMEOUT_S,
                doing=f"installing the dependencies of `{self._rollout_dir / 'pyproject.toml'}`",
            )
        except UvError as error:
            if locked.is_file():
                error.hint = f"if a version in `{locked}` is the reason, run `uv lock --upgrade` there."
            raise

    def _contained(self, python: Path, scratch: Path, cache: Path) -> Uv:
        if self._sandbox is None:
            return self._uv
        cache.mkdir(parents=True, exist_ok=True)
        readable = (*self._sandbox.readable, *interpreter_places(python), *self._uv.places())
        # Packages come from somewhere; of the run's secrets a build has none.
        sandbox = replace(self._sandbox, readable=readable, network="host")
        return Uv(self._uv.path, Containment(sandbox, writable=(scratch, cache), cache=cache))

    def _export_lock(self, uv: Uv, python: Path, scratch: Path) -> Path:
        """Write the locked versions as constraints, without the SDK and what only it brought along."""
        exported = scratch / "locked.txt"
        omitted = [f"--no-emit-package={name}" for name in sorted(self._project.sources)]
        uv.run(
            [
                *("export", "--frozen", "--quiet", "--no-dev", "--no-header", "--no-annotate"),
                *("--no-emit-workspace", *omitted, "--prune", DISTRIBUTION),
                *("--python", str(python), "--output-file", str(exported)),
            ],
            cwd=self._rollout_dir,
            timeout_s=QUERY_TIMEOUT_S,
            doing=f"reading `{self._rollout_dir / 'uv.lock'}`",
        )
        return exported


def _identity(python: Path) -> tuple[str, str]:
    """Return where an interpreter really is and which version it has."""
    if python == Path(sys.executable):
        return str(python.resolve()), sys.version
    found = subprocess.run(
        [str(python), "-I", "-c", "import sys; print(sys.version)"],
        env=program_environment(os.environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=QUERY_TIMEOUT_S,
        check=True,
    )
    return str(python.resolve()), found.stdout.strip()
