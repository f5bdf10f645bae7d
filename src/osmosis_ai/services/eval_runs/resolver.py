"""Resolve run references (path, name, unique prefix, `@last`, `git:REF`), first locally, then on the platform.

References are never guessed: an ambiguous prefix lists all matches, an unknown name the nearest ones. Local
runs need no login, because the platform is queried only for runs that are not on this machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.files import can_be_path, expanded
from osmosis_ai.services.eval_runs.run_directories import (
    archived_names,
    evaluation,
    newest_runs,
    readable,
    workspace_of_runs,
)

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.decisions.samples import ComparedInputs, RunSamples

Client = Callable[[], "PlatformClient"]
"""Connects to the platform on call, which requires a login."""

LAST = "@last"
GIT = "git:"
_PLACES = ("local", "platform")
_MOST_SHOWN = 10
_LONGEST_NAME = 255
"""Maximum length of a platform run's name, in characters."""
_LARGEST_RESULT_BYTES = 64 << 20


@dataclass(frozen=True)
class ResolvedRun:
    """The location of a run.

    Attributes:
        place: found by name on this machine, on the platform, or at a path.
        name: the run's name; for a platform's run possibly its id.
        directory: directory of a local run; None for a run of the platform.
    """

    place: Literal["local", "platform", "file"]
    name: str
    directory: Path | None = None


def find_run_samples(
    reference: str, *, client: Client, start: Path | None = None, like: ComparedInputs | None = None
) -> RunSamples:
    """Find a run and read its samples.

    Args:
        reference: as the user named it.
        client: connects to the platform; called only if the run is not on this machine.
        start: a directory in the workspace; the current one when None.
        like: for `git:REF`: inputs of a run whose config is meant.

    Raises:
        NotFoundError: the run does not exist; the message lists the nearest names.
        ConflictError: the reference is ambiguous.
        OsmosisError: the run cannot be read.
    """
    found = resolve_run(reference, client=client, start=start, like=like)
    if found.directory is None:
        from osmosis_ai.services.eval_runs.platform_samples import read_platform_samples
        from osmosis_ai.services.eval_runs.run_datasets import platform_dataset

        platform = client()
        run = read_platform_samples(platform, found.name)
        return replace(run, open_dataset=lambda: platform_dataset(platform, run))
    return read_run_directory(found.directory, place=found.place, client=client, start=start)


def read_run_directory(
    directory: Path,
    *,
    client: Client,
    place: Literal["local", "platform", "file"] = "local",
    start: Path | None = None,
) -> RunSamples:
    """Read a local run; its dataset is located on first use.

    Raises:
        OsmosisError: as ``read_local_samples``.
    """
    from osmosis_ai.decisions.local_runs import read_local_samples
    from osmosis_ai.services.eval_runs.run_datasets import local_dataset

    run = replace(read_local_samples(directory), place=place)
    return replace(run, open_dataset=lambda: local_dataset(run, directory, client, start))


def resolve_run(
    reference: str,
    *,
    client: Client,
    start: Path | None = None,
    like: ComparedInputs | None = None,
    downloads: bool = False,
) -> ResolvedRun:
    """Locate a run; arguments and errors as in :func:`find_run_samples`.

    With ``downloads``, the directory of a downloaded run (``services.downloaded_runs``) is accepted.
    """
    place, word = _forced(reference)
    if place is None and (directory := _at_path(word, downloads)) is not None:
        return ResolvedRun("file", directory.name, evaluation(readable(directory)))
    if place == "platform":
        return ResolvedRun("platform", _name_there(word, client(), start, like))
    here = _find_here(word, start, like)
    if here is not None:
        return ResolvedRun("local", here.name, readable(here))
    missing = _missing(reference, word, start)
    if place == "local" or _is_path(word):
        raise missing
    from osmosis_ai.services.eval_runs.info import run_nowhere

    try:
        return ResolvedRun("platform", _name_there(word, client(), start, like))
    except OsmosisError as error:
        raise run_nowhere(word, missing, error) from None


def find_local_run(reference: str, *, start: Path | None = None, downloads: bool = False) -> Path:
    """Return the directory of a local run, given its path, its name or `@last`.

    Args:
        reference: as the user named it.
        start: a directory in the workspace; the current one when None.
        downloads: accept the directory of a downloaded run (``services.downloaded_runs``).

    Raises:
        NotFoundError: the run does not exist; the message lists existing names.
        ConflictError: the reference is ambiguous.
    """
    place, word = _forced(reference)
    directory = _at_path(word, downloads) if place is None else None
    here = directory or (_find_here(word, start, None) if place != "platform" else None)
    if here is None:
        raise _missing(reference, word, start)
    return readable(here)


