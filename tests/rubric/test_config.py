"""Rubrics in YAML: where they are found, what fills them, and what is refused."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.rubric.config import CONFIG_NAME, discover_config, load_rubrics

JUDGE = "{provider: openai, model: m}"
ENTRY = "- {id: same, rubric: A, model_info: {}}\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / CONFIG_NAME


def write(path: Path, text: str) -> Path:
    path.write_text(dedent(text))
    return path


def refusal(path: Path) -> str:
    with pytest.raises(OsmosisError) as caught:
        load_rubrics(path)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_rubrics_are_found_wherever_they_stand(config: Path) -> None:
    write(
        config,
        f"""\
        groups:
          inner:
            - {{id: a, rubric: A, model_info: {JUDGE}}}
          other: {{id: b, rubric: B, model_info: {JUDGE}}}
        ---
        - {{id: c, rubric: C, model_info: {JUDGE}}}
        ---
        id: d
        rubric: D
        model_info: {JUDGE}
        """,
    )
    labels = {name: found.source.rpartition(":")[2] for name, found in load_rubrics(config).items()}
    assert labels == {"a": "inner[0]", "b": "other", "c": "document[1][0]", "d": "document[2]"}


def test_defaults_fill_what_a_rubric_leaves_out(config: Path) -> None:
    write(
        config,
        f"""\
        default_model_info: {JUDGE}
        default_score_max: 5
        default_system_prompt: be strict
        rubrics:
          - {{id: a, rubric: A}}
          - {{id: b, rubric: B, score_max: 10, model_info: {{provider: xai, model: g}}, ground_truth: 42}}
        """,
    )
    first, second = load_rubrics(config).values()
    assert first.model_info == {"provider": "openai", "model": "m"}
    assert (first.score_max, first.system_prompt) == (5.0, "be strict")
    assert second.model_info == {"provider": "xai", "model": "g"}
    assert (second.score_max, second.ground_truth) == (10.0, None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("rubrics: [", "on line 1, column 11: "),
        ("key: value", "No rubric entries found in"),
        ("{id: a, rubric: '  ', model_info: {}}", "has an empty 'rubric' text"),
        ("{id: a, rubric: text}", "needs 'model_info'"),
        ("{id: a, rubric: t, model_info: {}, extra_info: {}}", "must not include 'extra_info'"),
        ("{id: a, rubric: t, model_info: {}, score_min: low}", "'score_min' of the rubric"),
        ("{id: a, rubric: t, model_info: {}, score_min: true}", "must be a finite number, not True"),
        (
            "{id: a, rubric: t, model_info: {}, score_min: 5, score_max: 1}",
            "is not greater than 'score_min' 5",
        ),
        ("{version: 2, rubrics: []}", "has version 2; this release reads version 1"),
        (f"{ENTRY}---\n{ENTRY}", "Duplicate rubric id 'same'"),
        ("a: !!python/object/apply:os.system ['true']", "Invalid YAML"),
        ("{version: 1, a: 1}\n---\n{version: 0, a: 1}", "state different versions"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(config: Path, text: str, problem: str) -> None:
    message = refusal(write(config, text))
    assert problem in message and str(config) in message


def test_a_binary_file_is_no_yaml(config: Path) -> None:
    config.write_bytes(b"\x80\x81\x82")
    assert "is not UTF-8 text (byte 0); expected YAML" in refusal(config)


def test_the_file_beside_the_data_is_found_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, beside = tmp_path / "here", tmp_path / "data"
    (here / "examples").mkdir(parents=True)
    beside.mkdir()
    monkeypatch.chdir(here)
    data = beside / "d.jsonl"
    with pytest.raises(NotFoundError) as caught:
        discover_config(None, data)
    for place in (beside, here, here / "examples"):
        assert str(place / CONFIG_NAME) in caught.value.message
    for place in (here / "examples", here, beside):
        (place / CONFIG_NAME).write_text("{}")
        assert discover_config(None, data) == place / CONFIG_NAME
