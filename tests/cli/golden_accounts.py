"""Cases of login, quickstart, upgrade, and workspaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.cli.golden_cases import MEMBERSHIPS, Case, answers, together
from tests.cli.maze import Maze
from tests.cli.outcome import TerminalInput
from tests.logins import FERN, LATER, MARA, NEW_TOKEN, save_login

LAB = {"id": "ws_1", "name": "fern-lab", "role": "admin", "connected_repo": {"repo_full_name": "fern/maze"}}
AUTHORIZED = {
    "device_code": "dc_canary",
    "user_code": "WXYZ-1234",
    "verification_uri": f"{FERN}/device",
    "verification_uri_complete": f"{FERN}/device?code=WXYZ-1234",
    "expires_in": 600,
    "interval": 5,
}
ISSUED = {"token": NEW_TOKEN, "token_id": "ct_NEW", "expires_at": LATER, "user": MARA}


def login_saved(maze: Maze) -> None:
    maze.patch.setenv("OSMOSIS_TOKEN_STORE", "file")
    save_login()


revoked = together(login_saved, answers("delete", "/tokens/ct_01J8", {}), MEMBERSHIPS)
by_device = together(
    revoked, answers("post", "/device/authorize", AUTHORIZED), answers("post", "/device/token", ISSUED)
)


def user_types(*typed: str) -> Callable[[Maze], Any]:
    """Answer the prompts with these lines."""

    def prepare(maze: Maze) -> None:
        answers = iter(typed)
        maze.patch.setattr("sys.stdin", TerminalInput())
        maze.patch.setattr(
            "osmosis_ai.cli.output.context.OutputContext.ask_shown", lambda output, question: next(answers)
        )
        maze.patch.setattr("osmosis_ai.cli.quickstart._copy", lambda text: False)

    return prepare


def from_a_repository(maze: Maze) -> None:
    """Pretend that uv installed the package from a repository."""

    command = "uv pip install 'osmosis-ai @ git+https://git.fern.example/osmosis.git'"
    maze.patch.setattr("osmosis_ai._version.__version__", "0.3.77")
    maze.patch.setattr("osmosis_ai.services.upgrade.upgrade_command", lambda: ("uv", command))


CASES = (
    Case(f"login --token {NEW_TOKEN}", revoked),
    Case("logout --yes", revoked),
    Case("auth login --force --no-browser", together(by_device, user_types()), screen="rich"),
    Case("auth logout --all --yes", revoked),
    Case(
        "quickstart",
        together(
            login_saved,
            MEMBERSHIPS,
            answers("get", "/workspaces", {"workspaces": [LAB]}),
            answers(
                "get",
                "/quickstart",
                {"repo": {"connected": True, "full_name": "fern/maze"}, "billing_ready": True},
            ),
            answers("post", "/quickstart", {}),
            user_types("Evaluate an agent", "multiply numbers"),
        ),
        screen="rich",
    ),
    Case("upgrade", from_a_repository),
    Case(
        "workspace switch fern-lab",
        together(MEMBERSHIPS, answers("get", "/workspaces", {"workspaces": [LAB]})),
    ),
    Case(f"login --platform {FERN}", revoked, screen="rich"),
)
