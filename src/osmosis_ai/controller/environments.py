"""The Python environment of a rollout: the running interpreter, or an environment that uv builds."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import platform
import re
import secrets
import shutil
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from osmosis_ai.errors import OsmosisError, install_command
from osmosis_ai.files import remove_tree
from osmosis_ai.installation import DISTRIBUTION
from osmosis_ai.process_environment import PACKAGE_PREFIXES, build_environment
from osmosis_ai.processes.child_process import ChildProcess
from osmosis_ai.sandbox.bubblewrap import Sandbox, SandboxedProgram, interpreter_places, reachable_as

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

UV_TIMEOUT_S = 1800.0
UNUSED_AFTER_S = 30 * 24 * 3600

_PACKAGE_DIR = Path(__file__).resolve().parents[1]
_SANDBOX_PART = "build"
_TEMPORARY = "run-"
_WHEEL = "Wheel-Version: 1.0\nGenerator: osmosis\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
# These would override the arguments of the commands below.
_IGNORED_VARIABLES = (
    *("UV_CONSTRAINT", "UV_FROZEN", "UV_LOCKED", "UV_OVERRIDE", "UV_PROJECT", "UV_PROJECT_ENVIRONMENT"),
    *("UV_PYTHON", "UV_SYSTEM_PYTHON", "UV_WORKING_DIR", "UV_WORKING_DIRECTORY"),
)


@dataclass(frozen=True)
class RolloutProject:
    """The parts of a rollout's ``pyproject.toml`` that determine its environment."""

    requires_python: SpecifierSet
    dependencies: tuple[Requirement, ...]
    is_dynamic: bool
    sources: frozenset[str]
    local_sources: frozenset[str]
    can_be_copied: bool

    @property
    def sdk_extras(self) -> list[str]:
        """The SDK's extras it needs; `server` is always one of them."""
        named = {extra for need in self.dependencies if _is_sdk(need) for extra in need.extras}
        return sorted({"server", *map(canonicalize_name, named)})

    @property
    def has_local_code(self) -> bool:
        """Whether files that are not in the key of an environment determine its content."""
        return self.is_dynamic or bool(self.local_sources)


def read_project(rollout_dir: Path) -> RolloutProject | None:
    """Read a rollout's ``pyproject.toml``; None if there is none."""
    path = rollout_dir / "pyproject.toml"
    try:
        document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        project, uv = document.get("project", {}), document.get("tool", {}).get("uv", {})
        if not isinstance(project.get("dependencies", []), list):
            raise ValueError("`dependencies` must be a list")
        dependencies = tuple(Requirement(str(each)) for each in project.get("dependencies", []))
        requires_python = SpecifierSet(str(project.get("requires-python", "")))
        # The SDK never comes from a source that the project names.
        sources = {
            canonicalize_name(name): source if isinstance(source, list) else [source]
            for name, source in uv.get("sources", {}).items()
            if canonicalize_name(name) != DISTRIBUTION
        }
    except FileNotFoundError:
        return None
    except (ValueError, AttributeError) as error:
        raise OsmosisError(f"`{path}` cannot be used: {error}.") from error
    entries = [(name, each) for name, source in sources.items() for each in source if isinstance(each, dict)]
    local = {name for name, entry in entries if "path" in entry or entry.get("workspace")}
    local |= {canonicalize_name(need.name) for need in dependencies if (need.url or "").startswith("file:")}
    return RolloutProject(
        requires_python=requires_python,
        dependencies=dependencies,
        is_dynamic="dependencies" in project.get("dynamic", ())
        or ("project" not in document and "build-system" in document),
        sources=frozenset(sources),
        local_sources=frozenset(local) - {DISTRIBUTION},
        can_be_copied=not any(_depends_on_location(entry) for _, entry in entries),
    )


def _depends_on_location(source: Mapping[str, Any]) -> bool:
    """Return whether a source is different, or missing, when its project is in another directory."""
    path = Path(str(source.get("path", "")))
    is_outside = not path.is_absolute() and os.path.normpath(path).startswith("..")
    return bool(source.get("workspace") or source.get("editable")) or is_outside


