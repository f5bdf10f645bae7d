"""Resolve run references (path, name, unique prefix, `@last`, `git:REF`), first locally, then on the platform.

References are never guessed: an ambiguous prefix lists all matches, an unknown name the nearest ones. Local
runs need no login, because the platform is queried only for runs that are not on this machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Literal

from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError, WorkspaceRequiredError
from osmosis_ai.evaluation.spec import is_archive
from osmosis_ai.files import can_be_path, expanded

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.decisions.samples import ComparedInputs
    from osmosis_ai.workspace.layout import WorkspaceDirectory

Client = Callable[[], "PlatformClient"]
"""Connects to the platform on call, which requires a login."""

LAST = "@last"
GIT = "git:"
_PLACES = ("local", "platform")
_RESULTS = (".json", ".jsonl")
_MOST_SHOWN = 10
_LONGEST_NAME = 255
"""Maximum length of a platform run's name, in characters."""
_LARGEST_RESULT_BYTES = 64 << 20


@dataclass(frozen=True)
class ResolvedRun:
    """A run found by name on this machine or on the platform, or at a path.

    The name of a platform's run may be its id; it has no directory.
    """

    place: Literal["local", "platform", "file"]
    name: str
    directory: Path | None = None


def resolve_run(
    reference: str, *, client: Client, like: ComparedInputs | None = None, downloads: bool = False
) -> ResolvedRun:
    """Locate a run; ``like`` is a run of the config that `git:REF` means.

    With ``downloads``, the directory of a downloaded run (``services.downloaded_runs``) is accepted.
    """
    place, word = _forced(reference)
    if place is None and (directory := _at_path(word, downloads)) is not None:
        return ResolvedRun("file", directory.name, evaluation(readable(directory)))
    if place == "platform":
        return ResolvedRun("platform", _name_there(word, client(), like))
    here = _find_here(word, like)
    if here is not None:
        return ResolvedRun("local", here.name, readable(here))
    missing = _missing(reference, word)
    if place == "local" or _is_path(word):
        raise missing
    try:
        return ResolvedRun("platform", _name_there(word, client(), like))
    except OsmosisError as error:
        raise run_not_found(word, missing, error) from None


def find_local_run(reference: str, *, downloads: bool = False) -> Path:
    """Return the directory of a local run, given its path, its name or `@last`."""
    place, word = _forced(reference)
    directory = _at_path(word, downloads) if place is None else None
    here = directory or (_find_here(word, None) if place != "platform" else None)
    if here is None:
        raise _missing(reference, word)
    return readable(here)


def names_commit(reference: str) -> bool:
    return _forced(reference)[1].startswith(GIT)


def evals_directory() -> Path:
    return workspace_of_runs().evals_dir


def named_on_platform(reference: str) -> str | None:
    """Return NAME of `platform:NAME`; None for other references."""
    place, word = _forced(reference)
    return word if place == "platform" else None


def local_names() -> list[str]:
    """Return the names of the workspace's local runs, newest first."""
    return [directory.name for directory in newest_runs(evals_directory())]


def name_elsewhere(reference: str, missing: NotFoundError) -> str:
    """Return the platform name of a run that :func:`find_local_run` did not find."""
    place, word = _forced(reference)
    if place == "local" or _is_path(word) or word == LAST or word.startswith(GIT):
        raise missing
    return word


def _forced(reference: str) -> tuple[str | None, str]:
    """Split off an explicit place from a reference."""
    place, colon, rest = reference.partition(":")
    forced, word = (place, rest) if colon and place in _PLACES else (None, reference)
    # A name on a platform is limited in characters, a file's in bytes.
    is_text = not any("\ud800" <= c <= "\udfff" for c in word)
    fits_a_platform = len(word) <= _LONGEST_NAME and not _is_path(word) and is_text
    if "\0" in word or not (can_be_path(word) or (forced != "local" and fits_a_platform)):
        raise NotFoundError(f"Run name is invalid: '{word[:40]}…'.", hint="osmosis eval list")
    return forced, word


