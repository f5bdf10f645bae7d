"""The controller's classes under their public import paths."""

from __future__ import annotations

import sys

from osmosis_ai.controller.callbacks import CallbackListener as CallbackListener
from osmosis_ai.controller.callbacks import CallbackStore as CallbackStore
from osmosis_ai.controller.callbacks import DuplicateRegistrationError as DuplicateRegistrationError
from osmosis_ai.controller.callbacks import TerminalCallbackResult as TerminalCallbackResult
from osmosis_ai.controller.callbacks import UnknownRolloutIdError as UnknownRolloutIdError
from osmosis_ai.controller.callbacks import create_callback_app as create_callback_app
from osmosis_ai.controller.callbacks import duplicate_callback_payload as duplicate_callback_payload
from osmosis_ai.controller.model_proxy import LiteLLMBridge as LiteLLMBridge

# Import paths of the public SDKs that are this module.
for _path in ("listener", "llm_bridge", "store"):
    sys.modules[f"{__name__}.{_path}"] = sys.modules[__name__]
    globals()[_path.rpartition(".")[2]] = sys.modules[__name__]