def _is_sdk(requirement: Requirement) -> bool:
    return canonicalize_name(requirement.name) == DISTRIBUTION


def unmet_requirements(project: RolloutProject) -> list[str]:
    """Return why the running interpreter does not satisfy a project; empty if it does."""
    if project.is_dynamic:
        return ["its dependencies are dynamic"]
    unmet = []
    version = platform.python_version()
    if not project.requires_python.contains(version, prereleases=True):
        unmet.append(f"it requires Python {project.requires_python}, but this is {version}")
    needs = [need for need in project.dependencies if not _is_sdk(need)]
    with_source = {canonicalize_name(need.name) for need in needs} & project.sources
    unmet += [f"`{name}` comes from `[tool.uv.sources]`" for name in sorted(with_source)]
    sdk = Requirement(f"{DISTRIBUTION}[{','.join(project.sdk_extras)}]")
    return unmet + list(_unmet([sdk, *needs], extra="", seen=set()))


def _unmet(needs: Iterable[Requirement], *, extra: str, seen: set[tuple[str, str]]) -> Iterator[str]:
    for need in needs:
        if need.marker is not None and not need.marker.evaluate({"extra": extra}):
            continue
        try:
            distribution = metadata.distribution(need.name)
        except metadata.PackageNotFoundError:
            yield f"`{need.name}` is not installed"
            continue
        if need.url:
            yield f"`{need.name}` comes from {_without_credentials(need.url)}"
            continue
        if not _is_sdk(need) and not need.specifier.contains(distribution.version, prereleases=True):
            yield f"`{need.name}` is {distribution.version}, not {need.specifier}"
            continue
        for wanted in need.extras:
            key = (canonicalize_name(need.name), canonicalize_name(wanted))
            if key not in seen:
                seen.add(key)
                requirements = [Requirement(line) for line in distribution.requires or ()]
                of_extras = [item for item in requirements if item.marker and "extra" in str(item.marker)]
                yield from _unmet(of_extras, extra=key[1], seen=seen)


class UvError(OsmosisError):
    """uv failed; the message ends with its own reason."""


class UvInterruptedError(UvError):
    """uv was ended by a signal or by our timeout before it was done."""

    is_infrastructure = True


