"""An agent that is served elsewhere: nothing of it is here but where it is and what it asks for as a key.

What it is made of is its owner's; a result depends on the name that a run gave it, and on no file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from osmosis_ai.evaluation.rollout_source import RolloutSource, ServerSetting

if TYPE_CHECKING:
    from osmosis_ai.controller.remote_agents import AgentLocation, RemoteAgent


class ServedSource(RolloutSource):
    """A served agent, as runs know it."""

    is_elsewhere: ClassVar[bool] = True

    def __init__(self, name: str, locate: Callable[[], AgentLocation], *, hint: str) -> None:
        self.name = name
        self._hint = hint
        self._locate = locate

    def source_digest(self, output_root: Path) -> str:
        """Return the digest of the agent's name."""
        return hashlib.sha256(f"server://{self.name}".encode()).hexdigest()

    async def server(self, setting: ServerSetting) -> tuple[None, RemoteAgent]:
        """Return the agent, not yet looked for."""
        setting.note(f"the agent is served elsewhere: `{self.name}`")
        return None, self.agent(setting.directory.trials)

    def agent(self, artifact_root: Path) -> RemoteAgent:
        """Return the agent; it calls back where the operator of this machine says."""
        from osmosis_ai.controller.callbacks import CallbackAddress
        from osmosis_ai.controller.remote_agents import RemoteAgent

        return RemoteAgent(
            self._locate,
            name=f"the served agent `{self.name}`",
            callback_address=CallbackAddress.from_environment(os.environ),
            artifact_root=artifact_root,
            hint=self._hint,
        )
