from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.errors import OsmosisError, ResumeRefusedError
from osmosis_ai.evaluation.manifest import Manifest, inputs_digest, source_digest
from tests.evaluation.builders import inputs


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    manifest = Manifest.new("first", inputs(), {"git_head": "abc", "git_branch": None})
    manifest.write(tmp_path / "manifest.json")

    assert Manifest.load(tmp_path / "manifest.json") == manifest
    written = json.loads((tmp_path / "manifest.json").read_text())
    assert written["schema_version"] == 1
    assert written["provenance"] == {"git_head": "abc"}
    assert written["inputs"] == {
        "model_path": "openai/stand-in",
        "dataset": {"sha256": "d1", "selected_source_rows": "0-9"},
        "n": 1,
        "rollout": {"name": "multiply", "entrypoint": "main.py", "source_digest": "s1"},
        "env": {},
        "secret_names": [],
        "timeouts": {"agent_timeout_sec": None, "grader_timeout_sec": None},
        "seed": 0,
        "versions": {"rollout_protocol": "0.3", "dataset_normalization": 1, "state_schema": 1},
    }


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        (inputs(model_path="openai/other"), "model_path"),
        (inputs(rows="0-10"), "dataset"),
        (inputs(n=2), "n"),
        (inputs(source="s2"), "rollout"),
        (inputs(env={"A": "1"}), "env"),
        (inputs(secret_names=("KEY",)), "secret_names"),
        (inputs(agent_workflow_timeout_s=5.0), "timeouts"),
        (inputs(seed=1), "seed"),
    ],
)
def test_resume_refuses_when_an_input_changed_and_names_it(changed: dict[str, object], key: str) -> None:
    manifest = Manifest.new("first", inputs(), {})
    with pytest.raises(ResumeRefusedError, match=f"Changed: {key}\\.") as refused:
        manifest.require_equal_inputs(changed)
    assert refused.value.details["changed"] == [key]
    assert "--fresh" in (refused.value.hint or "")


def test_resume_names_every_changed_input() -> None:
    with pytest.raises(ResumeRefusedError, match="Changed: model_path, n, seed\\."):
        Manifest.new("first", inputs(), {}).require_equal_inputs(inputs(seed=1, n=3, model_path="x/y"))


def test_resume_tells_what_an_input_was_and_what_it_is_now_but_no_variables_value() -> None:
    before = inputs(env={"A": "1", "B": "key-one"}, agent_workflow_timeout_s=5.0, secret_names=("KEY",))
    now = inputs(
        rows="0-2",
        source="s2",
        seed=3,
        env={"B": "key-two", "C": "3"},
        secret_names=(),
        grader_timeout_s=1.5,
    )
    with pytest.raises(ResumeRefusedError) as refused:
        Manifest.new("first", before, {}).require_equal_inputs(now)
    assert refused.value.message.splitlines()[1:] == [
        "  - dataset: the selected rows: was 0-9, now 0-2",
        "  - env: A was removed",
        "  - env: B has another value",
        "  - env: C was added",
        "  - rollout: its files were edited",
        "  - secret_names: was KEY, now none",
        "  - seed: was 0, now 3",
        "  - timeouts: agent_workflow_timeout_s: was 5, now not set",
        "  - timeouts: grader_timeout_s: was not set, now 1.5",
    ]


def test_pace_and_threshold_are_no_inputs() -> None:
    Manifest.new("first", inputs(), {}).require_equal_inputs(
        inputs(batch_size=99, pass_threshold=0.0, branch="main")
    )


@pytest.mark.parametrize("name", ["a\n::error::pwned", "::error::pwned", "../up", "", 5])
def test_a_manifest_of_a_run_that_nobody_could_have_named_so_is_refused(name: Any, tmp_path: Path) -> None:
    """The name is shown wherever the run is: no line of a CI system's log may begin with what it wants."""
    Manifest.new(name, inputs(), {}).write(tmp_path / "manifest.json")
    with pytest.raises(OsmosisError, match="is not a run's manifest"):
        Manifest.load(tmp_path / "manifest.json")


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"schema_version": 1}', "not json", '{"a":' * 100_000])
def test_a_file_that_is_no_manifest_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(OsmosisError, match="is not a run's manifest"):
        Manifest.load(tmp_path / "manifest.json")


@pytest.mark.parametrize(("rows", "count"), [("0-9", 10), ("4", 1), ("0-9,12,20-21", 13)])
def test_a_manifest_knows_how_many_rows_were_selected(rows: str, count: int) -> None:
    assert Manifest.new("first", inputs(rows=rows), {}).sampled_rows == count


def test_the_digest_of_inputs_does_not_depend_on_their_order() -> None:
    backwards = dict(reversed(inputs().items()))
    assert inputs_digest(inputs()) == inputs_digest(backwards)
    assert inputs_digest(inputs()) != inputs_digest(inputs(seed=1))


class TestSourceDigest:
    @pytest.fixture
    def rollout(self, tmp_path: Path) -> Path:
        directory = tmp_path / "rollout"
        (directory / "package").mkdir(parents=True)
        (directory / "main.py").write_text("print(1)\n")
        (directory / "package" / "tool.py").write_text("x = 1\n")
        return directory

    def test_changes_with_content_names_and_new_files(self, rollout: Path) -> None:
        digests = {source_digest(rollout)}
        (rollout / "main.py").write_text("print(2)\n")
        digests.add(source_digest(rollout))
        (rollout / "main.py").rename(rollout / "start.py")
        digests.add(source_digest(rollout))
        (rollout / "package" / "new.txt").touch()
        digests.add(source_digest(rollout))
        assert len(digests) == 4

    def test_does_not_see_what_tools_leave_behind(self, rollout: Path) -> None:
        before = source_digest(rollout)
        for name in ("__pycache__", ".venv", "package/__pycache__", "multiply.egg-info", "runs"):
            (rollout / name).mkdir()
            (rollout / name / "x").write_text("1")
        (rollout / "uv.lock").write_text("lock")
        assert source_digest(rollout, output_root=rollout / "runs") == before

    def test_follows_a_link_to_a_file(self, rollout: Path, tmp_path: Path) -> None:
        (tmp_path / "shared.py").write_text("a")
        (rollout / "shared.py").symlink_to(tmp_path / "shared.py")
        before = source_digest(rollout)
        (tmp_path / "shared.py").write_text("b")
        assert source_digest(rollout) != before

    @pytest.mark.parametrize(("target", "kind"), [("..", "a directory"), ("nowhere", "nothing")])
    def test_refuses_links_whose_content_it_cannot_vouch_for(
        self, rollout: Path, target: str, kind: str
    ) -> None:
        (rollout / "link").symlink_to(target)
        with pytest.raises(OsmosisError, match=f"symbolic link to {kind}"):
            source_digest(rollout)
