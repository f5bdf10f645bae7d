"""What `eval run --isolate` holds a rollout back with, on the user's own machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.sandbox import Network, Sandbox

_OPTIONS = {"isolation": "--isolate", "network": "--network none", "servers": "--servers"}


def local_sandbox(root: Path, rollout_dir: Path, *, network: Network, port: int | None) -> Sandbox:
    """Return the sandbox of a rollout here: it sees its workspace, without `.env`, earlier runs and other dotfiles.

    Args:
        root: the workspace directory.
        rollout_dir: the rollout's directory, to which it may write; nothing of that stays.
        network: what it reaches.
        port: that the user chose for its server.

    Raises:
        IsolationUnavailableError: this machine can hold nothing back.
        OsmosisError: a port is asked for where there is no network.
    """
    from osmosis_ai.sandbox import RunLimits, check_sandbox, choose_isolation

    if network == "none" and port is not None:
        raise OsmosisError(
            "`--rollout-port` and `--network none` do not go together.",
            hint="leave the port out: the server is reached by a socket",
        )
    capability = check_sandbox()
    choose_isolation("required", capability, network)
    # A link could lead out of the workspace.
    shown = [place for place in root.iterdir() if not place.name.startswith(".") and not place.is_symlink()]
    return capability.sandbox(rollout_dir, readable=shown, limits=RunLimits(), network=network)


def isolation_fact(sandbox: Sandbox | None) -> str | None:
    """Return what a run's manifest and its page say of the sandbox; None without one."""
    return None if sandbox is None else f"bubblewrap, network {sandbox.network}"


def advanced_note(advanced: Mapping[str, Any], sandbox: Sandbox | None) -> str:
    """Return what the user should know of a config's ``[advanced]`` in a run on this machine.

    Args:
        advanced: the section.
        sandbox: what the run has by its options.
    """
    from osmosis_ai.config.execution import EXECUTION

    said = "`[advanced]` is recorded, but it means nothing to a run on this machine"
    asked = advanced.get(EXECUTION)
    given = set() if sandbox is None else {"isolation", *(["network"] if sandbox.network == "none" else [])}
    options = [
        f"`{option}` is for its `{key}`"
        for key, option in _OPTIONS.items()
        if isinstance(asked, Mapping) and key in asked and key not in given
    ]
    return f"{said}; {' and '.join(options)}." if options else f"{said}."
