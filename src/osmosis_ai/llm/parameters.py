"""Which parameters an endpoint takes, learnt from its refusals.

What *we* added to a request (a seed, the wish for a usage chunk) is left out where the endpoint
refuses it; what the caller asked for is never dropped, at most sent under the endpoint's own name.
A lesson counts only after the corrected request succeeded, so a refusal for another reason
teaches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from osmosis_ai.llm.errors import ModelCallError

_NEWER_NAMES = {"max_tokens": "max_completion_tokens"}


class ParameterFit:
    """Shapes requests for one endpoint.

    Args:
        renames: names known beforehand: ours -> the endpoint's.
    """

    def __init__(self, renames: Mapping[str, str]) -> None:
        self._renames = dict(renames)
        self._refused: set[str] = set()

    @property
    def refused(self) -> tuple[str, ...]:
        """Names of the parameters the endpoint does not take."""
        return tuple(sorted(self._refused))

    def request(self, body: Mapping[str, Any], *, optional: Iterable[str]) -> FittedRequest:
        """Shape one request; ``optional`` names what the caller did not ask for."""
        return FittedRequest(self, body, frozenset(optional))

    def learn(self, refused: Iterable[str], renames: Mapping[str, str]) -> None:
        """Remember what a successful correction showed."""
        self._refused.update(refused)
        self._renames.update(renames)

    def apply(self, body: Mapping[str, Any], optional: frozenset[str]) -> dict[str, Any]:
        """Return ``body`` as the endpoint is known to take it."""
        renames = self._renames
        dropped = self._refused & optional if self._refused else ()
        return {renames.get(name, name): value for name, value in body.items() if name not in dropped}


class FittedRequest:
    """One request, corrected as the endpoint refuses parts of it."""

    def __init__(self, fit: ParameterFit, body: Mapping[str, Any], optional: frozenset[str]) -> None:
        self._fit = fit
        self._optional = {fit._renames.get(name, name) for name in optional}
        self.body = fit.apply(body, optional)
        self._dropped: list[str] = []
        self._renamed: dict[str, str] = {}

    def correct(self, error: ModelCallError) -> bool:
        """Change the request in answer to a refusal; False when there is nothing to change."""
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
        """Let the endpoint's other requests profit from the corrections."""
        if self._dropped or self._renamed:
            self._fit.learn(self._dropped, self._renamed)


def _mentions(text: str, name: str) -> bool:
    return re.search(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])", text) is not None
