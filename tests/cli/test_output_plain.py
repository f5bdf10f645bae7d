from __future__ import annotations

import textwrap

from tests.cli.conftest import Cli


def lines(text: str) -> str:
    return textwrap.dedent(text).lstrip("\n")


def test_a_list_is_one_row_a_line_joined_by_tabs_without_header_or_footer(cli: Cli) -> None:
    outcome = cli("fleet", "list", "--plain")
    assert outcome == (0, "Argo [red]\t[running]\t12.5\nTab here\t[failed]\t–\n", "")


def test_sections_are_titled(cli: Cli) -> None:
    assert cli("fleet", "sections", "--plain").out == "Afloat:\nArgo [red]\t[running]\t12.5\nAshore:\n"


def test_a_detail_is_labelled_lines_then_sections_then_hints(cli: Cli) -> None:
    assert cli("fleet", "info", "Ar\ngo", "--plain").out == lines(
        """
        Name: Ar go
        Status: [finished]
        Fast: yes
        Home: –
        Cargo:
        Fleece: 1
        Route:
        Port\tDays
        Lemnos\t3
        in order
        Sink it: osmosis fleet sink NAME
        """
    )


def test_an_operation_is_its_message_then_its_next_steps(cli: Cli) -> None:
    assert (
        cli("fleet", "launch", "--plain").out == "Ship launched: Argo\nFollow it: osmosis fleet info Argo\n"
    )
    assert cli("fleet", "bare", "--plain").out == "fleet.noop: noop\n"


def test_progress_says_a_line_every_tenth_on_stderr(cli: Cli) -> None:
    outcome = cli("fleet", "sail", "--plain")
    assert outcome.out == "Arrived.\n"
    assert outcome.err == lines(
        """
        Raising the anchor
        warning: Fog ahead.
        Sailing: 2/20 miles (10%) calm
        Sailing: 4/20 miles (20%) calm
        Sailing: 6/20 miles (30%) calm
        Sailing: 8/20 miles (40%) calm
        Sailing: 10/20 miles (50%) calm
        Sailing: 12/20 miles (60%) calm
        Sailing: 14/20 miles (70%) calm
        Sailing: 16/20 miles (80%) calm
        Sailing: 18/20 miles (90%) calm
        Sailing: 20/20 miles (100%) calm
        """
    )


def test_control_characters_in_data_are_spelled_out(cli: Cli) -> None:
    assert cli("fleet", "say", "a\x1b[31mb", "--plain").out == "a\\x1b[31mb\n"