def names_commit(reference: str) -> bool:
    """Whether a reference is `git:REF`, with or without a place."""
    return _forced(reference)[1].startswith(GIT)


def evals_directory(start: Path | None = None) -> Path:
    """Return the directory that contains the runs of this machine.

    Raises:
        WorkspaceRequiredError: there is no workspace, and the current directory has no runs.
    """
    return workspace_of_runs(start).evals_dir


def named_on_platform(reference: str) -> str | None:
    """Return NAME of `platform:NAME`; None for other references."""
    place, word = _forced(reference)
    return word if place == "platform" else None


def local_names(start: Path | None = None) -> list[str]:
    """Return the names of the workspace's local runs, newest first."""
    return [directory.name for directory in newest_runs(evals_directory(start))]


def name_elsewhere(reference: str, missing: NotFoundError) -> str:
    """Return the platform name of a run that :func:`find_local_run` did not find.

    Raises:
        NotFoundError: ``missing``, if the reference can only mean a local run.
    """
    place, word = _forced(reference)
    if place == "local" or _is_path(word) or word == LAST or word.startswith(GIT):
        raise missing
    return word


def _forced(reference: str) -> tuple[str | None, str]:
    """Split off an explicit place from a reference."""
    place, colon, rest = reference.partition(":")
    forced, word = (place, rest) if colon and place in _PLACES else (None, reference)
    if "\0" in word or not (can_be_path(word) or (forced != "local" and _fits_a_platform(word))):
        raise NotFoundError(f"invalid run name: `{word[:40]}…`.", hint="osmosis eval list")
    return forced, word


def _fits_a_platform(word: str) -> bool:
    """Whether a platform's run can have this name; limits are in characters there, in bytes for files."""
    return (
        len(word) <= _LONGEST_NAME and not _is_path(word) and not any("\ud800" <= c <= "\udfff" for c in word)
    )


def _is_path(word: str) -> bool:
    """Whether a word is a path, not a name."""
    return Path(word).name != word and not word.startswith(GIT)


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
        raise tells_no_rows(given)
    if not given.is_file():
        return None
    directory = run_of_file(given)
    if directory is not None:
        return directory
    if given.name == word and not given.suffix:
        return None  # a run may have the same name as a file
    raise OsmosisError(
        f"`{given}` is not a file of an evaluation run.",
        hint="name the run, its directory, or a file in it; results of a judge are compared by "
        "`osmosis eval rubric --baseline`",
    )


def tells_no_rows(download: Path) -> OsmosisError:
    """Return the error for a downloaded run that lacks data available only in the original run."""
    from osmosis_ai.services.downloaded_runs import name_of_download

    return OsmosisError(
        f"`{download}` is a download of a platform's run, which does not contain its dataset rows.",
        hint=f"name the run itself: platform:{name_of_download(download) or 'NAME'}",
    )


def run_of_file(file: Path) -> Path | None:
    """Return the run directory that contains a file or that a results file refers to, or None."""
    for directory in (file.absolute().parent, _told_by(file)):
        if directory is not None and (directory / "manifest.json").is_file():
            return directory
    return None


def _told_by(file: Path) -> Path | None:
    """Return the run directory that a classic evaluation's results file refers to."""
    try:
        if file.stat().st_size > _LARGEST_RESULT_BYTES:
            return None
        return Path(json.loads(file.read_bytes())["summary"]["run_dir"])
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None


def _find_here(word: str, start: Path | None, like: ComparedInputs | None) -> Path | None:
    """Return the directory of a run in the workspace; None if it does not exist."""
    from osmosis_ai.evaluation.spec import is_archive

    if not word or not can_be_path(word):
        return None
    workspace = workspace_of_runs(start)
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
            f"`{word}` matches {len(names)} runs: {', '.join(names[:_MOST_SHOWN])}{more}.",
            details={"candidates": names[:_MOST_SHOWN]},
            hint="write more of the name",
        )
    return names[0] if names else None


def _commit(word: str, root: Path) -> str:
    """Return the commit that `git:REF` refers to."""
    from osmosis_ai.workspace.git import run_git

    ref = word.removeprefix(GIT)
    found = run_git(["rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}"], cwd=root)
    if not ref or found.returncode != 0:
        raise NotFoundError(
            f"`{word}`: the repository {root} has no commit `{ref}`.",
            hint="fetch it first: git fetch origin REF; or name the run",
        )
    return found.stdout.strip()


