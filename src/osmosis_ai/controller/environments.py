"""The Python environment that a rollout runs in: the running interpreter, or one that uv builds."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import os
import platform
import re
import secrets
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from osmosis_ai.errors import OsmosisError, install_command
from osmosis_ai.files import remove_tree, write_atomic
from osmosis_ai.installation import DISTRIBUTION
from osmosis_ai.process_environment import PACKAGE_PREFIXES, build_environment, program_environment
from osmosis_ai.sandbox import MetLimit, Sandbox, SandboxedProgram, interpreter_places
from osmosis_ai.sandbox.places import reachable_as
from osmosis_ai.supervision import program_start

PACKAGE = "osmosis_ai"
# The oldest date a zip archive can hold; real ones would make equal content differ.
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)
# Of a PEP 440 local version; the letter keeps an all-digit tag from being read as a number.
_TAG = re.compile(r"[+.]c[0-9a-f]{12}$")
_WHEEL = b"Wheel-Version: 1.0\nGenerator: osmosis\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@dataclass(frozen=True)
class SdkContent:
    """The files of the SDK's wheel by their names in it, and the tagged version."""

    version: str
    files: dict[str, bytes]

    @property
    def wheel_name(self) -> str:
        """File name of the wheel."""
        return f"{PACKAGE}-{self.version}-py3-none-any.whl"

    def write_wheel(self, target_dir: Path) -> Path:
        """Write the wheel into a directory, unless it is there; return its path."""
        path = target_dir / self.wheel_name
        if not path.exists():
            archive = io.BytesIO()
            with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as wheel:
                for name, data in self.files.items():
                    entry = zipfile.ZipInfo(name, date_time=_ZIP_DATE)
                    entry.external_attr = 0o644 << 16
                    wheel.writestr(entry, data)
            write_atomic(path, archive.getvalue(), mode=0o644, durable=False)
        return path


def read_sdk_content() -> SdkContent:
    """Read what the wheel will contain."""
    try:
        distribution = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        raise OsmosisError(
            f"`{DISTRIBUTION}` is imported but not installed, so rollouts cannot be given the same SDK.",
            hint='install it with: pip install -e ".[eval]" (in a checkout of the Osmosis repository)',
        ) from None
    # An installation that came from such a wheel gives the same wheel again.
    untagged = _TAG.sub("", distribution.version)
    core = _with_version(distribution.read_text("METADATA") or "", untagged)
    entry_points = distribution.read_text("entry_points.txt") or ""
    files = dict(_package_files())
    digest = hashlib.sha256(f"{core}\0{entry_points}".encode())
    for name, content in files.items():
        digest.update(f"\0{name}\0{hashlib.sha256(content).hexdigest()}".encode())
    version = f"{untagged}{'.' if '+' in untagged else '+'}c{digest.hexdigest()[:12]}"
    info = f"{PACKAGE}-{version}.dist-info"
    files[f"{info}/METADATA"] = _with_version(core, version).encode()
    files[f"{info}/WHEEL"] = _WHEEL
    files[f"{info}/entry_points.txt"] = entry_points.encode()
    files[f"{info}/RECORD"] = _record(files, f"{info}/RECORD")
    return SdkContent(version, files)


def _package_files() -> Iterator[tuple[str, bytes]]:
    """Yield the package's files by their names in the wheel, in the order of the names."""
    root = Path(__file__).resolve().parent.parent
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if any(part == "__pycache__" or part.startswith(".") for part in parts) or not path.is_file():
            continue
        yield "/".join((PACKAGE, *parts)), path.read_bytes()


def _with_version(core_metadata: str, version: str) -> str:
    return re.sub(r"^Version: .*$", f"Version: {version}", core_metadata, count=1, flags=re.MULTILINE)


def _record(files: dict[str, bytes], own_name: str) -> bytes:
    lines = []
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(content)}\n")
    return ("".join(lines) + f"{own_name},,\n").encode()


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SERVER_EXTRA = "server"


