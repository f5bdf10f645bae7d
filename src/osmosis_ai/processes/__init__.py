"""Child processes that end with this process, and services that report readiness or an error.

``python -m osmosis_ai.processes PROGRAM ...`` does the same for a third-party program.
"""

from osmosis_ai.processes.addresses import PrivateSocket, open_server_session, server_url
from osmosis_ai.processes.child_process import (
    ChildProcess,
    ContainedProgram,
    ProgramStart,
    describe_exit,
    lower_priority,
    program_start,
    watch_parent,
)
from osmosis_ai.processes.privacy import disable_inspection, is_debuggable, take_private_variables
from osmosis_ai.processes.service import (
    Deaths,
    Service,
    ServiceDiedError,
    ServiceError,
    ServiceSpec,
    free_port,
    is_free,
)

__all__ = [
    "ChildProcess",
    "ContainedProgram",
    "Deaths",
    "PrivateSocket",
    "ProgramStart",
    "Service",
    "ServiceDiedError",
    "ServiceError",
    "ServiceSpec",
    "describe_exit",
    "disable_inspection",
    "free_port",
    "is_debuggable",
    "is_free",
    "lower_priority",
    "open_server_session",
    "program_start",
    "server_url",
    "take_private_variables",
    "watch_parent",
]
