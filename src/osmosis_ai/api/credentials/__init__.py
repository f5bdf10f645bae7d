"""Credentials for platforms: the token in use, and the storage of saved logins."""

from osmosis_ai.api.credentials.login import Credentials, SavedLogin
from osmosis_ai.api.credentials.resolution import (
    environment_credentials,
    require_credentials,
)
from osmosis_ai.api.credentials.store import CredentialStore, CredentialWarning
from osmosis_ai.api.platform_url import TOKEN_ENV, TOKEN_PLATFORM_ENV

__all__ = [
    "TOKEN_ENV",
    "TOKEN_PLATFORM_ENV",
    "CredentialStore",
    "CredentialWarning",
    "Credentials",
    "SavedLogin",
    "environment_credentials",
    "require_credentials",
]
