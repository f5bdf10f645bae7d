from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

FILE = """\
OPENAI_API_KEY=sk-canary
OPENAI_BASE_URL=https://ada:canary@models.example/v1?canary
OSMOSIS_TOKEN=osm-canary
SEARCH_KEY=canary
LD_PRELOAD=/canary.so
GROQ_API_KEY=${NOWHERE}
canary canary
"""


@pytest.fixture(autouse=True)
def env_file(monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    path = Path.cwd() / ".env"
    path.write_text(FILE)
    return path


def test_status_says_what_becomes_of_each_name_and_shows_no_value(cli: Cli, env_file: Path) -> None:
    outcome = cli("env", "status", "--plain")
    assert outcome.err == ""
    assert outcome.out.splitlines() == [
        "You have not allowed this file.",
        f"{env_file}:",
        "Name\tUse\tHost",
        "OPENAI_API_KEY\tused\t–",
        "OPENAI_BASE_URL\tused\tmodels.example",
        "OSMOSIS_TOKEN\tignored until you allow the file\t–",
        "SEARCH_KEY\tfor rollouts whose config lists it as a secret\t–",
        "LD_PRELOAD\tnever taken from a file\t–",
        "GROQ_API_KEY\tignored: refers to a name that the file does not set\t–",
        "line 7\tignored: not `NAME=value`\t–",
        f"If you trust its addresses and its token: osmosis env allow {env_file}",
    ]


def test_status_for_programs_has_every_standing(cli: Cli, env_file: Path) -> None:
    outcome = cli("env", "status", "--json")
    resource = json.loads(outcome.out)["resource"]
    assert len(resource.pop("sha256")) == 64
    assert resource == {
        "path": str(env_file),
        "state": "read",
        "reason": None,
        "allowed": False,
        "names": {
            "OPENAI_API_KEY": "used",
            "OPENAI_BASE_URL": "used",
            "OSMOSIS_TOKEN": "needs_permission",
            "SEARCH_KEY": "rollouts",
            "LD_PRELOAD": "never",
        },
        "unresolved": ["GROQ_API_KEY"],
        "bad_lines": [7],
        "addresses": {"OPENAI_BASE_URL": "models.example"},
    }
    assert "canary" not in outcome.out.replace(str(env_file), "")


def test_a_permission_is_given_and_taken_back(cli: Cli, env_file: Path) -> None:
    given = json.loads(cli("env", "allow", "--json").out)
    assert (given["operation"], given["resource"]["allowed"]) == ("env.allow", True)
    assert given["resource"]["names"]["OSMOSIS_TOKEN"] == "used"
    assert cli("env", "revoke", str(env_file.parent), "--plain").out == f"{env_file} is allowed no longer.\n"
    again = json.loads(cli("env", "revoke", "--json").out)
    assert (again["status"], again["resource"]) == ("noop", {"path": str(env_file), "revoked": False})
    assert json.loads(cli("env", "status", "--json").out)["resource"]["allowed"] is False


def test_what_is_not_there_cannot_be_allowed(cli: Cli, env_file: Path) -> None:
    env_file.unlink()
    outcome = cli("env", "allow", "--json")
    assert outcome.status == 1
    assert json.loads(outcome.err)["error"]["code"] == "NOT_FOUND"
    assert cli("env", "status", "--plain").out == f"There is no {env_file}.\n"


def test_what_is_not_read_cannot_be_allowed_either_and_what_mends_it_is_said(
    cli: Cli, env_file: Path
) -> None:
    env_file.chmod(0o666)
    outcome = cli("env", "allow", "--plain")
    assert (outcome.status, outcome.out) == (1, "")
    assert "everybody on this machine may write to it; it cannot be allowed" in outcome.err
    assert f"chmod o-w {env_file}" in outcome.err
    assert cli("env", "status", "--plain").status == 0
