"""Logging in, logging out, and who one is."""

from osmosis_ai.services.auth.account import Account, verify_with_workspace, whoami
from osmosis_ai.services.auth.device_code import Time
from osmosis_ai.services.auth.login import (
    Login,
    login_with_device,
    login_with_token,
    require_device_login,
    saved_login,
    use_in_this_directory,
)
from osmosis_ai.services.auth.logout import LogoutPlan, logout, plan_logout

__all__ = [
    "Account",
    "Login",
    "LogoutPlan",
    "Time",
    "login_with_device",
    "login_with_token",
    "logout",
    "plan_logout",
    "require_device_login",
    "saved_login",
    "use_in_this_directory",
    "verify_with_workspace",
    "whoami",
]
