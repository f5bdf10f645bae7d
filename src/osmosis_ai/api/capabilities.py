"""The capabilities that a platform reports, so that clients need not probe for them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum

CAPABILITIES_HEADER = "X-Osmosis-Capabilities"
_LONGEST_HEADER = 4_096


class Capability(Enum):
    """A feature that not every platform supports."""

    what: str
    of_the_contract: bool

    BENCHMARKS = "benchmarks", "benchmark runs", True
    DEV_SERVERS = "dev-servers", "development rollout servers", True
    EVAL_IMPORTS = "eval-imports", "uploading evaluations", True
    QUICKSTART = "quickstart", "the quickstart", True
    DELETION = "deletion", "deleting datasets and runs", False
    EVAL_JOURNALS = "eval-journals", "downloading the journals of evaluations", False
    EVAL_RETRIES = "eval-retries", "retrying evaluations", False
    EVAL_SAMPLES = "eval-samples", "listing the attempts of an evaluation", False
    MODEL_DOWNLOADS = "model-downloads", "downloading models", False
    SERVED_AGENTS = "served-agents", "served agents", False
    TRAINING_RESUME = "training-resume", "resuming training runs", False
    TRAINING_VALIDATION = "training-validation", "the validation attempts of training runs", False
    SECRET_AUDIT = "secret-audit", "the secret access log", False

    def __new__(cls, value: str, what: str, of_the_contract: bool) -> Capability:
        """Create a member whose value is only its name on the wire."""
        member = object.__new__(cls)
        member._value_ = value
        member.what, member.of_the_contract = what, of_the_contract
        return member


HOSTED = frozenset(capability for capability in Capability if capability.of_the_contract)
"""The capabilities of a platform that reports none."""

_OWN_ROUTES = {
    re.compile(f"/api/cli{pattern}$"): capability
    for pattern, capability in {
        r"/environment-secrets/audit": Capability.SECRET_AUDIT,
        r"/eval-runs/[^/]+/retry(/check)?": Capability.EVAL_RETRIES,
        r"/eval-runs/[^/]+/samples": Capability.EVAL_SAMPLES,
        r"/models/[^/]+/download": Capability.MODEL_DOWNLOADS,
        r"/rollout-server/register": Capability.SERVED_AGENTS,
        r"/rollout-servers(/[^/]+(/probe)?)?": Capability.SERVED_AGENTS,
        r"/training-runs/[^/]+/resume": Capability.TRAINING_RESUME,
        r"/training-runs/[^/]+/validation(/[^/]+/[^/]+)?": Capability.TRAINING_VALIDATION,
    }.items()
}


def capability_of_route(path: str) -> Capability | None:
    """Return the capability of a route that only our platform has; None for routes of the hosted service."""
    return next((found for pattern, found in _OWN_ROUTES.items() if pattern.search(path)), None)


def capabilities_header(offered: Iterable[Capability]) -> str:
    return ", ".join(sorted(capability.value for capability in offered))


def read_capabilities(headers: Mapping[str, str]) -> frozenset[Capability] | None:
    """Parse the capabilities from a reply's headers (lower-case names); None if there are none."""
    said = headers.get(CAPABILITIES_HEADER.lower())
    if said is None:
        return None
    names = {name.strip() for name in said[:_LONGEST_HEADER].split(",")}
    return frozenset(capability for capability in Capability if capability.value in names)
