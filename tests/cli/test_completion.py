"""The shells' protocol: the words typed so far in, one candidate a line out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Cli


@pytest.fixture
def complete(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    def ask(instruction: str, *words: str) -> object:
        monkeypatch.setenv("_OSMOSIS_COMPLETE", instruction)
        return cli(*words)

    return ask  # type: ignore[return-value]


def words_of(outcome: object) -> list[str]:
    status, out, err = outcome  # type: ignore[misc]
    assert (status, err) == (0, "")
    return out.splitlines()


def test_commands_come_from_the_registry_without_hidden_ones(complete: Cli) -> None:
    assert words_of(complete("complete_bash", "fle")) == ["fleet"]
    assert "demo" in words_of(complete("complete_bash", ""))
    assert words_of(complete("complete_bash")) == words_of(complete("complete_bash", ""))


def test_subcommands_and_nested_groups_are_completed(complete: Cli) -> None:
    assert words_of(complete("complete_bash", "fleet", "s")) == ["sections", "say", "silent", "sink", "sail"]
    assert words_of(complete("complete_bash", "fleet", "crew", "")) == ["list"]


def test_options_are_completed_with_the_modes_that_go_anywhere(complete: Cli) -> None:
    assert words_of(complete("complete_bash", "fleet", "list", "--")) == [
        "--limit",
        "--help",
        "--json",
        "--plain",
    ]
    assert words_of(complete("complete_bash", "fleet", "list", "--l")) == ["--limit"]
    assert words_of(complete("complete_bash", "--json", "fleet", "list", "--")) == [
        "--limit",
        "--help",
        "--plain",
    ]
    assert words_of(complete("complete_bash", "--p")) == ["--platform", "--plain"]


def test_where_a_value_is_due_nothing_is_answered_and_the_shell_offers_files(complete: Cli) -> None:
    assert words_of(complete("complete_bash", "fleet", "info", "")) == []
    assert words_of(complete("complete_bash", "--env-file", "")) == []
    assert words_of(complete("complete_bash", "fleet", "say", "--", "--j")) == []


def test_each_shell_gets_the_form_it_reads(complete: Cli) -> None:
    assert words_of(complete("complete_bash", "fleet", "inf")) == ["info"]
    assert words_of(complete("complete_zsh", "fleet", "inf")) == ["info:Show one ship."]
    assert words_of(complete("complete_fish", "fleet", "inf")) == ["info\tShow one ship."]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script_for_every_name_of_the_program(complete: Cli, shell: str) -> None:
    script = "\n".join(words_of(complete(f"source_{shell}")))
    assert "osmosis osmosis-ai osmosis_ai" in script
    assert f"_OSMOSIS_COMPLETE=complete_{shell}" in script


@pytest.mark.parametrize("instruction", ["source_tcsh", "complete", "dance_bash"])
def test_an_unknown_request_is_answered_with_the_known_ones(complete: Cli, instruction: str) -> None:
    status, out, err = complete(instruction)
    assert (status, out) == (2, "")
    assert "source_bash" in err


@pytest.mark.e2e
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_completes_through_its_own_function(tmp_path: Path) -> None:
    program = tmp_path / "osmosis"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m osmosis_ai "$@"\n')
    program.chmod(0o755)
    typed = """
        eval "$(_OSMOSIS_COMPLETE=source_bash osmosis)"
        COMP_WORDS=(osmosis dataset va); COMP_CWORD=2; _osmosis_completion osmosis; echo "${COMPREPLY[*]}"
        COMP_WORDS=(osmosis ""); COMP_CWORD=1; _osmosis_completion osmosis; echo "${#COMPREPLY[@]}"
        complete -p osmosis_ai
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", typed],
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    completed, count, registered = done.stdout.splitlines()
    assert completed == "validate"
    assert int(count) >= 5
    assert registered == "complete -o default -F _osmosis_completion osmosis_ai"