def _of_commit_here(root: Path, commit: str, like: ComparedInputs | None) -> Path | None:
    """Return the newest finished run of a commit and config, or None."""
    from osmosis_ai.evaluation.local_results import read_local_results

    chosen = [(path, inputs) for path, inputs in _clean_runs(root, commit) if _same_config(inputs, like)]
    configs = {inputs.config or f"{inputs.rollout} on {inputs.dataset_name}" for _, inputs in chosen}
    if len(configs) > 1:
        names = [path.name for path, _ in chosen]
        raise ConflictError(
            f"the commit {commit[:12]} has runs of {len(configs)} configs: {', '.join(sorted(configs)[:_MOST_SHOWN])}.",
            details={"candidates": names[:_MOST_SHOWN]},
            hint=f"name the run: {', '.join(names[:_MOST_SHOWN])}",
        )
    return next((path for path, _ in chosen if read_local_results(path).unfinished is None), None)


def _clean_runs(root: Path, commit: str) -> Iterator[tuple[Path, ComparedInputs]]:
    """Yield readable runs of an unmodified commit, newest first."""
    from osmosis_ai.decisions.local_runs import read_inputs

    for directory in newest_runs(root):
        try:
            inputs = read_inputs(directory)
        except OsmosisError:
            continue
        if inputs.commit == commit and not inputs.dirty:
            yield directory, inputs


def _same_config(inputs: ComparedInputs, like: ComparedInputs | None) -> bool:
    """Whether two runs have the same config path or, without one, the same rollout and dataset."""
    if like is None:
        return True
    if inputs.config is not None and like.config is not None:
        return inputs.config == like.config
    return (inputs.rollout, inputs.dataset_name) == (like.rollout, like.dataset_name)


def _missing(reference: str, word: str, start: Path | None) -> NotFoundError:
    """Return the error about a run that is not on this machine."""
    from difflib import get_close_matches

    root = workspace_of_runs(start).evals_dir
    names = local_names(start)
    given = expanded(word)
    if word.startswith(GIT):
        return NotFoundError(
            f"there is no finished run of the commit `{word.removeprefix(GIT)}` in {root}.",
            details={"reference": reference},
            hint="check it out and evaluate it with `osmosis eval run`; runs with uncommitted changes do not count",
        )
    no_run_in = _is_path(word) and given.is_dir()
    if no_run_in:
        message = f"there is no run in {given}."
    else:
        message = f"there is no run `{word}` in {root}."
    near = get_close_matches(given.name, names, n=3, cutoff=0.0 if no_run_in else 0.5)
    known = ", ".join(names[:5])
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return NotFoundError(
        message,
        details={"reference": reference, "nearest": near},
        hint=hint + (f"the latest local runs are: {known}" if known else "start one with `osmosis eval run`"),
    )


def _name_there(word: str, client: PlatformClient, start: Path | None, like: ComparedInputs | None) -> str:
    """Return the name of a platform's run, or the id by which it was requested."""
    from difflib import get_close_matches

    from osmosis_ai.api.http_errors import PlatformError
    from osmosis_ai.services.names import names_of

    if word.startswith(GIT):
        return _of_commit_there(word, client, start, like)
    if word == LAST:
        names = names_of(client, "eval")
        if not names:
            raise NotFoundError(
                f"{client.platform_url} has no evaluation run yet.", hint="osmosis eval submit CONFIG"
            )
        return names[0]
    try:
        client.eval_runs.get(word)
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


def _of_commit_there(
    word: str, client: PlatformClient, start: Path | None, like: ComparedInputs | None
) -> str:
    """Return the newest finished run of a commit and config on the first page of the platform's list."""
    from osmosis_ai.workspace.layout import find_workspace

    commit = _commit(word, find_workspace(start, require_scaffold=False).root)
    for row in client.eval_runs.list().eval_runs:
        rollout, dataset = (part.name if part is not None else None for part in (row.rollout, row.dataset))
        same = like is None or (rollout, dataset) == (like.rollout, like.dataset_name)
        if row.commit_sha == commit and row.status == "finished" and same:
            return row.name or row.id
    raise NotFoundError(
        f"{client.platform_url} has no finished run of the commit {commit[:12]} among the latest.",
        hint="name the run; `osmosis eval list` lists them",
    )
