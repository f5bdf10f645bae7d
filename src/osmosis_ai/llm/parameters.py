"""Learn from an endpoint's errors which parameters it accepts.

Parameters that we added (a seed, the usage chunk) are dropped if the endpoint rejects them. The caller's parameters are
never dropped, at most renamed to the endpoint's name. A correction is remembered only if the corrected request
succeeds, so an error with another cause has no effect.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from osmosis_ai.llm.errors import ModelCallError

_NEWER_NAMES = {"max_tokens": "max_completion_tokens"}


class ParameterFit:
    """Adapts requests to one endpoint.

    Args:
        renames: known renames: our name -> the endpoint's name.
    """

    def __init__(self, renames: Mapping[str, str]) -> None:
        self._renames = dict(renames)
        self._refused: set[str] = set()

    @property
    def refused(self) -> tuple[str, ...]:
        """The parameters that the endpoint does not accept."""
        return tuple(sorted(self._refused))

    def request(self, body: Mapping[str, Any], *, optional: Iterable[str]) -> FittedRequest:
        """Adapt one request; ``optional`` names the parameters that the caller did not set."""
        return FittedRequest(self, body, frozenset(optional))

    def learn(self, refused: Iterable[str], renames: Mapping[str, str]) -> None:
        """Remember a successful correction."""
        self._refused.update(refused)
        self._renames.update(renames)

    def apply(self, body: Mapping[str, Any], optional: frozenset[str]) -> dict[str, Any]:
        """Return ``body`` with the known corrections."""
        renames = self._renames
        dropped = self._refused & optional if self._refused else ()
        return {renames.get(name, name): value for name, value in body.items() if name not in dropped}


class FittedRequest:
    """A request that is corrected when the endpoint rejects a parameter."""

    def __init__(self, fit: ParameterFit, body: Mapping[str, Any], optional: frozenset[str]) -> None:
        self._fit = fit
        self._optional = {fit._renames.get(name, name) for name in optional}
        self.body = fit.apply(body, optional)
        self._dropped: list[str] = []
        self._renamed: dict[str, str] = {}

    def correct(self, error: ModelCallError) -> bool:
        """Correct the request after an error; False if no correction applies."""
        if error.status not in (400, 422):
            return False
        blamed = (error.body or {}).get("param")
        for old, new in _NEWER_NAMES.items():
            if old in self.body and new not in self.body and _mentions(error.provider_message, new):
                self.body[new] = self.body.pop(old)
                self._renamed[old] = new
                return True
        for name in sorted(self._optional & self.body.keys()):
            if name == blamed or _mentions(error.provider_message, name):
                del self.body[name]
                self._dropped.append(name)
                return True
        return False

    def succeeded(self) -> None:
        """Apply the corrections to the endpoint's other requests."""
        if self._dropped or self._renamed:
            self._fit.learn(self._dropped, self._renamed)


def _mentions(text: str, name: str) -> bool:
    return re.search(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])", text) is not None
