from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from osmosis_ai.cli.eval_runs.view import LiveRun
from osmosis_ai.cli.output.context import OutputContext
from osmosis_ai.cli.startup import prepare_environment
from osmosis_ai.errors import ConflictError, InteractiveRequiredError

Resolve = Callable[..., dict[str, str]]


@pytest.fixture
def resolve(monkeypatch: pytest.MonkeyPatch) -> Resolve:
    """What `eval run` gives a rollout whose config lists these names, with the `.env` that is there."""

    def resolve(*names: str, secrets_file: dict[str, str] | None = None) -> dict[str, str]:
        output = OutputContext("plain")
        prepare_environment(output, env_file=None, platform=None)
        request = SimpleNamespace(secret_values=secrets_file, verbose=False)
        prepared = cast("Any", SimpleNamespace(request=request, served=True))
        return LiveRun(output, prepared, yes=True).resolve_secrets(names)

    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        # Whatever a command sets of these ends with the test.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return resolve


def test_names_that_a_config_lists_come_from_the_env_file(resolve: Resolve) -> None:
    Path(".env").write_text("OPENAI_API_KEY=k\nSEARCH_KEY=s\nOTHER=o\n")
    assert resolve("OPENAI_API_KEY", "SEARCH_KEY") == {"OPENAI_API_KEY": "k", "SEARCH_KEY": "s"}


def test_the_shell_wins_over_the_file_and_the_secrets_file_over_both(
    resolve: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(".env").write_text("SEARCH_KEY=file\nMAP_KEY=file\n")
    monkeypatch.setenv("SEARCH_KEY", "shell")
    monkeypatch.setenv("MAP_KEY", "")
    assert resolve("SEARCH_KEY", "MAP_KEY") == {"SEARCH_KEY": "shell", "MAP_KEY": "file"}
    assert resolve("SEARCH_KEY", secrets_file={"SEARCH_KEY": "given"}) == {"SEARCH_KEY": "given"}


def test_a_name_that_starts_programs_is_missing_whatever_the_file_says(resolve: Resolve) -> None:
    Path(".env").write_text("NODE_OPTIONS=--require=/evil.js\n")
    with pytest.raises(InteractiveRequiredError, match="NODE_OPTIONS"):
        resolve("NODE_OPTIONS")


ELSEWHERE = "https://elsewhere.example/v1"


@pytest.mark.parametrize("service", ["OPENAI", "SEARCH"])
def test_a_key_of_the_secrets_file_is_not_paired_with_an_address_of_the_env_file(
    resolve: Resolve, service: str
) -> None:
    key, address = f"{service}_API_KEY", f"{service}_BASE_URL"
    Path(".env").write_text(f"{key}=bait\n{address}={ELSEWHERE}\n")
    assert resolve(key, address) == {key: "bait", address: ELSEWHERE}
    with pytest.raises(
        ConflictError, match=f"{address} in .* is accepted only with {key} from the same file"
    ):
        resolve(key, address, secrets_file={key: "mine"})


def test_an_address_of_a_service_is_not_given_to_a_rollout_that_has_the_shells_key(
    resolve: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(".env").write_text(f"SEARCH_KEY=bait\nSEARCH_BASE_URL={ELSEWHERE}\n")
    assert resolve("SEARCH_BASE_URL") == {"SEARCH_BASE_URL": ELSEWHERE}
    monkeypatch.setenv("SEARCH_TOKEN", "mine")
    with pytest.raises(ConflictError, match="SEARCH_TOKEN"):
        resolve("SEARCH_BASE_URL")


def test_a_key_that_is_not_sent_to_a_server_here_is_missing(
    resolve: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(".env").write_text("OPENAI_BASE_URL=http://127.0.0.1:8000/v1\n")
    monkeypatch.setenv("OPENAI_API_KEY", "mine")
    with pytest.raises(InteractiveRequiredError, match="OPENAI_API_KEY"):
        resolve("OPENAI_API_KEY")
