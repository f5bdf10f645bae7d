"""What a platform says that it offers, so that a client need not find out by failing.

Every reply of our own platform carries the header; the hosted service sends none. There everything that is documented
of its wire is assumed, and nothing of what only our platform has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

CAPABILITIES_HEADER = "X-Osmosis-Capabilities"
_LONGEST_HEADER = 4_096


class Capability(Enum):
    """Something that not every platform offers.

    Attributes:
        value: its name on the wire.
        what: its name in a sentence: "this platform does not offer …".
        of_the_contract: whether the hosted service has it.
    """

    what: str
    of_the_contract: bool

    BENCHMARKS = "benchmarks", "benchmark runs", True
    DEV_SERVERS = "dev-servers", "rollout servers for development", True
    EVAL_IMPORTS = "eval-imports", "the upload of evaluations that ran elsewhere", True
    QUICKSTART = "quickstart", "the quickstart", True
    DELETION = "deletion", "deleting datasets and runs", False
    EVAL_JOURNALS = "eval-journals", "the journal of an evaluation as a download", False
    EVAL_RETRIES = "eval-retries", "the retry of an evaluation's failed samples", False
    EVAL_SAMPLES = "eval-samples", "the results of an evaluation's single attempts", False
    RUBRIC_RESULTS = "rubric-results", "the upload of rubric results", False
    TRAINING_VALIDATION = "training-validation", "the samples of a training run's validation", False
    SECRET_AUDIT = "secret-audit", "the audit of which secrets were handed out", False
    RUN_EVENTS = "run-events", "what is new in a run, told while it happens", False

    def __new__(cls, value: str, what: str, of_the_contract: bool) -> Capability:
        """Make a member whose value is its name on the wire alone."""
        member = object.__new__(cls)
        member._value_ = value
        member.what, member.of_the_contract = what, of_the_contract
        return member


HOSTED = frozenset(capability for capability in Capability if capability.of_the_contract)
"""What is assumed of a platform that says nothing."""


def capabilities_header(offered: Iterable[Capability]) -> str:
    """Return the header's value for a platform that offers these."""
    return ", ".join(sorted(capability.value for capability in offered))


def read_capabilities(headers: Mapping[str, str]) -> frozenset[Capability] | None:
    """Return what a reply's headers (lower-case names) say is offered; None when they say nothing.

    Names that this version does not know are passed over.
    """
    said = headers.get(CAPABILITIES_HEADER.lower())
    if said is None:
        return None
    names = {name.strip() for name in said[:_LONGEST_HEADER].split(",")}
    return frozenset(capability for capability in Capability if capability.value in names)
