from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from osmosis_ai.errors import ConflictError
from osmosis_ai.llm.file_addresses import set_file_addresses
from osmosis_ai.llm.providers import resolve_model
from osmosis_ai.rubric.judge_model import resolve_judge
from osmosis_ai.services.env.consents import EnvConsents
from osmosis_ai.services.env.files import ClassifiedEnvFile, classify_env_file
from osmosis_ai.workspace.env_file import read_named_env_file

ELSEWHERE = "https://elsewhere.example/v1"
OF_THE_FILE = {"OPENAI_API_KEY": "of-the-file", "OPENAI_BASE_URL": ELSEWHERE}


def classified(
    values: Mapping[str, str], environ: Mapping[str, str] | None = None, *, allowed: bool = False
) -> ClassifiedEnvFile:
    path = Path(".env")
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    return classify_env_file(read_named_env_file(path.absolute()), environ or {}, allowed=allowed)


@pytest.fixture
def guarded() -> Iterator[None]:
    """The environment of a command whose `.env` has an address and a key of its own."""
    set_file_addresses(classified(OF_THE_FILE).guarded_addresses)
    yield
    set_file_addresses({})


def test_the_files_own_key_goes_to_the_files_own_address(guarded: None) -> None:
    assert resolve_model("openai/m", OF_THE_FILE).base_url == ELSEWHERE
    assert resolve_judge("openai/m", env=OF_THE_FILE).api_base == ELSEWHERE


def test_a_key_that_comes_later_never_goes_to_the_files_address(guarded: None) -> None:
    later = {**OF_THE_FILE, "OPENAI_API_KEY": "of-the-secrets-file"}
    with pytest.raises(
        ConflictError, match=r"`OPENAI_BASE_URL` of .* would send a key that is not of that file"
    ) as told:
        resolve_model("openai/m", later)
    assert "osmosis env allow" in (told.value.hint or "")
    assert "of-the-" not in str(told.value)
    with pytest.raises(ConflictError):
        resolve_judge(
            {"provider": "openai", "model": "m", "api_key_env": "MINE"}, env={**OF_THE_FILE, "MINE": "mine"}
        )


def test_an_address_of_ones_own_is_no_concern_of_the_file(guarded: None) -> None:
    mine = {"OPENAI_API_KEY": "mine", "OPENAI_BASE_URL": "https://mine.example/v1"}
    assert resolve_model("openai/m", mine).api_key == "mine"


@pytest.mark.parametrize(
    "values, environ, uses",
    [
        ({"SEARCH_KEY": "1"}, {}, {"SEARCH_KEY": "rollouts"}),
        (
            {"SEARCH_KEY": "1", "SEARCH_BASE_URL": ELSEWHERE},
            {},
            {"SEARCH_KEY": "rollouts", "SEARCH_BASE_URL": "rollouts"},
        ),
        ({"SEARCH_BASE_URL": ELSEWHERE}, {}, {"SEARCH_BASE_URL": "needs_permission"}),
        (
            {"SEARCH_KEY": "1", "SEARCH_BASE_URL": ELSEWHERE},
            {"SEARCH_KEY": "shell"},
            {"SEARCH_KEY": "rollouts", "SEARCH_BASE_URL": "needs_permission"},
        ),
        ({"AWS_REGION": "evil.example/"}, {}, {"AWS_REGION": "needs_permission"}),
        ({"GOOGLE_APPLICATION_CREDENTIALS": "x"}, {}, {"GOOGLE_APPLICATION_CREDENTIALS": "needs_permission"}),
        ({"OSMOSIS_INFERENCE_URL": ELSEWHERE}, {}, {"OSMOSIS_INFERENCE_URL": "needs_permission"}),
        ({"OPENAI_API_KEY": "file"}, {"OPENAI_API_KEY": "shell"}, {"OPENAI_API_KEY": "shell"}),
        (
            {"AZURE_API_KEY": "1", "AZURE_API_BASE": ELSEWHERE},
            {"AZURE_AD_TOKEN": "t"},
            {"AZURE_API_BASE": "needs_permission"},
        ),
    ],
)
def test_what_becomes_of_a_name(
    values: dict[str, str], environ: dict[str, str], uses: dict[str, str]
) -> None:
    found = classified(values, environ).uses
    assert {name: found[name] for name in uses} == uses


def test_a_rollout_gets_what_its_config_lists_and_nothing_that_starts_programs() -> None:
    file = classified({"SEARCH_KEY": "1", "OTHER": "2", "LD_PRELOAD": "/evil.so", "PATH": "/evil"})
    assert file.values_for_rollout(["SEARCH_KEY", "LD_PRELOAD", "PATH", "ABSENT"]) == {"SEARCH_KEY": "1"}


@pytest.mark.parametrize(
    "values, secrets",
    [
        (OF_THE_FILE, {"OPENAI_API_KEY": "asked"}),
        (
            {"SEARCH_KEY": "1", "SEARCH_BASE_URL": ELSEWHERE},
            {"SEARCH_KEY": "asked", "SEARCH_BASE_URL": ELSEWHERE},
        ),
    ],
)
def test_a_rollout_never_gets_an_address_of_the_file_with_a_key_from_elsewhere(
    values: dict[str, str], secrets: dict[str, str]
) -> None:
    with pytest.raises(ConflictError, match="would send"):
        classified(values).refuse_redirected(secrets)
    classified(values, allowed=True).refuse_redirected(secrets)
    classified(values).refuse_redirected(values)


def test_permissions_are_the_users_alone_and_survive_a_damaged_file(tmp_path: Path) -> None:
    consents = EnvConsents(tmp_path)
    place = Path("/team/.env")
    consents.allow(place, "a" * 64)
    assert consents.allows(place, "a" * 64)
    assert not consents.allows(place, "b" * 64)
    assert stat.S_IMODE(os.stat(consents.path).st_mode) == 0o600
    consents.path.write_text('{"version": 1, "allowed": [')
    assert not consents.allows(place, "a" * 64)
    assert not consents.revoke(place)
    consents.allow(place, "b" * 64)
    assert consents.revoke(place)
    assert not consents.allows(place, "b" * 64)


def test_what_was_told_is_told_again_where_nothing_can_be_written_down(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    consents = EnvConsents(blocked)
    assert [consents.told(Path("/.env"), "a"), consents.told(Path("/.env"), "a")] == [False, False]
