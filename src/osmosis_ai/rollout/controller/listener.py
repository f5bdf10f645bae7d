"""Public path of the callback listener."""

from osmosis_ai.controller.callbacks import CallbackListener as CallbackListener
from osmosis_ai.controller.callbacks import create_callback_app as create_callback_app
