from __future__ import annotations

import json

import pytest

from osmosis_ai import __version__
from tests.cli.conftest import Cli


def test_a_list_is_one_line_with_its_pagination_and_extras_that_cannot_replace_it(cli: Cli) -> None:
    outcome = cli("fleet", "list", "--json")
    assert outcome == (
        0,
        '{"schema_version":1,"items":[{"name":"Argo [red]","status":"running","tons":12.5},'
        '{"name":"Tab\\there","status":"failed","tons":null}],"total_count":7,"has_more":true,"next_offset":2,'
        '"git":{"identity":"a/b"}}\n',
        "",
    )


def test_sections_carry_their_own_pagination(cli: Cli) -> None:
    outcome = cli("fleet", "sections", "--json")
    assert json.loads(outcome.out) == {
        "schema_version": 1,
        "afloat": {
            "items": [{"name": "Argo [red]", "status": "running", "tons": 12.5}],
            "total_count": 1,
            "has_more": False,
            "next_offset": None,
        },
        "ashore": {"items": [], "total_count": 0, "has_more": False, "next_offset": None},
        "harbour": "Pagasae",
    }


def test_a_detail_holds_data_and_nothing_meant_for_people(cli: Cli) -> None:
    assert (
        cli("fleet", "info", "Ärgo", "--json").out
        == '{"schema_version":1,"data":{"name":"Ärgo","path":"a/b"}}\n'
    )


def test_an_operation_holds_what_was_done_and_structured_steps(cli: Cli) -> None:
    outcome = cli("fleet", "launch", "--json")
    assert json.loads(outcome.out) == {
        "schema_version": 1,
        "status": "success",
        "operation": "fleet.launch",
        "resource": {"name": "Argo"},
        "message": "Ship launched: Argo",
        "next_steps_structured": [{"action": "fleet_info", "name": "Argo"}],
        "wind": "fair",
    }


def test_an_operation_omits_what_it_does_not_have(cli: Cli) -> None:
    assert (
        cli("fleet", "bare", "--json").out
        == '{"schema_version":1,"status":"noop","operation":"fleet.noop"}\n'
    )


def test_a_message_is_a_sentence_with_extras(cli: Cli) -> None:
    assert cli("fleet", "say", "hi", "--json").out == '{"schema_version":1,"message":"hi","loud":false}\n'


def test_a_partial_operation_is_printed_and_exits_with_one(cli: Cli) -> None:
    outcome = cli("fleet", "launch", "--status", "partial", "--json")
    assert outcome.status == 1
    assert json.loads(outcome.out)["status"] == "partial"
    assert outcome.err == ""


def test_text_that_is_no_utf8_survives_escaped(cli: Cli) -> None:
    assert (
        cli("fleet", "say", "caf\udce9", "--json").out
        == '{"schema_version":1,"message":"caf\\udce9","loud":false}\n'
    )


@pytest.mark.parametrize("spelling", [("--json", "fleet", "list"), ("fleet", "--json", "list")])
def test_json_may_stand_anywhere_on_the_line(cli: Cli, spelling: tuple[str, ...]) -> None:
    assert cli(*spelling) == cli("fleet", "list", "--json")


def test_after_two_dashes_json_is_an_ordinary_argument(cli: Cli) -> None:
    assert cli("fleet", "say", "--", "--json").out == "--json\n"


def test_not_a_number_is_refused(cli: Cli) -> None:
    outcome = cli("fleet", "nan", "--json")
    assert outcome.status == 1
    assert outcome.out == ""
    assert json.loads(outcome.err)["error"] == {
        "code": "INTERNAL",
        "message": "An unexpected internal error occurred.",
        "details": {"exception_type": "ValueError"},
    }


@pytest.mark.parametrize("command", ["silent", "wrong"])
def test_a_command_without_a_result_is_an_internal_error(cli: Cli, command: str) -> None:
    outcome = cli("fleet", command, "--json")
    assert outcome.status == 1
    assert outcome.out == ""
    assert json.loads(outcome.err)["error"]["details"] == {"exception_type": "TypeError"}


def test_progress_and_plans_are_silent_and_a_warning_is_one_line(cli: Cli) -> None:
    outcome = cli("fleet", "sail", "--json")
    assert outcome.out == '{"schema_version":1,"message":"Arrived."}\n'
    assert outcome.err == (
        f'{{"schema_version":1,"cli_version":"{__version__}","warning":{{"code":"FOG","message":"Fog ahead."}}}}\n'
    )
