"""Registry of agent loops by name."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from .core.exceptions import AgentLoopNotFoundError

if TYPE_CHECKING:
    from .core.base import RolloutAgentLoop


class AgentLoopRegistry:
    """Thread-safe registry of agent loops by name."""

    def __init__(self) -> None:
        self._loops: dict[str, RolloutAgentLoop] = {}
        self._lock = threading.Lock()

    def register(self, agent_loop: RolloutAgentLoop) -> None:
        """Add an agent loop under its name. Raises ValueError if the name is taken."""
        with self._lock:
            if agent_loop.name in self._loops:
                raise ValueError(f"agent loop '{agent_loop.name}' is already registered")
            self._loops[agent_loop.name] = agent_loop

    def unregister(self, name: str) -> bool:
        """Remove an agent loop and return whether it existed."""
        return self._loops.pop(name, None) is not None

    def get(self, name: str) -> RolloutAgentLoop | None:
        """Return the agent loop of this name, or None."""
        return self._loops.get(name)

    def list_names(self) -> list[str]:
        """Return the names in order of registration."""
        return list(self._loops)

    def clear(self) -> None:
        """Remove all agent loops."""
        self._loops.clear()


_REGISTRY = AgentLoopRegistry()

register_agent_loop = _REGISTRY.register
unregister_agent_loop = _REGISTRY.unregister
list_agent_loops = _REGISTRY.list_names


def get_agent_loop(name: str) -> RolloutAgentLoop:
    """Return a registered agent loop. Raises AgentLoopNotFoundError, which lists the registered names."""
    found = _REGISTRY.get(name)
    if found is None:
        raise AgentLoopNotFoundError(name, _REGISTRY.list_names())
    return found
