"""Supervised child processes: they end with this process, and report readiness or an error.

:class:`ChildProcess` is any child; :class:`Service` is one that serves. ``python -m osmosis_ai.supervision`` guards
a third-party program.
"""

from osmosis_ai.supervision.child_process import (
    TERMINATION_GRACE_S,
    ChildProcess,
    ContainedProgram,
    ProgramStart,
    exit_words,
    lower_priority,
    program_start,
    watch_parent,
)
from osmosis_ai.supervision.kept_to_itself import is_debuggable, keep_to_itself, take_handed
from osmosis_ai.supervision.server_address import PrivateSocket, open_server_session, server_url
from osmosis_ai.supervision.service import (
    Deaths,
    Service,
    ServiceDiedError,
    ServiceError,
    ServiceSpec,
    free_port,
    is_free,
)

__all__ = [
    "TERMINATION_GRACE_S",
    "ChildProcess",
    "ContainedProgram",
    "Deaths",
    "PrivateSocket",
    "ProgramStart",
    "Service",
    "ServiceDiedError",
    "ServiceError",
    "ServiceSpec",
    "exit_words",
    "free_port",
    "is_debuggable",
    "is_free",
    "keep_to_itself",
    "lower_priority",
    "open_server_session",
    "program_start",
    "server_url",
    "take_handed",
    "watch_parent",
]
