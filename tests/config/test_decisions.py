"""What is decided about the runs of a config: a file beside it, checked like a config and never taken for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from osmosis_ai.config.decisions import METRICS, Decisions, decide_file, metric_named, parse_decisions
from osmosis_ai.config.issues import InvalidConfigError
from osmosis_ai.errors import OsmosisError
from osmosis_ai.workspace.config_files import decisions_about, load_decisions, load_eval_config
from osmosis_ai.workspace.layout import WorkspaceDirectory
from tests.workspace.builders import MINIMAL_EVAL, make_workspace, write_config


@pytest.fixture
def workspace(tmp_path: Path) -> WorkspaceDirectory:
    return make_workspace(tmp_path / "agents")


FULL = """\
[decide]
against = "git:main"
confidence = 0.9
slices = ["difficulty", "split"]
reward_range = [-1, 1.5]

[min]
pass_rate = 0.6
"pass^4" = 0

[max]
unscored = 0.05
cost_per_row = 0.02

[margin]
reward = 2
"pass@2" = 0.03
latency = 0.1
"""


def issues_of(text: str) -> dict[str, tuple[int | None, str, str | None]]:
    with pytest.raises(InvalidConfigError) as raised:
        parse_decisions(text, "configs/eval/a.decide.toml")
    return {issue.key: (issue.line, issue.message, issue.suggestion) for issue in raised.value.issues}


def test_everything_that_can_be_decided_is_read() -> None:
    assert parse_decisions(FULL, "a.decide.toml") == Decisions(
        minima={"pass_rate": 0.6, "pass^4": 0.0},
        maxima={"unscored": 0.05, "cost_per_row": 0.02},
        margins={"reward": 2.0, "pass@2": 0.03, "latency": 0.1},
        against="git:main",
        confidence=0.9,
        slices=("difficulty", "split"),
        reward_range=(-1.0, 1.5),
        shown="a.decide.toml",
    )
    assert parse_decisions("", "a.decide.toml") == Decisions({}, {}, {}, shown="a.decide.toml")


def test_everything_that_is_wrong_is_in_one_report_with_its_line_and_what_was_meant() -> None:
    found = issues_of(
        "[decide]\nagaints = 'x'\nconfidence = 95\nslices = ['a', 'a']\nreward_range = [1, 0]\n"
        "[min]\npas_rate = 0.6\npass_rate = 60\nreward = '1'\n\"pass@0\" = 0.5\n"
        "[max]\nunscored = true\ncost_per_row = -1\n"
        "[margins]\npass_rate = 0.1\n"
        "[margin]\npass_rate = 3\nfailed = -0.1\ninfrastructure = 0.1\nlatency = 10\ntokens = nan\n"
    )
    assert found["decide.againts"] == (2, "Unrecognized key", "against")
    assert found["decide.confidence"][:2] == (3, "must be at most 0.999999, got 95")
    assert found["decide.slices"][:2] == (4, 'names "a" twice')
    assert found["decide.reward_range"][:2] == (
        5,
        "must be the lowest and the highest reward, such as [0, 1]",
    )
    assert found["min.pas_rate"] == (7, "Unrecognized metric", "pass_rate")
    assert found["min.pass_rate"][:2] == (8, "is a share, from 0 to 1: write 80 % as 0.8")
    assert found["min.reward"][:2] == (9, 'must be a number, got "1"')
    assert found["min.pass@0"] == (10, "Unrecognized metric", "pass@1")
    assert found["max.unscored"][:2] == (12, "must be a number, got true")
    assert found["max.cost_per_row"][:2] == (13, "is never below 0, got -1")
    assert found["margins"] == (14, "Unrecognized section", "margin")
    assert (found["margin.pass_rate"][0], "accepts every run" in found["margin.pass_rate"][1]) == (17, True)
    assert found["margin.failed"][:2] == (
        18,
        "a margin is how much worse is still accepted, 0 or more, got -0.1",
    )
    assert found["margin.infrastructure"][0] == 19
    assert found["margin.latency"][:2] == (20, "a margin of 10 accepts 11 times as much: write 10 % as 0.1")
    assert found["margin.tokens"][:2] == (21, "must be a finite number")


def test_a_margin_as_wide_as_the_rewards_accepts_every_run_and_is_refused() -> None:
    ranged = "[decide]\nreward_range = [0, 1]\n[margin]\nreward = {}\n"
    assert "rewards are from 0 to 1" in issues_of(ranged.format(1))["margin.reward"][1]
    assert parse_decisions(ranged.format(0.9), "x").margins == {"reward": 0.9}


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("against = 'x'\n", "against"),
        ("min = 3\n", "min"),
        ("decide = 3\n", "decide"),
        ("[decide]\nreward_range = [0]\n", "decide.reward_range"),
        ("[decide]\nreward_range = ['a', 'b']\n[margin]\nreward = 0.1\n", "decide.reward_range"),
        ("[decide]\nslices = ['']\n", "decide.slices"),
        ('[decide]\nagainst = "a\\u001bb"\n', "decide.against"),
        ("[secrets]\nrequired = []\n", "secrets"),
        (f"[max]\nreward = 1{'0' * 400}\n", "max.reward"),
    ],
)
def test_what_a_decide_file_cannot_have_is_told_by_its_key(text: str, key: str) -> None:
    assert key in issues_of(text)


def test_metrics_with_a_number_are_named_with_it() -> None:
    assert (metric_named("pass@16"), metric_named("pass^2")) == (METRICS["pass@K"], METRICS["pass^K"])
    assert [metric_named(name) for name in ("pass@K", "pass^0", "pass^", "PASS_RATE")] == [None] * 4


def test_it_is_found_beside_its_config_and_a_config_without_one_decides_nothing(tmp_path: Path) -> None:
    config = tmp_path / "a.toml"
    assert decisions_about(config) == Decisions.none()
    decide_file(config).write_text("[min]\nreward = 1\n")
    assert decisions_about(config).minima == {"reward": 1.0}
    assert decide_file(config).name == "a.decide.toml"


def test_wrong_text_of_every_kind_is_an_error_that_names_the_file(workspace: WorkspaceDirectory) -> None:
    path = write_config(workspace, "[min\n", name="a.decide.toml")
    assert issue_text(path, workspace).startswith("Invalid TOML in configs/eval/a.decide.toml")
    path.write_bytes(b"\xff\xfe")
    assert "configs/eval/a.decide.toml: it is not UTF-8" in issue_text(path, workspace)


def issue_text(path: Path, workspace: WorkspaceDirectory) -> str:
    with pytest.raises(OsmosisError) as raised:
        load_decisions(path, workspace)
    return raised.value.message


def test_it_is_never_taken_for_a_config(workspace: WorkspaceDirectory) -> None:
    write_config(workspace, MINIMAL_EVAL, name="a.toml")
    path = write_config(workspace, FULL, name="a.decide.toml")
    with pytest.raises(OsmosisError) as raised:
        load_eval_config(path, workspace)
    assert raised.value.hint == "name the config that it is about: a.toml"
    with pytest.raises(OsmosisError) as raised:
        load_eval_config(path.with_name("b.toml"), workspace)
    assert "decide" not in (raised.value.hint or "")