@dataclass(frozen=True)
class Uv:
    """A uv executable. In a sandbox, it writes to ``cache`` and ``writable`` only."""

    path: Path
    sandbox: Sandbox | None = None
    cache: Path = Path()
    writable: tuple[Path, ...] = ()
    abandoned: threading.Event = field(default_factory=threading.Event)
    """Ends it when it is set."""

    @classmethod
    def find(cls) -> Uv | None:
        """Find uv next to the running interpreter, otherwise on the ``PATH``."""
        sibling = Path(sys.executable).parent / "uv"
        found = str(sibling) if os.access(sibling, os.X_OK) else shutil.which("uv")
        return cls(Path(found)) if found else None

    def run(self, arguments: Sequence[str], *, cwd: Path, doing: str) -> str:
        """Run uv and return its standard output."""
        env = build_environment(os.environ)
        for name in _IGNORED_VARIABLES:
            env.pop(name, None)
        env |= {"UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}
        plain = [str(self.path), *arguments]
        command: list[str] | SandboxedProgram = plain
        if self.sandbox is not None:
            # Hard links cannot cross from one mount to another.
            env |= {"UV_CACHE_DIR": str(self.cache), "UV_LINK_MODE": "copy"}
            writable = (self.cache, *self.writable)
            command = self.sandbox.command(plain, cwd=cwd.resolve(), writable=writable, part=_SANDBOX_PART)
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            try:
                process = ChildProcess(command, env=env, cwd=cwd, stdout=stdout, stderr=stderr)
            except OSError as error:
                raise UvError(f"{doing} failed: `{self.path}` cannot be run: {error.strerror}.") from error
            status = process.finish(UV_TIMEOUT_S, self.abandoned)
            stdout.seek(0)
            stderr.seek(0)
            output, error_output = stdout.read(), stderr.read()
        if status == 0:
            return output.decode("utf-8", "replace")
        if status is None:
            raise UvInterruptedError(f"{doing} failed: uv did not finish within {UV_TIMEOUT_S:g} s.")
        limit = self.sandbox.control.end_of(_SANDBOX_PART) if self.sandbox is not None else None
        if limit is not None:
            raise UvError(f"{doing} failed: uv was {limit.words}.")
        if status < 0:
            raise UvInterruptedError(f"{doing} was interrupted: uv was ended by signal {-status}.")
        reason = error_output.decode("utf-8", "replace").strip().removeprefix("error: ")
        raise UvError(f"{doing} failed: {_without_credentials(reason) or 'uv gave no reason.'}")


def _without_credentials(text: str) -> str:
    return re.sub(r"(?<=://)[^/@\s]+(?=@)", "[REDACTED]", text)


@dataclass(frozen=True)
class RolloutEnvironment:
    """The environment of a rollout."""

    python: Path
    kind: Literal["running-interpreter", "uv"]
    summary: str
    readable: tuple[Path, ...]
    lock_sha256: str | None = None

    @property
    def description(self) -> str:
        """The summary and the digest of the ``uv.lock``, for the run's record."""
        lock = "" if self.lock_sha256 is None else f", uv.lock SHA-256 {self.lock_sha256}"
        return f"{self.summary}{lock}"


def running_environment(reason: str) -> RolloutEnvironment:
    """Return the environment of this process."""
    python = Path(sys.executable)
    summary = f"the running Python {platform.python_version()}{reason}"
    return RolloutEnvironment(python, "running-interpreter", summary, interpreter_places(python))


def prepare_environment(
    rollout_dir: Path,
    *,
    cache_dir: Path,
    note: Callable[[str], None],
    sandbox: Sandbox | None = None,
    abandoned: threading.Event | None = None,
) -> RolloutEnvironment:
    """Return an environment that satisfies a rollout's ``pyproject.toml``; building one can take minutes.

    Setting ``abandoned`` ends the build.
    Later calls reuse it, unless it contains local code: then it is removed when this process ends.
    """
    rollout_dir, cache_dir = rollout_dir.resolve(), cache_dir.resolve()
    project = read_project(rollout_dir)
    if project is None:
        return running_environment(" (the rollout has no pyproject.toml)")
    sdk_version = metadata.version(DISTRIBUTION)
    for need in filter(_is_sdk, project.dependencies):
        if need.url or not need.specifier.contains(sdk_version, prereleases=True):
            ignored = _without_credentials(str(need))
            note(f"`{ignored}` is ignored: the rollout uses the running SDK, {sdk_version}")
    reasons = "; ".join(unmet_requirements(project))
    lock_file = rollout_dir / "uv.lock"
    if not reasons:
        unused_lock = " (its uv.lock is not used)" if lock_file.is_file() else ""
        return running_environment(f", which meets `{rollout_dir.name}/pyproject.toml`{unused_lock}")
    uv = Uv.find()
    if uv is None:
        raise OsmosisError(
            f"the running Python {platform.python_version()} does not meet "
            f"`{rollout_dir / 'pyproject.toml'}` ({reasons}), "
            "and uv, which builds environments, is not installed.",
            hint=f"install it with: {install_command('eval')}",
        )
    uv = replace(uv, abandoned=abandoned or threading.Event())
    environments = cache_dir / "environments"
    environments.mkdir(parents=True, exist_ok=True)
    # The interpreter's directories become readable in the sandbox, so it is chosen before a build runs.
    python = _find_python(uv, project, environments)
    if sandbox is not None:
        uv = _sandboxed(uv, sandbox, python, cache_dir / "uv")
    directory = environments / _environment_key(project, rollout_dir, python, uv)
    with contextlib.ExitStack() as stack:
        if not project.has_local_code:
            stack.enter_context(_lock_of(directory))
        if os.access(directory / "environment" / "bin" / "python", os.X_OK):
            os.utime(directory)
        else:
            note(f"building an environment for `{rollout_dir.name}` with uv")
            new = stack.enter_context(_temporary_directory(environments))
            _build(uv, project, rollout_dir, python, new)
            if project.has_local_code:
                directory = new
                atexit.register(stack.pop_all().close)
            else:
                # If it exists, its base interpreter does not.
                remove_tree(directory)
                new.rename(directory)
            _remove_unused(environments)
    return RolloutEnvironment(
        directory / "environment" / "bin" / "python",
        "uv",
        f"an environment built by uv ({reasons})",
        (directory / "environment", directory / "sdk", *interpreter_places(python)),
        lock_sha256=hashlib.sha256(lock_file.read_bytes()).hexdigest() if lock_file.is_file() else None,
    )


def _find_python(uv: Uv, project: RolloutProject, cwd: Path) -> Path:
    """Return the running interpreter if the project supports it, otherwise another one."""
    versions = project.requires_python & SpecifierSet(metadata.metadata(DISTRIBUTION)["Requires-Python"])
    if versions.contains(platform.python_version(), prereleases=True):
        return Path(sys.executable)
    find = ["python", "find", "--system", "--no-project", str(versions)]
    try:
        return Path(uv.run(find, cwd=cwd, doing=f"finding Python {versions}").strip())
    except UvError as error:
        error.hint = (
            f"install Python {versions} and put it on the PATH, or widen `requires-python` in the rollout's "
            "pyproject.toml; Python is never downloaded"
        )
        raise


def _environment_key(project: RolloutProject, rollout_dir: Path, python: Path, uv: Uv) -> str:
    """Return a digest of what determines the content of an environment without local code."""
    sdk, base = metadata.distribution(DISTRIBUTION), python.resolve()
    files = [rollout_dir / name for name in ("pyproject.toml", "uv.lock", "uv.toml")]
    parts: list[object] = [path.read_bytes() if path.is_file() else None for path in files]
    parts += [sdk.read_text("METADATA"), sdk.read_text("entry_points.txt"), _PACKAGE_DIR]
    # In a sandbox, uv has other settings and another cache.
    parts += [base, base.stat().st_mtime_ns, project.sdk_extras, uv.sandbox is not None]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _lock_of(directory: Path) -> FileLock:
    # The thread that releases a lock when the process ends is not the one that acquired it.
    return FileLock(directory.with_name(f"{directory.name}.lock"), thread_local=False)


@contextlib.contextmanager
def _temporary_directory(parent: Path) -> Iterator[Path]:
    """Create a locked directory that is removed afterwards or, if this process is killed, by a later build."""
    directory = parent / f"{_TEMPORARY}{secrets.token_hex(8)}"
    with _lock_of(directory) as lock:
        directory.mkdir()
        try:
            yield directory
        finally:
            remove_tree(directory)
            Path(lock.lock_file).unlink(missing_ok=True)


def _remove_unused(environments: Path) -> None:
    for entry in [entry for entry in environments.iterdir() if entry.is_dir()]:
        # It fails if another process uses or removes the directory.
        with contextlib.suppress(OSError), _lock_of(entry).acquire(timeout=0):
            if entry.name.startswith(_TEMPORARY) or entry.stat().st_mtime < time.time() - UNUSED_AFTER_S:
                # An incomplete environment never has the final name.
                remove_tree(entry.rename(environments / f"{_TEMPORARY}{secrets.token_hex(8)}"))


def _sandboxed(uv: Uv, sandbox: Sandbox, python: Path, cache: Path) -> Uv:
    """Return uv in the run's sandbox, with a network to fetch packages."""
    cache.mkdir(parents=True, exist_ok=True)
    local_indexes = [
        Path(word.removeprefix("file://"))
        for name, value in build_environment(os.environ).items()
        if name.startswith(PACKAGE_PREFIXES)
        for word in value.split()
        if word.startswith(("/", "file:///"))
    ]
    packages = reachable_as([uv.path, Path("/etc/uv"), *local_indexes])
    readable = (*sandbox.readable, *interpreter_places(python), *packages)
    return replace(uv, sandbox=replace(sandbox, readable=readable, network="host"), cache=cache)


def _build(uv: Uv, project: RolloutProject, rollout_dir: Path, python: Path, directory: Path) -> None:
    """Build an environment with the project's dependencies and the SDK; it can be moved with its directory."""
    environment, sdk_dir, scratch = directory / "environment", directory / "sdk", directory / "scratch"
    venv = ["venv", "--quiet", "--no-project", "--no-cache", "--relocatable", "--python", str(python)]
    replace(uv, sandbox=None).run(
        [*venv, str(environment)], cwd=directory, doing="creating a virtual environment"
    )
    sdk_dir.mkdir()
    (sdk_dir / _PACKAGE_DIR.name).symlink_to(_PACKAGE_DIR, target_is_directory=True)
    scratch.mkdir()
    # A build can change the environment, but neither replace it by a link nor change the SDK.
    uv = replace(uv, writable=(environment, scratch))
    environment_python = str(environment / "bin" / "python")
    project_dir, lock_file = rollout_dir, rollout_dir / "uv.lock"
    if project.has_local_code and project.can_be_copied:
        # Build back ends write next to the sources they read.
        project_dir = scratch / "project"
        ignore = shutil.ignore_patterns(".venv", ".git", "__pycache__")
        shutil.copytree(rollout_dir, project_dir, symlinks=True, ignore=ignore)
    wheel = _write_sdk_wheel(scratch)
    sdk = f"{DISTRIBUTION}[{','.join(project.sdk_extras)}] @ {wheel.as_uri()}"
    overrides = scratch / "overrides.txt"
    overrides.write_text(f"{sdk}\n", encoding="utf-8")
    arguments = ["--override", str(overrides), "-r", str(project_dir / "pyproject.toml"), sdk]
    # By default, uv reuses the last build of a directory until its metadata changes.
    arguments += [f"--reinstall-package={name}" for name in sorted(project.local_sources)]
    if lock_file.is_file():
        constraints = scratch / "locked.txt"
        arguments += ["--constraint", str(constraints)]
        # Packages that only the locked SDK requires are left out: the running SDK has its own requirements.
        export = [
            *("export", "--quiet", "--frozen", "--no-dev", "--no-header", "--no-annotate"),
            *("--no-emit-workspace", "--prune", DISTRIBUTION),
            *(f"--no-emit-package={name}" for name in sorted(project.sources)),
            *("--python", environment_python, "--output-file", str(constraints)),
        ]
        uv.run(export, cwd=rollout_dir, doing=f"reading `{lock_file}`")
    try:
        doing = f"installing the dependencies of `{rollout_dir / 'pyproject.toml'}`"
        uv.run(
            ["pip", "install", "--quiet", "--python", environment_python, *arguments],
            cwd=project_dir,
            doing=doing,
        )
    except UvError as error:
        if lock_file.is_file():
            error.hint = f"if a version in `{lock_file}` is the reason, run `uv lock --upgrade` there."
        raise
    remove_tree(scratch)


def _write_sdk_wheel(directory: Path) -> Path:
    """Write a wheel with the metadata of the running SDK and, instead of its code, a path file."""
    sdk = metadata.distribution(DISTRIBUTION)
    info = f"{_PACKAGE_DIR.name}-{sdk.version}.dist-info"
    path = directory / f"{_PACKAGE_DIR.name}-{sdk.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        # The directory next to the environment, as seen from its `lib/python3.*/site-packages`.
        wheel.writestr(f"{_PACKAGE_DIR.name}.pth", "../../../../sdk\n")
        wheel.writestr(f"{info}/METADATA", sdk.read_text("METADATA") or "")
        wheel.writestr(f"{info}/entry_points.txt", sdk.read_text("entry_points.txt") or "")
        wheel.writestr(f"{info}/WHEEL", _WHEEL)
        wheel.writestr(f"{info}/RECORD", "")
    return path
