"""The action and the jobs of docs/guides/ci.md: their own commands, run as far as no service is needed.

Commands are taken out of the YAML that people use. `osmosis` and `gh` are stand-ins that write down how they were called;
what was called is then run in this process.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.decisions.builders import write_journalled_run
from tests.e2e.agent_workspace import copy_sample_workspace

from osmosis_ai.cli.main import main

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).parents[2]
ACTION: dict[str, Any] = yaml.safe_load((REPOSITORY / "action.yml").read_text())
PAGE = (REPOSITORY / "docs" / "guides" / "ci.md").read_text()
BLOCKS: list[dict[Any, Any]] = [
    yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
]
EVIL = "x\"; touch owned; echo '$(touch owned)' `touch owned` ${{ github.token }}"

STAND_IN = """#!/bin/sh
for argument in "$0" "$@"; do printf '%s\\0' "$argument" >> "$CALLS"; done
printf '\\n' >> "$CALLS"
if [ -n "$REPLY" ]; then cat "$REPLY"; fi
exit "${ENDS_WITH:-0}"
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sample workspace, as a CI has it, with stand-ins for the programs that need a service."""
    workspace = copy_sample_workspace(tmp_path / "checkout")
    (tmp_path / "bin").mkdir()
    for name in ("osmosis", "gh"):
        (tmp_path / "bin" / name).write_text(STAND_IN)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.chdir(workspace.root)
    return workspace.root


def script(name: str) -> str:
    (found,) = (step["run"] for step in ACTION["runs"]["steps"] if step.get("name") == name)
    assert isinstance(found, str)
    return found


def run(
    commands: str, checkout: Path, *, reply: str = "", ends_with: int = 0, **variables: str
) -> tuple[int, list[list[str]], str]:
    """Run a step as GitHub's `shell: bash` does: its status, what was called, what it left for later steps."""
    home = checkout.parent
    output, calls, answer = home / "output", home / "calls", home / "reply"
    for path in (output, calls):
        path.write_text("")
    answer.write_text(reply)
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", commands],
        cwd=checkout,
        env={
            "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
            "RUNNER_TEMP": str(home),
            "GITHUB_OUTPUT": str(output),
            "CALLS": str(calls),
            "REPLY": str(answer),
            "ENDS_WITH": str(ends_with),
            **variables,
        },
        capture_output=True,
        timeout=120,
        check=False,
    )
    called = [line.split("\0")[:-1] for line in calls.read_text().splitlines()]
    return done.returncode, [[Path(each[0]).name, *each[1:]] for each in called], output.read_text()


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in ("run", "script"):
                yield from inner if isinstance(inner, list) else [inner]
            else:
                yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)


def test_no_script_has_text_that_a_pull_request_chooses() -> None:
    scripts = list(texts([ACTION, *BLOCKS]))
    assert len(scripts) > 15

    assert [text for text in scripts if "${{" in text] == []


def test_the_action_has_what_its_steps_name() -> None:
    written = json.dumps(ACTION["runs"])
    named = set(re.findall(r"inputs\.([a-z-]+)", written))
    assert named == set(ACTION["inputs"])
    ids = {step["id"] for step in ACTION["runs"]["steps"] if "id" in step}
    assert set(re.findall(r"steps\.([a-z]+)\.", json.dumps(ACTION))) == ids
    (usage,) = (
        step["with"]
        for block in BLOCKS
        for job in block.get("jobs", {}).values()
        for step in job["steps"]
        if "config" in step.get("with", {})
    )
    assert set(usage) <= set(ACTION["inputs"])
    for step in ACTION["runs"]["steps"]:
        assert "uses" in step or step["shell"] == "bash"


def test_a_config_is_checked_and_takes_the_code_of_the_commit_alone(checkout: Path) -> None:
    config = "configs/eval/multiply.toml"
    status, ((program, *arguments),), _ = run(
        script("Check the config, its code and its data"), checkout, CONFIG=config
    )
    assert (status, program, main(arguments)) == (0, "osmosis", 0)
    pin = script("Take the code of this commit")
    for _ in range(2):
        assert run(pin, checkout, CONFIG=config, COMMIT="0123abc4")[0] == 0
    assert (checkout / config).read_text().count('[experiment]\ncommit_sha = "0123abc4"\n') == 1
    assert main(["check", config, "--no-import"]) == 0


def gate_call(checkout: Path, **variables: str) -> tuple[int, list[str], str]:
    known = {"CONFIG": "configs/eval/multiply.toml", "RUN": "x", "AGAINST": "", "RULES": "", "UNCLEAR": ""}
    status, (call,), output = run(script("Gate"), checkout, **{**known, **variables})
    return status, call, output


