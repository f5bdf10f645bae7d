"""Cases of command lines that fail: message, hint, exit code and error document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.cli.golden_accounts import login_saved
from tests.cli.golden_agents import loop
from tests.cli.golden_cases import Case, answers, file, together
from tests.cli.golden_platform import at
from tests.cli.maze import Maze
from tests.logins import VERIFIED


def missing(path: str) -> Callable[[Maze], Any]:
    return lambda maze: maze.get(path).respond(404, json={"error": "there is none"})


CASES = (
    Case(
        "dataset validate broken.jsonl",
        file("broken.jsonl", '{"user_prompt": "one"}\n{"user_prompt": \n'),
        screen="rich",
    ),
    Case("dataset info nosuch", missing("/datasets/nosuch"), screen="rich"),
    Case("eval info nosuch", missing("/eval-runs/nosuch")),
    Case("eval submit configs/eval/nosuch.toml"),
    Case("eval stop amber", missing("/eval-runs/amber"), screen="rich"),
    Case("eval rubric -d nosuch.jsonl -r clarity"),
    Case("train info nosuch", missing("/training-runs/nosuch")),
    Case("train lst"),
    Case("benchmark info nosuch", missing("/benchmarks/nosuch")),
    Case("benchmark runs info nosuch", missing("/benchmark-runs/nosuch")),
    Case("model info nosuch", missing("/models/nosuch")),
    Case("rollout init Not/AName"),
    Case("rollout server probe nosuch", lambda maze: maze.post("/rollout-servers/nosuch/probe").respond(404)),
    Case("template apply nosuch"),
    Case(
        "check configs/eval/broken.toml --no-import",
        file("configs/eval/broken.toml", "[experiment]\nmodel_pat = 1\n"),
        screen="rich",
    ),
    Case("validate -m golden_loop:nosuch", loop),
    Case("serve -m golden_loop:nosuch --local", loop),
    Case("test -m golden_loop:agent_loop -d nosuch.jsonl", loop),
    Case("dev server down nosuch", lambda maze: maze.delete("/dev-rollout-server/nosuch").respond(404)),
    Case("login nosuch", login_saved),
    Case(
        "auth login --token osm_u_wrong",
        together(
            login_saved,
            lambda maze: maze.get("/verify").respond(401, json={"error": "no", "code": "TOKEN_INVALID"}),
        ),
    ),
    Case(
        "workspace switch nosuch",
        together(answers("get", "/verify", VERIFIED), answers("get", "/workspaces", {"workspaces": []})),
    ),
    Case("secret set nosuch --env GOLDEN_NOWHERE"),
    Case("upgrade now"),
    Case("quickstart"),
    Case("logout", login_saved),
    Case("demo --tran", screen="rich"),
    Case("preview --path nosuch.yaml"),
    Case("eval-rubric --rubric clarity --data nosuch.jsonl"),
    Case("doctor nosuch"),
    Case(
        "whoami",
        lambda maze: maze.get("/verify").respond(502, text="<html>Bad Gateway</html>"),
        screen="rich",
    ),
    at("user remove nosuch@fern.example --yes"),
    at("restore nosuch.tar"),
    Case("evl list", screen="rich"),
)