@dataclass(frozen=True)
class RolloutProject:
    """The parts of a rollout's ``pyproject.toml`` that decide about its environment."""

    requires_python: SpecifierSet
    dependencies: tuple[Requirement, ...]
    is_dynamic: bool = False
    sources: frozenset[str] = frozenset()
    local_sources: frozenset[str] = frozenset()
    can_be_copied: bool = True

    @property
    def sdk_requirements(self) -> list[Requirement]:
        """What it says about the SDK."""
        return [requirement for requirement in self.dependencies if _is_sdk(requirement)]

    @property
    def sdk_extras(self) -> list[str]:
        """The SDK's extras it needs; serving is always one of them."""
        named = {canonicalize_name(extra) for need in self.sdk_requirements for extra in need.extras}
        return sorted(named | {SERVER_EXTRA})


def read_project(rollout_dir: Path) -> RolloutProject | None:
    """Read a rollout's ``pyproject.toml``; None when there is none."""
    path = rollout_dir / "pyproject.toml"
    try:
        document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise OsmosisError(f"`{path}` is not valid TOML: {error}") from error
    project = _table(document, "project")
    try:
        requires_python = SpecifierSet(str(project.get("requires-python", "")))
    except InvalidSpecifier as error:
        raise OsmosisError(f"`requires-python` in `{path}` is not a version specifier: {error}") from error
    dependencies = tuple(_requirements(project.get("dependencies", []), path))
    sources = _sources(document)
    local = {name for name, entries in sources.items() if any(map(_is_local, entries))}
    local |= {need.name for need in dependencies if (need.url or "").startswith("file:")}
    return RolloutProject(
        requires_python=requires_python,
        dependencies=dependencies,
        is_dynamic="dependencies" in project.get("dynamic", ())
        or ("project" not in document and "build-system" in document),
        sources=frozenset(sources),
        local_sources=frozenset(canonicalize_name(name) for name in local) - {DISTRIBUTION},
        can_be_copied=not any(_is_tied_to_place(entry) for entries in sources.values() for entry in entries),
    )


def unmet_requirements(project: RolloutProject) -> list[str]:
    """Return why the running interpreter does not satisfy a project; empty when it does."""
    if project.is_dynamic:
        return ["its dependencies are dynamic"]
    unmet = []
    version = platform.python_version()
    if not project.requires_python.contains(version, prereleases=True):
        unmet.append(f"it needs Python {project.requires_python} and this is {version}")
    needs = [
        Requirement(f"{DISTRIBUTION}[{','.join(project.sdk_extras)}]"),
        *(need for need in project.dependencies if not _is_sdk(need)),
    ]
    unmet += [
        f"`{name}` comes from `[tool.uv.sources]`"
        for name in sorted({canonicalize_name(need.name) for need in needs} & project.sources)
    ]
    return unmet + list(_unmet(needs, extra="", seen=set()))


def sdk_notices(project: RolloutProject) -> list[str]:
    """Return what a project says about the SDK that the SDK that runs does not fulfil."""
    distribution = metadata.distribution(DISTRIBUTION)
    notices = [
        f"`{need}` is not looked up: the SDK is always the one that runs this, {distribution.version}"
        for need in project.sdk_requirements
        if need.url or not need.specifier.contains(distribution.version, prereleases=True)
    ]
    provided = {canonicalize_name(extra) for extra in distribution.metadata.get_all("Provides-Extra") or ()}
    notices += [
        f"`{DISTRIBUTION}[{extra}]` adds nothing: the SDK has no extra of this name"
        for extra in project.sdk_extras
        if extra not in provided
    ]
    return notices


