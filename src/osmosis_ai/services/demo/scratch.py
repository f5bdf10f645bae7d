"""The demo's directory: a workspace, and beside it what would otherwise be the user's own."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import expanded
from osmosis_ai.process_environment import PACKAGE_PREFIXES, chosen, python_environment
from osmosis_ai.workspace.git import run_git
from osmosis_ai.workspace.samples import copy_sample_workspace

CONFIG = "configs/eval/multiply.toml"
ENV_FILE = "env.sh"
DATASET = "data/multiply.jsonl"
TRAINING_CONFIG = "configs/training/multiply.toml"
TRAINING_DATASET = "data/multiply_train.jsonl"
# How much is shown, and how.
_SHOWN_AS = ("OSMOSIS_DEBUG", "NO_COLOR", "FORCE_COLOR", "COLORTERM", "COLUMNS", "LINES")
_REMOVING_TRIES, _REMOVING_PAUSE_S = 50, 0.2


@dataclass(frozen=True, slots=True)
class Scratch:
    """The demo's directory; a ``temporary`` one is nobody's choice."""

    root: Path
    temporary: bool = False

    @property
    def workspace(self) -> Path:
        """The copy of the sample workspace."""
        return self.root / "workspace"

    @property
    def origin(self) -> Path:
        """The repository that the workspace is pushed to."""
        return self.root / "origin.git"

    @property
    def platform_log(self) -> Path:
        """What the demo's platform wrote to stderr."""
        return self.root / "platform.log"

    def own_variables(self) -> dict[str, str]:
        """Return the variables that make commands use this directory instead of the user's."""
        return {
            "OSMOSIS_CONFIG_DIR": str(self.root / "config"),
            "OSMOSIS_CACHE_DIR": str(self.root / "cache"),
            "OSMOSIS_HOME": str(self.root / "data"),
            "OSMOSIS_ENV_FILE": str(self.root / "empty.env"),
            "OSMOSIS_TOKEN_STORE": "file",
            "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
        }

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the demo's commands: nothing of the user's Osmosis or Git shows through."""
        kept = {
            **python_environment(inherited),
            **chosen(inherited, _SHOWN_AS, PACKAGE_PREFIXES),
        }
        return {**kept, **self.own_variables()}

    def push(self) -> None:
        """Give the workspace an origin that has its commit, as a hosted repository would.

        Raises:
            OsmosisError: when Git fails.
        """
        self._git("init", "--quiet", "--bare", "--initial-branch=main", str(self.origin))
        self._git("remote", "add", "origin", str(self.origin))
        self._git("push", "--quiet", "--set-upstream", "origin", "main")

    def discard(self) -> None:
        """Remove a temporary directory; whatever wrote to it may still be ending."""
        for _ in range(_REMOVING_TRIES if self.temporary else 0):
            shutil.rmtree(self.root, ignore_errors=True)
            if not self.root.exists():
                return
            time.sleep(_REMOVING_PAUSE_S)

    def _git(self, *arguments: str) -> None:
        done = run_git(arguments, cwd=self.workspace, env=self.own_variables())
        if done.returncode != 0:
            raise OsmosisError(f"`git {arguments[0]}` failed: {done.stderr.strip()}", code="INTERNAL")


def prepare_scratch(directory: Path | None) -> Scratch:
    """Make the demo's directory with the sample workspace in it.

    Args:
        directory: where; it must be empty or not there yet. None picks a new temporary directory.

    Raises:
        OsmosisError: ``directory`` holds something, or the samples cannot be copied.
    """
    if directory is None:
        root = Path(tempfile.mkdtemp(prefix="osmosis-demo-"))
    else:
        root = expanded(directory).absolute()
        if root.exists() and (not root.is_dir() or any(root.iterdir())):
            raise OsmosisError(
                f"{root} is not an empty directory.", hint="name one that does not exist: --keep-dir DIR"
            )
        root.mkdir(parents=True, exist_ok=True)
    scratch = Scratch(root.resolve(), temporary=directory is None)
    try:
        for name in ("config", "cache", "data"):
            (scratch.root / name).mkdir(mode=0o700)
        (scratch.root / "empty.env").touch()
        copy_sample_workspace(scratch.workspace)
    except BaseException:
        scratch.discard()
        raise
    return scratch
