"""Data types of the SDK and the rollout protocol."""

from .config import AgentWorkflowConfig as AgentWorkflowConfig
from .config import BaseConfig as BaseConfig
from .config import ConcurrencyConfig as ConcurrencyConfig
from .config import GraderConfig as GraderConfig
from .output import AgentWorkflowOutput as AgentWorkflowOutput
from .protocol import CancelRolloutsRequest as CancelRolloutsRequest
from .protocol import CancelRolloutsResponse as CancelRolloutsResponse
from .protocol import ExecutionRequest as ExecutionRequest
from .protocol import ExecutionResult as ExecutionResult
from .protocol import GraderCompleteRequest as GraderCompleteRequest
from .protocol import GraderInitRequest as GraderInitRequest
from .protocol import GraderInitResponse as GraderInitResponse
from .protocol import GraderStatus as GraderStatus
from .protocol import RolloutCompleteRequest as RolloutCompleteRequest
from .protocol import RolloutErrorCategory as RolloutErrorCategory
from .protocol import RolloutInitRequest as RolloutInitRequest
from .protocol import RolloutInitResponse as RolloutInitResponse
from .protocol import RolloutStatus as RolloutStatus
from .protocol import RolloutStatusResponse as RolloutStatusResponse
from .sample import MessageDict as MessageDict
from .sample import Messages as Messages
from .sample import RolloutSample as RolloutSample