def _unmet(needs: Iterable[Requirement], *, extra: str, seen: set[tuple[str, str]]) -> Iterator[str]:
    for need in needs:
        if need.marker is not None and not need.marker.evaluate({"extra": extra}):
            continue
        try:
            distribution = metadata.distribution(need.name)
        except metadata.PackageNotFoundError:
            yield f"`{need.name}` is not installed"
            continue
        if problem := _mismatch(need, distribution):
            yield problem
            continue
        for wanted in need.extras:
            key = (canonicalize_name(need.name), canonicalize_name(wanted))
            if key not in seen:
                seen.add(key)
                brought = [Requirement(line) for line in distribution.requires or ()]
                conditional = [item for item in brought if item.marker and "extra" in str(item.marker)]
                yield from _unmet(conditional, extra=key[1], seen=seen)


def _mismatch(need: Requirement, distribution: metadata.Distribution) -> str | None:
    if _is_sdk(need):
        return None
    if need.url and _recorded_url(distribution) != need.url:
        return f"`{need.name}` comes from {need.url}"
    if not need.specifier.contains(distribution.version, prereleases=True):
        return f"`{need.name}` is {distribution.version}, not {need.specifier}"
    return None


def _recorded_url(distribution: metadata.Distribution) -> str | None:
    """Return where a package was installed from, if not from an index (PEP 610)."""
    recorded = json.loads(distribution.read_text("direct_url.json") or "{}")
    url = recorded.get("url") if isinstance(recorded, dict) else None
    vcs = recorded.get("vcs_info") if url else None
    return f"{vcs['vcs']}+{url}@{vcs.get('requested_revision', '')}".rstrip("@") if vcs else url


def _requirements(entries: Any, path: Path) -> Iterator[Requirement]:
    if not isinstance(entries, list):
        raise OsmosisError(f"`project.dependencies` in `{path}` must be a list of requirements.")
    for entry in entries:
        try:
            yield Requirement(str(entry))
        except InvalidRequirement as error:
            raise OsmosisError(f"`{entry}` in `{path}` is not a requirement: {error}") from error


def _is_sdk(requirement: Requirement) -> bool:
    return canonicalize_name(requirement.name) == DISTRIBUTION


