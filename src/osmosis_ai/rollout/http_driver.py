"""Public path of the HTTP driver."""

from osmosis_ai.controller.callbacks import HttpRolloutDriver as HttpRolloutDriver
from osmosis_ai.controller.callbacks import RolloutProtocolError as RolloutProtocolError