@pytest.mark.parametrize(
    ("passes", "status"),
    [((2, 2, 3, 1), 0), ((1, 0, 1, 0), 1), ((2, 1, 4, 0, 3), 3)],
    ids=["pass", "fail", "unclear"],
)
def test_the_gate_lets_through_what_is_no_worse_than_the_target_branch(
    checkout: Path, passes: tuple[int, ...], status: int
) -> None:
    runs = checkout / ".osmosis" / "evals"
    for seed, (name, each) in enumerate({"base": (2, 2, 3, 1), "change": passes}.items()):
        rewards = [[float(attempt < each[row % len(each)]) for attempt in range(4)] for row in range(40)]
        write_journalled_run(runs / name, rewards, inputs={"seed": seed}, grader_digest="9" * 64)
    rules = checkout / "configs" / "eval" / "multiply.decide.toml"
    rules.write_text("[margin]\npass_rate = 0.08\n")
    ended, (program, *arguments), _ = gate_call(checkout, RUN="change", AGAINST="base")
    assert (ended, program) == (0, "osmosis")
    assert main(arguments) == status
    assert (checkout.parent / "gate.md").read_text().startswith("<!-- osmosis:eval.gate:")
    assert "<testsuites" in (checkout.parent / "gate.xml").read_text()
    # What the gate ends with is what the action ends with, after the comment.
    _, _, output = run(
        script("Gate"), checkout, ends_with=status, CONFIG="a.toml", RUN="x", AGAINST="", RULES="", UNCLEAR=""
    )[0:3]
    assert output == f"status={status}\n"
    assert run(script("End as the gate says"), checkout, STATUS=str(status))[0] == status


def test_nothing_that_a_pull_request_names_is_run(checkout: Path) -> None:
    _, call, _ = gate_call(checkout, RUN=EVIL, AGAINST=f"git:origin/{EVIL}", RULES=EVIL, UNCLEAR=EVIL)
    assert call[call.index("--against") + 1] == f"git:origin/{EVIL}"
    assert call[-2:] == ["--", EVIL]
    run(script("Evaluate"), checkout, reply=json.dumps({"resource": {"name": "amber"}}), CONFIG=EVIL)
    run(script("Check the config, its code and its data"), checkout, CONFIG=EVIL)
    assert not list(checkout.parent.rglob("owned"))


def test_the_run_of_a_submit_is_named_to_the_gate(checkout: Path) -> None:
    status, calls, output = run(
        script("Evaluate"),
        checkout,
        reply=json.dumps({"resource": {"name": "amber-otter-42"}}),
        CONFIG="c.toml",
    )
    assert (status, output) == (0, "run=amber-otter-42\n")
    assert calls == [["osmosis", "eval", "submit", "c.toml", "--watch", "--yes", "--json"]]
    assert run(script("Evaluate"), checkout, ends_with=1, CONFIG="c.toml")[0] == 1


@pytest.mark.parametrize(
    ("author", "body", "method"),
    [
        ("Bot", "<!-- osmosis:eval.gate:a -->\n### old", "PATCH"),
        ("User", "<!-- osmosis:eval.gate:a -->\n### somebody else's", "POST"),
        ("Bot", "<!-- osmosis:eval.gate:another -->\n", "POST"),
    ],
)
def test_a_comment_of_before_is_updated_in_place(checkout: Path, author: str, body: str, method: str) -> None:
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed here; GitHub's machines have it")
    (checkout.parent / "gate.md").write_text("<!-- osmosis:eval.gate:a -->\n### new\n")
    comments = [
        {"id": 7, "user": {"type": author}, "body": body},
        {"id": 8, "user": {"type": "Bot"}, "body": ""},
    ]
    status, calls, _ = run(
        script("Comment"),
        checkout,
        reply=json.dumps(comments),
        COMMENTS="repos/a/b/issues/3/comments",
        COMMENT="repos/a/b/issues/comments",
    )
    assert status == 0
    place = "repos/a/b/issues/comments/7" if method == "PATCH" else "repos/a/b/issues/3/comments"
    assert calls[1] == [
        "gh",
        "api",
        "--silent",
        "--method",
        method,
        place,
        "-F",
        f"body=@{checkout.parent}/gate.md",
    ]


def gitlab() -> list[str]:
    (job,) = (block["evaluate"] for block in BLOCKS if "evaluate" in block)
    assert all(isinstance(line, str) for line in job["script"])
    lines: list[str] = job["script"]
    return lines


def test_the_job_for_gitlab_pins_gates_and_ends_as_the_gate(checkout: Path) -> None:
    lines = gitlab()
    config = "configs/eval/multiply.toml"
    known = {"CONFIG": config, "CI_COMMIT_SHA": "0123abc4", "RUN": "change"}
    pin = next(line for line in lines if line.startswith("sed"))
    assert run(pin, checkout, **known)[0] == 0
    assert '[experiment]\ncommit_sha = "0123abc4"\n' in (checkout / config).read_text()
    (checkout / "run.json").write_text('{"resource": {"name": "amber-otter-42"}}')
    named = next(line for line in lines if line.startswith("RUN="))
    gating = [line for line in lines if "STATUS" in line and "NOTES" not in line]
    status, (call,), _ = run("\n".join([named, *gating]), checkout, ends_with=3, **known)
    assert status == 3
    assert call[:4] == ["osmosis", "eval", "gate", "--rules"] and call[-1] == "amber-otter-42"
    assert "configs/eval/multiply.decide.toml" in call and "git:FETCH_HEAD" in call