def _sources(document: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """Return where ``[tool.uv.sources]`` takes packages from, without the SDK."""
    table = _table(_table(_table(document, "tool"), "uv"), "sources")
    listed = {name: entry if isinstance(entry, list) else [entry] for name, entry in table.items()}
    return {
        canonicalize_name(name): [item for item in entries if isinstance(item, Mapping)]
        for name, entries in listed.items()
        if canonicalize_name(name) != DISTRIBUTION
    }


def _is_local(source: Mapping[str, Any]) -> bool:
    return "path" in source or bool(source.get("workspace"))


def _is_tied_to_place(source: Mapping[str, Any]) -> bool:
    """Tell whether a source means something else, or nothing, seen from another directory."""
    path = Path(str(source.get("path", "")))
    leaves = not path.is_absolute() and os.path.normpath(path).startswith("..")
    return bool(source.get("workspace") or source.get("editable")) or leaves


def _table(parent: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = parent.get(name, {})
    return value if isinstance(value, Mapping) else {}


KEPT = 10
SURELY_UNUSED_AFTER_S = 24 * 3600.0
_UNFINISHED = ".building-"


class EnvironmentCache:
    """A directory of virtual environments."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def get(self, key: str, build: Callable[[Path, Path], None], *, on_wait: Callable[[], None]) -> Path:
        """Return the environment of a key, built first if need be."""
        lock = self._lock_of(key)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            on_wait()
            lock.acquire()
        try:
            environment = self._directory / key
            if not os.access(python_of(environment), os.X_OK):
                self._build(environment, build)
                self._prune(spare=environment)
            os.utime(environment)
            return environment
        finally:
            lock.release()

    def _build(self, environment: Path, build: Callable[[Path, Path], None]) -> None:
        scratch = self._unfinished()
        scratch.mkdir()
        try:
            build(scratch, scratch / "environment")
            if (scratch / "environment").is_symlink():
                # What a build leaves is let into sandboxes, so it leads nowhere else.
                raise OsmosisError("the build put a link in the place of its environment.")
            if environment.exists():
                # Its interpreter is gone from the machine.
                environment.rename(scratch / "broken")
            (scratch / "environment").rename(environment)
        finally:
            remove_tree(scratch)

    def _prune(self, *, spare: Path) -> None:
        # Others build and remove beside us: what is gone meanwhile is gone.
        entries = [(used_at, entry) for entry in self._directory.iterdir() if (used_at := _last_use(entry))]
        finished = sorted((item for item in entries if not item[1].name.startswith(".")), reverse=True)
        abandoned = [entry for _, entry in entries if entry.name.startswith(_UNFINISHED)]
        for _, entry in finished[KEPT:]:
            if entry != spare:
                self._remove_unused_environment(entry)
        for entry in abandoned:
            self._remove_unused(entry)

    def _remove_unused_environment(self, environment: Path) -> None:
        lock = self._lock_of(environment.name)
        try:
            # Whoever has it is about to use the environment.
            lock.acquire(timeout=0)
        except Timeout:
            return
        try:
            self._remove_unused(environment)
        finally:
            lock.release()

    def _remove_unused(self, entry: Path) -> None:
        used_at = _last_use(entry)
        if used_at is None or used_at >= time.time() - SURELY_UNUSED_AFTER_S:
            return
        doomed = self._unfinished()
        with contextlib.suppress(FileNotFoundError):
            entry.rename(doomed)
        remove_tree(doomed)

    def _lock_of(self, key: str) -> FileLock:
        locks = self._directory / ".locks"
        locks.mkdir(parents=True, exist_ok=True)
        return FileLock(locks / f"{key}.lock")

    def _unfinished(self) -> Path:
        return self._directory / f"{_UNFINISHED}{secrets.token_hex(4)}"


def _last_use(entry: Path) -> float | None:
    """Return when an entry was used last; None where it is gone."""
    try:
        return entry.stat().st_mtime
    except FileNotFoundError:
        return None


def python_of(environment: Path) -> Path:
    """Return the path of a virtual environment's interpreter."""
    return environment / "bin" / "python"


QUERY_TIMEOUT_S = 120.0
INSTALL_TIMEOUT_S = 1800.0

_PART = "build"
_OURS_TO_DECIDE = frozenset(
    {
        "UV_CONSTRAINT",
        "UV_FROZEN",
        "UV_LOCKED",
        "UV_OVERRIDE",
        "UV_PROJECT",
        "UV_PROJECT_ENVIRONMENT",
        "UV_PYTHON",
        "UV_SYSTEM_PYTHON",
        "UV_WORKING_DIR",
        "UV_WORKING_DIRECTORY",
    }
)
_CREDENTIALS_IN_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_CHATTER = ("Using Python ", "Using CPython ", "Creating virtual environment ")


class UvError(OsmosisError):
    """uv failed; the message ends with its own reason."""


class UvInterruptedError(UvError):
    """uv was ended before it was done, by a signal or by our own deadline."""

    is_infrastructure = True


@dataclass(frozen=True)
class Containment:
    """What holds uv, and the build back ends that it starts, back."""

    sandbox: Sandbox
    writable: tuple[Path, ...]
    cache: Path


class Uv:
    """A uv executable."""

    def __init__(self, path: Path, containment: Containment | None = None) -> None:
        self.path = path
        self._containment = containment

    def places(self) -> tuple[Path, ...]:
        """Return what uv reads of this machine by the operator's will: itself, its settings, directories of packages."""
        named = [
            Path(word.removeprefix("file://"))
            for name, value in build_environment(os.environ).items()
            if name.startswith(PACKAGE_PREFIXES)
            for word in value.split()
            if word.startswith(("/", "file:///"))
        ]
        return reachable_as([self.path, Path("/etc/uv"), *named])

    @classmethod
    def find(cls) -> Uv | None:
        """Find uv beside the running interpreter, else on the ``PATH``."""
        beside = Path(sys.executable).parent / "uv"
        if os.access(beside, os.X_OK):
            return cls(beside)
        found = shutil.which("uv")
        return cls(Path(found)) if found else None

    def run(self, arguments: Sequence[str], *, cwd: Path, timeout_s: float, doing: str) -> str:
        """Run uv and return what it printed."""
        try:
            with program_start(self._command(arguments, cwd), self._environment()) as begun:
                result = subprocess.run(
                    begun.command,
                    cwd=cwd,
                    env=begun.env,
                    pass_fds=begun.fds,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=timeout_s,
                    check=False,
                )
        except subprocess.TimeoutExpired:
            raise UvInterruptedError(f"{doing} failed: uv did not finish within {timeout_s:g} s.") from None
        except OSError as error:
            raise UvError(f"{doing} failed: `{self.path}` cannot be run: {error.strerror}.") from error
        if result.returncode != 0 and (met := self._limit_met()) is not None:
            raise UvError(f"{doing} failed: uv was {met.words}.", details={"exit_status": result.returncode})
        if result.returncode < 0:
            raise UvInterruptedError(
                f"{doing} was interrupted: uv was ended by signal {-result.returncode}.",
                details={"exit_status": result.returncode},
            )
        if result.returncode != 0:
            reason = _reason(result.stderr.decode("utf-8", "replace"))
            raise UvError(f"{doing} failed: {reason}", details={"exit_status": result.returncode})
        return result.stdout.decode("utf-8", "replace")

    def _command(self, arguments: Sequence[str], cwd: Path) -> list[str] | SandboxedProgram:
        command, held = [str(self.path), *arguments], self._containment
        if held is None:
            return command
        return held.sandbox.command(command, cwd=cwd.resolve(), writable=held.writable, part=_PART)

    def _limit_met(self) -> MetLimit | None:
        held = self._containment
        return None if held is None else held.sandbox.control.end_of(_PART)

    def _environment(self) -> dict[str, str]:
        env = _environment()
        if self._containment is not None:
            # Hard links do not lead from one mount into another.
            env |= {"UV_CACHE_DIR": str(self._containment.cache), "UV_LINK_MODE": "copy"}
        return env

    def find_python(self, versions: SpecifierSet, *, cwd: Path) -> Path:
        """Find an installed interpreter of one of these versions."""
        try:
            found = self.run(
                ["python", "find", "--system", "--no-project", str(versions)],
                cwd=cwd,
                timeout_s=QUERY_TIMEOUT_S,
                doing="looking for a Python",
            )
        except UvError as error:
            installed = self._installed_pythons(cwd)
            raise OsmosisError(
                f"the rollout in `{cwd}` needs Python {versions}, and this machine has "
                f"{', '.join(installed) or 'none that uv finds'}.",
                details={"needed": str(versions), "found": installed},
                hint="install a Python of that version and put it on the PATH, or widen "
                "`requires-python` in the rollout's pyproject.toml; Pythons are never downloaded.",
            ) from error
        return Path(found.strip())

    def _installed_pythons(self, cwd: Path) -> list[str]:
        try:
            listed = json.loads(
                self.run(
                    ["python", "list", "--only-installed", "--output-format", "json"],
                    cwd=cwd,
                    timeout_s=QUERY_TIMEOUT_S,
                    doing="listing Pythons",
                )
            )
            versions = {Version(entry["version"]) for entry in listed}
        except (UvError, ValueError, KeyError, TypeError, InvalidVersion):
            versions = {Version(sys.version.split()[0].rstrip("+"))}
        return [str(version) for version in sorted(versions)]


def _environment() -> dict[str, str]:
    given = build_environment(os.environ)
    env = {name: value for name, value in given.items() if name not in _OURS_TO_DECIDE}
    return {**env, "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}


def _reason(stderr: str) -> str:
    """Return what uv said went wrong, without its chatter and without passwords."""
    lines = [line for line in stderr.splitlines() if line.strip() and not line.startswith(_CHATTER)]
    text = "\n".join(lines).removeprefix("error: ").strip()
    return _CREDENTIALS_IN_URL.sub("[REDACTED]", text) or "uv gave no reason."


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