def _is_path(word: str) -> bool:
    """Whether a word is a path, not a name; a results file may lack a directory."""
    return not word.startswith(GIT) and (Path(word).name != word or word.endswith(_RESULTS))


def _at_path(word: str, downloads: bool) -> Path | None:
    """Return the run directory at or around a path; None if the path is not in a run."""
    from osmosis_ai.services.downloaded_runs import is_download

    if not can_be_path(word):
        return None
    given = expanded(word)
    if (given / "manifest.json").is_file():
        return given.absolute()
    if is_download(given):
        if downloads:
            return given.absolute()
        raise download_without_rows(given)
    if not given.is_file():
        return None
    directory = run_of_file(given)
    if directory is not None:
        return directory
    if given.name == word and not given.suffix:
        return None  # a run may have the same name as a file
    raise OsmosisError(
        f"'{given}' is not a file of an evaluation run.",
        hint="name the run, its directory, or a file in it; results of a judge are compared by "
        "`osmosis eval rubric --baseline`",
    )


def download_without_rows(download: Path) -> OsmosisError:
    """Return the error for a downloaded run that lacks data available only in the original run."""
    from osmosis_ai.services.downloaded_runs import name_of_download

    return OsmosisError(
        f"'{download}' is a downloaded run, which has no dataset rows.",
        hint=f"name the run itself: platform:{name_of_download(download) or 'NAME'}",
    )


def run_of_file(file: Path) -> Path | None:
    """Return the run directory that contains a file or that a results file refers to, or None."""
    places = [file.absolute().parent]
    try:
        if file.stat().st_size <= _LARGEST_RESULT_BYTES:
            # The results file of a classic evaluation refers to the run's directory.
            places.append(Path(json.loads(file.read_bytes())["summary"]["run_dir"]))
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        pass
    return next((place for place in places if (place / "manifest.json").is_file()), None)


def _find_here(word: str, like: ComparedInputs | None) -> Path | None:
    """Return the directory of a run in the workspace; None if it does not exist."""
    if not word or not can_be_path(word):
        return None
    try:
        workspace = workspace_of_runs()
    except WorkspaceRequiredError:
        if _is_path(word):
            raise _missing(word, word, []) from None
        raise
    root = workspace.evals_dir
    if word.startswith(GIT):
        return _of_commit_here(root, _commit(word, workspace.root), like)
    if word == LAST:
        return next(iter(newest_runs(root)), None)
    given = Path(word)
    if given.name == word and (root / word / "manifest.json").is_file():
        return root / word
    known = archived_names(root) if is_archive(word) else [path.name for path in newest_runs(root)]
    name = _only(word, [each for each in known if each.startswith(word)])
    return root / name if name is not None else None


def _only(word: str, names: list[str]) -> str | None:
    """Return the only name with the prefix; None if no name has it."""
    if len(names) > 1:
        more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
        raise ConflictError(
            f"'{word}' matches {len(names)} runs: {', '.join(names[:_MOST_SHOWN])}{more}.",
            details={"candidates": names[:_MOST_SHOWN]},
            hint="write more of the name",
        )
    return names[0] if names else None


def _commit(word: str, root: Path) -> str:
    from osmosis_ai.workspace.git import run_git

    ref = word.removeprefix(GIT)
    found = run_git(["rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}"], cwd=root)
    if not ref or found.returncode != 0:
        raise NotFoundError(
            f"Commit '{ref}' not found in the repository {root}.",
            hint="fetch it first: git fetch origin REF; or name the run",
        )
    return found.stdout.strip()


