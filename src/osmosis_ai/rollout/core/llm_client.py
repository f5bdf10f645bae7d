"""Model client of an agent loop (0.2 import path)."""

from .base import CompletionsResult as CompletionsResult
from .base import LLMClientProtocol as LLMClientProtocol
