"""The demo: the real command line evaluates the sample agent in a scratch directory, as a user would.

Everything it reads or writes lies in that directory: configuration, credentials, cache and the data of its
platform. No keyring is asked and no Git configuration of the user's is read.
"""

from osmosis_ai.services.demo.outcome import DemoOutcome
from osmosis_ai.services.demo.scratch import CONFIG, ENV_FILE, Scratch, prepare_scratch
from osmosis_ai.services.demo.walk import run_demo

__all__ = ["CONFIG", "ENV_FILE", "DemoOutcome", "Scratch", "prepare_scratch", "run_demo"]