def _of_commit_here(root: Path, commit: str, like: ComparedInputs | None) -> Path | None:
    """Return the newest finished run of an unmodified commit, and of the config of ``like``."""
    from osmosis_ai.decisions.local_runs import read_inputs
    from osmosis_ai.evaluation.local_results import read_local_results

    chosen: list[Path] = []
    configs = set()
    for directory in newest_runs(root):
        try:
            inputs = read_inputs(directory)
        except OsmosisError:
            continue
        if inputs.commit == commit and not inputs.dirty and _same_config(inputs, like):
            chosen.append(directory)
            configs.add(inputs.config or f"{inputs.rollout} on {inputs.dataset_name}")
    if len(configs) > 1:
        names = [path.name for path in chosen]
        raise ConflictError(
            f"Commit {commit[:12]} has runs of {len(configs)} configs: {', '.join(sorted(configs)[:_MOST_SHOWN])}.",
            details={"candidates": names[:_MOST_SHOWN]},
            hint=f"name the run: {', '.join(names[:_MOST_SHOWN])}",
        )
    return next((path for path in chosen if read_local_results(path).unfinished is None), None)


def _same_config(inputs: ComparedInputs, like: ComparedInputs | None) -> bool:
    """Whether two runs have the same config path or, without one, the same rollout and dataset."""
    if like is None:
        return True
    if inputs.config is not None and like.config is not None:
        return inputs.config == like.config
    return (inputs.rollout, inputs.dataset_name) == (like.rollout, like.dataset_name)


def _missing(reference: str, word: str, names: Sequence[str] | None = None) -> NotFoundError:
    """Return the error about a run that is not on this machine; ``names`` are the local runs."""
    from difflib import get_close_matches

    names = local_names() if names is None else names
    given = expanded(word)
    if word.startswith(GIT):
        return NotFoundError(
            f"No finished run of commit '{word.removeprefix(GIT)}' found in {evals_directory()}.",
            details={"reference": reference},
            hint="check it out and evaluate it with `osmosis eval run`; runs with uncommitted changes do not count",
        )
    is_directory = _is_path(word) and given.is_dir()
    kind = "File" if word.endswith(_RESULTS) else "Directory" if _is_path(word) else "Run"
    message = f"{kind} '{word}' not found."
    message = f"There is no run in '{given}'." if is_directory else message
    near = get_close_matches(given.name, names, n=3, cutoff=0.0 if is_directory else 0.5)
    hint = None if _is_path(word) else "start one with `osmosis eval run`"
    hint = f"latest local runs: {', '.join(names[:5])}; all: osmosis eval list" if names else hint
    return NotFoundError(
        message,
        details={"reference": reference, "nearest": near},
        hint=f"did you mean {' or '.join(near)}?" if near else hint,
    )


def _name_there(word: str, client: PlatformClient, like: ComparedInputs | None) -> str:
    """Return the name of a platform's run, or the id by which it was requested."""
    from difflib import get_close_matches

    from osmosis_ai.api.http_errors import PlatformError
    from osmosis_ai.services.names import names_of
    from osmosis_ai.services.runs.lifecycle import get_evaluation

    if word.startswith(GIT):
        return _of_commit_there(word, client, like)
    if word == LAST:
        names = names_of(client, "eval")
        if not names:
            raise NotFoundError(
                f"No evaluation run found on {client.platform_url}.", hint="osmosis eval submit CONFIG"
            )
        return names[0]
    try:
        get_evaluation(client, word)
        return word
    except PlatformError as error:
        if error.status != 404 or (error.platform_code or "").startswith("GIT_"):
            raise
        names = names_of(client, "eval")
        name = _only(word, [each for each in names if each.startswith(word)])
        if name is not None:
            return name
        near = get_close_matches(word, names, n=3, cutoff=0.5)
        error.hint = error.hint or (f"did you mean {' or '.join(near)}?" if near else None)
        raise


