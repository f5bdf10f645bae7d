from __future__ import annotations

import textwrap

import pytest

from tests.cli.conftest import Cli


def drawn(text: str) -> str:
    return textwrap.dedent(text).lstrip("\n")


def test_a_list_is_a_table_with_literal_text_a_footer_and_hints(cli: Cli) -> None:
    outcome = cli("fleet", "list")
    assert outcome == (
        0,
        drawn(
            """
            ╭────────────┬───────────┬──────╮
            │ Name       │ Status    │ Tons │
            ├────────────┼───────────┼──────┤
            │ Argo [red] │ [running] │ 12.5 │
            │ Tab here   │ [failed]  │    – │
            ╰────────────┴───────────┴──────╯
            Showing 2 of 7. Use --all to see every one.
            See one: osmosis fleet info NAME
            """
        ),
        "",
    )


def test_sections_are_ruled_and_an_empty_one_says_so(cli: Cli) -> None:
    out = cli("fleet", "sections").out
    assert out.startswith("Afloat ────")
    assert "\nAshore ────" in out
    assert out.endswith("Nothing here yet.\n")


def test_a_detail_is_a_titled_table_with_sections_blocks_and_hints(cli: Cli) -> None:
    assert cli("fleet", "info", "Argo").out == drawn(
        """
        Ship ───────────────────────────────────────────────────────────────────────────
        ╭────────┬────────────╮
        │ Name   │ Argo       │
        │ Status │ [finished] │
        │ Fast   │ yes        │
        │ Home   │ –          │
        ╰────────┴────────────╯
        Cargo ──────────────────────────────────────────────────────────────────────────
        ╭────────┬───╮
        │ Fleece │ 1 │
        ╰────────┴───╯
        Route ──────────────────────────────────────────────────────────────────────────
        ╭────────┬──────╮
        │ Port   │ Days │
        ├────────┼──────┤
        │ Lemnos │ 3    │
        ╰────────┴──────╯
        in order
        a hidden remark
        ╭──────────────────────────────────────────────────────────────────────────────╮
        │ user                                                                         │
        │   Row!                                                                       │
        │ tool  count                                                                  │
        │   7                                                                          │
        │ reward 1                                                                     │
        ╰──────────────────────────────────────────────────────────────────────────────╯
        Sink it: osmosis fleet sink NAME
        """
    )


def test_an_operation_is_its_message_then_its_next_steps(cli: Cli) -> None:
    assert cli("fleet", "launch").out == "Ship launched: Argo\nFollow it: osmosis fleet info Argo\n"


def test_a_long_line_is_left_whole_to_be_copied(cli: Cli) -> None:
    text = "osmosis eval run " + "very/long/path/" * 20
    assert cli("fleet", "say", text).out == text + "\n"


def test_control_characters_in_data_are_spelled_out(cli: Cli) -> None:
    assert cli("fleet", "say", "a\x1b[31mb[bold]c").out == "a\\x1b[31mb[bold]c\n"


def test_plans_show_on_stderr_and_the_result_alone_on_stdout(cli: Cli) -> None:
    outcome = cli("fleet", "sail")
    assert outcome.out == "Arrived.\n"
    assert "Raising the anchor\n⚠ Fog ahead.\n" in outcome.err
    assert "│ north │" in outcome.err
    assert "Sailing: 20/20 miles (100%) calm\n" in outcome.err


def test_colours_follow_the_status_word(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = cli("fleet", "list").out
    assert "\x1b[34m[running]" in out
    assert "\x1b[31m[failed]" in out
    assert "\x1b[32mShip launched: Argo\x1b[0m" in cli("fleet", "launch").out
    assert "\x1b[1;31mError: No ship named 'Argo'.\x1b[0m" in cli("fleet", "missing").err


def test_no_color_wins(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in cli("fleet", "list").out
    assert "\x1b" not in cli("fleet", "missing").err


def test_a_command_may_end_without_a_result(cli: Cli) -> None:
    assert cli("fleet", "silent") == (0, "", "")
