"""Public path of the callback store."""

from osmosis_ai.controller.callbacks import CallbackStore as CallbackStore
from osmosis_ai.controller.callbacks import DuplicateRegistrationError as DuplicateRegistrationError
from osmosis_ai.controller.callbacks import TerminalCallbackResult as TerminalCallbackResult
from osmosis_ai.controller.callbacks import UnknownRolloutIdError as UnknownRolloutIdError
from osmosis_ai.controller.callbacks import duplicate_callback_payload as duplicate_callback_payload