def _of_commit_there(word: str, client: PlatformClient, like: ComparedInputs | None) -> str:
    """Return the newest finished run of a commit and config on the first page of the platform's list."""
    from osmosis_ai.services.eval_runs.info import list_runs
    from osmosis_ai.services.listing import DEFAULT_LIMIT
    from osmosis_ai.workspace.layout import find_workspace

    commit = _commit(word, find_workspace(require_scaffold=False).root)
    for row in list_runs(client, limit=DEFAULT_LIMIT, everything=False).items:
        rollout, dataset = (part.name if part is not None else None for part in (row.rollout, row.dataset))
        same = like is None or (rollout, dataset) == (like.rollout, like.dataset_name)
        dirty = row.imported is not None and row.imported.git_dirty
        if row.commit_sha == commit and row.status == "finished" and same and not dirty:
            return row.name or row.id
    raise NotFoundError(
        f"No finished run of commit {commit[:12]} found among the latest on {client.platform_url}.",
        hint="name the run; runs with uncommitted changes do not count",
    )


def run_not_found(run: str, missing: NotFoundError, error: OsmosisError) -> OsmosisError:
    """Return the error about a run that was found neither on this machine nor on a platform."""
    platform_code = getattr(error, "platform_code", None)
    near = missing.hint if missing.details.get("nearest") or run.startswith(GIT) else None
    if error.code in ("AUTH_REQUIRED", "VALIDATION") and getattr(error, "status", None) is None:
        # Without a Git origin, no platform has runs of this workspace.
        if error.code == "AUTH_REQUIRED" and near is None:
            missing.hint = f"{missing.hint}; to see a platform's runs: osmosis login"
        return missing
    if error.code == "NOT_FOUND" and not (platform_code or "").startswith("GIT_"):
        suggested = getattr(error, "body", {}).get("suggestion")
        if isinstance(suggested, str) and suggested:
            near = f"did you mean {suggested[:_LONGEST_NAME]}?"
        if error.hint is not None and error.hint.startswith("did you mean"):
            near = error.hint
        return NotFoundError(
            f"Run '{run}' not found, neither on this machine nor on the platform.",
            details=missing.details,
            hint=near or "`osmosis eval list` lists all runs",
        )
    if getattr(error, "status", 0) is None and near:
        # An unreachable platform may have the run, and so may this machine under a similar name.
        error.hint = near
    return error


def workspace_of_runs() -> WorkspaceDirectory:
    """Return the workspace, or the current directory if it contains runs of a classic evaluation."""
    from osmosis_ai.workspace.layout import WorkspaceDirectory, find_workspace

    try:
        return find_workspace(require_scaffold=False)
    except WorkspaceRequiredError:
        here = WorkspaceDirectory(Path.cwd())
        if not here.evals_dir.is_dir():
            raise
        return here


def newest_runs(root: Path) -> list[Path]:
    """Return the workspace's run directories, newest first, without archived ones."""
    return [directory for directory in _dated(root) if not is_archive(directory.name)]


def archived_names(root: Path) -> list[str]:
    return [directory.name for directory in _dated(root) if is_archive(directory.name)]


def unreadable_names(root: Path) -> list[str]:
    """Return the names of directories without read permission, which may or may not be runs."""
    try:
        folders = [path for path in root.iterdir() if path.is_dir()]
    except OSError:
        return []
    return sorted(path.name for path in folders if not os.access(path, os.R_OK | os.X_OK))


def _dated(root: Path) -> list[Path]:
    dated = []
    for path in root.glob("*/manifest.json"):
        try:
            dated.append((path.stat().st_mtime_ns, path.parent))
        except OSError:
            continue  # being removed
    return [directory for _, directory in sorted(dated, reverse=True)]


def readable(directory: Path) -> Path:
    """Return a run's directory after checking that its files are regular files."""
    from osmosis_ai.viewer.local_runs import irregular_file

    name = irregular_file(directory)
    if name is None:
        return directory
    raise OsmosisError(
        f"Run '{directory.name}' cannot be read: '{directory / name}' is not a regular file.",
        hint="runs create only regular files there; move it or the run away",
    )


def evaluation(directory: Path) -> Path:
    from osmosis_ai.viewer.local_runs import kind_of

    if kind_of(directory) != "training":
        return directory
    named = quote(str(directory))
    raise OsmosisError(
        f"'{directory}' is a training directory, not an evaluation.",
        hint=f"osmosis train info {named}, osmosis train show {named}",
    )
