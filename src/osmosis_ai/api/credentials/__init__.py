"""Who we are to a platform: the token in use, and where saved logins are kept."""

from osmosis_ai.api.credentials.login import Credentials, SavedLogin
from osmosis_ai.api.credentials.resolution import (
    TOKEN_ENV,
    TOKEN_PLATFORM_ENV,
    active_platform_url,
    environment_credentials,
    require_credentials,
)
from osmosis_ai.api.credentials.store import CredentialStore, CredentialWarning, config_dir

__all__ = [
    "TOKEN_ENV",
    "TOKEN_PLATFORM_ENV",
    "CredentialStore",
    "CredentialWarning",
    "Credentials",
    "SavedLogin",
    "active_platform_url",
    "config_dir",
    "environment_credentials",
    "require_credentials",
]
