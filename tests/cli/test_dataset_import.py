"""`osmosis dataset import`: files of other shapes, as people have them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow.parquet import write_table as write_parquet

from osmosis_ai.cli.main import main
from tests.datasets.builders import jsonl, write


@pytest.fixture(autouse=True)
def outside_any_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def imported(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def turns(*spoken: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in spoken]


SHAPES: dict[str, tuple[Any, dict[str, Any]]] = {
    "question and answer": ({"question": "2+2?", "answer": 4}, {"user_prompt": "2+2?", "ground_truth": "4"}),
    "names in capitals": ({"Problem": "2+2?", "Answer": "4"}, {"user_prompt": "2+2?", "ground_truth": "4"}),
    "our own": (
        {"user_prompt": "2+2?", "label": "4", "system_prompt": "Be short."},
        {"system_prompt": "Be short.", "user_prompt": "2+2?", "ground_truth": "4"},
    ),
    "chat with an answer": (
        {"messages": turns(("system", "Be short."), ("user", "2+2?"), ("assistant", "4"))},
        {"system_prompt": "Be short.", "user_prompt": "2+2?", "ground_truth": "4"},
    ),
    "chat beside an answer": (
        {"input": turns(("user", [{"type": "text", "text": "2+2?"}])), "ideal": "4"},
        {"system_prompt": None, "user_prompt": "2+2?", "ground_truth": "4"},
    ),
    "chat as text": (
        {"prompt": json.dumps(turns(("user", "2+2?"))), "target": "4"},
        {"system_prompt": None, "user_prompt": "2+2?", "ground_truth": "4"},
    ),
    "conversations of from and value": (
        {"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]},
        {"system_prompt": None, "user_prompt": "2+2?", "ground_truth": "4"},
    ),
    "a task and its input": (
        {"instruction": "Add.", "input": "2 2", "output": "4"},
        {"user_prompt": "Add.\n\n2 2", "ground_truth": "4"},
    ),
    "an answer inside an object": (
        {
            "data_source": "sums",
            "prompt": turns(("user", "2+2?")),
            "reward_model": {"style": "rule", "ground_truth": 10**29 + 1},
            "extra_info": {"index": 1, "nothing": {}},
        },
        {
            "system_prompt": None,
            "user_prompt": "2+2?",
            "ground_truth": "100000000000000000000000000001",
            "metadata": {"index": 1, "nothing": None},
        },
    ),
}


def test_common_shapes_are_recognised(capsys: pytest.CaptureFixture[str]) -> None:
    for number, (name, (record, expected)) in enumerate(SHAPES.items()):
        write(Path(), f"{number}.jsonl", jsonl([record] * 4))
        assert (
            main(["--plain", "dataset", "import", f"{number}.jsonl", "-o", f"out{number}.jsonl", "-y"]) == 0
        ), name
        assert imported(f"out{number}.jsonl") == [expected] * 4, name
        assert main(["--plain", "dataset", "validate", f"out{number}.jsonl"]) == 0, name
    capsys.readouterr()


def test_csv_and_parquet_and_json_become_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    records = [{"question": f"{i}+1?", "answer": i + 1} for i in range(4)]
    write(Path(), "a.csv", "question,answer\n" + "".join(f"{r['question']},{r['answer']}\n" for r in records))
    write(Path(), "b.json", json.dumps(records))
    pq.write_table(pa.Table.from_pylist(records), "c.parquet")
    for name in ("a.csv", "b.json", "c.parquet"):
        assert (
            main(["--plain", "dataset", "import", name, "--map", "prompt=question,ground_truth=answer"]) == 0
        )
        target = f"{name[0]}.jsonl"
        assert imported(target) == [{"user_prompt": f"{i}+1?", "ground_truth": str(i + 1)} for i in range(4)]
    assert "Imported 4 rows into c.jsonl" in capsys.readouterr().out


def test_a_guess_is_shown_and_asked_before_anything_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    write(Path(), "qa.jsonl", jsonl([{"question": "2+2?", "answer": "4", "level": "easy"}] * 4))
    assert main(["--plain", "dataset", "import", "qa.jsonl", "-o", "out.jsonl"]) == 1
    err = capsys.readouterr().err
    assert "Mapping: prompt=question,ground_truth=answer" in err
    assert "Use --yes to confirm" in err
    assert not Path("out.jsonl").exists()


def test_scripts_get_the_mapping(capsys: pytest.CaptureFixture[str]) -> None:
    write(Path(), "qa.jsonl", jsonl([{"question": "2+2?", "answer": "4", "level": "easy", "by": "me"}] * 4))
    words = ["dataset", "import", "qa.jsonl", "-o", "out.jsonl", "--json"]
    assert main([*words, "--map", "prompt=question", "--map", "ground_truth=answer,metadata=level+by"]) == 0
    out, err = capsys.readouterr()
    envelope = json.loads(out)
    assert err == ""
    assert envelope["operation"] == "dataset.import"
    assert envelope["resource"] == {
        "file": "out.jsonl",
        "source": "qa.jsonl",
        "row_count": 4,
        "skipped": 0,
        "valid": True,
        "mapping": [
            {"column": "question", "becomes": "user_prompt", "guessed": False},
            {"column": "answer", "becomes": "ground_truth", "guessed": False},
            {"column": "level", "becomes": "metadata", "guessed": False},
            {"column": "by", "becomes": "metadata", "guessed": False},
        ],
    }
    assert imported("out.jsonl")[0]["metadata"] == {"level": "easy", "by": "me"}


def test_the_mapping_names_the_turns_of_a_conversation_that_become_columns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    chat = turns(("system", "Be short."), ("user", "2+2?"), ("assistant", "4"))
    write(Path(), "qa.jsonl", jsonl([{"messages": chat}] * 4))
    assert main(["dataset", "import", "qa.jsonl", "-o", "out.jsonl", "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["resource"]["mapping"] == [
        {"column": "messages", "becomes": "user_prompt", "guessed": True},
        {"column": "messages (system turn)", "becomes": "system_prompt", "guessed": True},
        {"column": "messages (last turn)", "becomes": "ground_truth", "guessed": True},
    ]


def test_a_file_that_is_there_is_told_before_anybody_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    write(Path(), "qa.jsonl", jsonl([{"question": "2+2?", "answer": "4"}] * 4))
    write(Path(), "out.jsonl", "mine")
    assert main(["dataset", "import", "qa.jsonl", "-o", "out.jsonl"]) == 1
    out, err = capsys.readouterr()
    assert "out.jsonl exists" in err
    assert "Mapping" not in out + err
    assert Path("out.jsonl").read_text() == "mine"


REFUSED_MAPPINGS = {
    "prompt=nowhere": "no column 'nowhere' (found 'question', 'answer')",
    "prompt=questoin": "did you mean `question`?",
    "promt=question": "`promt` is no field of a dataset (prompt, ground_truth, system, metadata); did you mean `prompt`?",
    "question": "`question` is no mapping; write FIELD=COLUMN",
    "prompt=question,user_prompt=answer": "`prompt` is mapped twice",
}


def test_a_wrong_mapping_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    write(Path(), "qa.jsonl", jsonl([{"question": "2+2?", "answer": "4"}] * 4))
    for mapping, message in REFUSED_MAPPINGS.items():
        assert (
            main(["--plain", "dataset", "import", "qa.jsonl", "-o", "out.jsonl", "--map", mapping, "-y"]) == 1
        )
        assert message in capsys.readouterr().err
        assert not Path("out.jsonl").exists()


REFUSED_ROWS: dict[str, Any] = {
    "line 2: no value for 'prompt' (from 'question')": {"question": None, "answer": "4"},
    "line 2: expected a JSON object, found an array": ["2+2?", "4"],
    "line 2: the conversation has 3 turns (user, assistant, user) before its end": {
        "question": turns(("user", "a"), ("assistant", "b"), ("user", "c")),
        "answer": "4",
    },
    "line 2: the user's turn holds more than text": {
        "question": turns(("user", [{"type": "image_url", "image_url": {"url": "x"}}])),
        "answer": "4",
    },
}


def test_a_row_that_cannot_be_used_stops_the_import_or_is_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    good = {"question": "2+2?", "answer": "4"}
    words = ["--plain", "dataset", "import", "qa.jsonl", "-o", "out.jsonl", "-y"]
    for message, bad in REFUSED_ROWS.items():
        write(Path(), "qa.jsonl", jsonl([good, bad, good, good, good]))
        assert main(words) == 1
        assert message in capsys.readouterr().err
        assert not Path("out.jsonl").exists()
        assert main([*words, "--skip-invalid"]) == 0
        assert "1 row left out" in capsys.readouterr().err
        assert len(imported("out.jsonl")) == 4
        Path("out.jsonl").unlink()


def test_a_chat_without_an_answer_is_no_row_whatever_stands_in_its_place(
    capsys: pytest.CaptureFixture[str],
) -> None:
    good = {"messages": turns(("user", "2+2?"), ("assistant", "4"))}
    for bad in ("text", [], [{"role": "user"}, 3], None):
        write(Path(), "chat.jsonl", jsonl([good, {"messages": bad}]))
        assert main(["--plain", "dataset", "import", "chat.jsonl", "-o", "out.jsonl", "-y"]) == 1
        assert "  - line 2: " in capsys.readouterr().err
        assert not Path("out.jsonl").exists()


def test_numbers_that_are_missing_bytes_and_depth_are_problems_of_their_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = {"question": ["a", "b", "c"], "answer": [1.5, math.nan, 2.5], "raw": [b"ok", b"ok", b"\xff"]}
    write_parquet(pyarrow.table(table), "numbers.parquet")
    options = ["--map", "metadata=raw", "-o", "out.jsonl", "-y", "--skip-invalid"]
    fields = ["--map", "prompt=question,ground_truth=answer"]
    assert main(["--plain", "dataset", "import", "numbers.parquet", *fields, *options]) == 0
    assert "row 3: bytes that are not UTF-8 text" in capsys.readouterr().err
    rows = imported("out.jsonl")
    assert [row["ground_truth"] for row in rows] == ["1.5", None] and rows[0]["metadata"] == {"raw": "ok"}

    assert main(["--plain", "dataset", "import", "numbers.parquet", *fields, "-o", "o.jsonl", "-y"]) == 1
    assert "row 2: no value for 'ground_truth' (from 'answer')" in capsys.readouterr().err

    deep = '{"question": "q", "answer": "a", "tree": ' + '{"a": ' * 900 + "1" + "}" * 900 + "}\n"
    write(Path(), "deep.jsonl", deep)
    words = ["--plain", "dataset", "import", "deep.jsonl", "--map", "metadata=tree", "-o", "o.jsonl", "-y"]
    assert main(words) == 1
    assert "line 1: nested too deeply" in capsys.readouterr().err


def test_a_line_that_is_no_json_is_a_problem_of_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    write(Path(), "qa.jsonl", '{"question": "2+2?", "answer": "4"}\n{"question": \n')
    assert main(["--plain", "dataset", "import", "qa.jsonl", "-o", "out.jsonl", "-y"]) == 1
    assert "line 2: not valid JSON" in capsys.readouterr().err


def test_a_file_that_is_there_stays(capsys: pytest.CaptureFixture[str]) -> None:
    write(Path(), "qa.jsonl", jsonl([{"question": "2+2?", "answer": "4"}] * 4))
    write(Path(), "out.jsonl", "mine\n")
    words = ["--plain", "dataset", "import", "qa.jsonl", "-y", "-o"]
    assert main([*words, "out.jsonl"]) == 1
    assert "`--overwrite` replaces it" in capsys.readouterr().err
    assert main([*words, "qa.jsonl"]) == 1
    assert "is the file that is read" in capsys.readouterr().err
    assert main([*words, "out.csv"]) == 1
    assert "ends in .jsonl" in capsys.readouterr().err
    assert Path("out.jsonl").read_text() == "mine\n"
    assert main([*words, "out.jsonl", "--overwrite"]) == 0
    assert len(imported("out.jsonl")) == 4


def test_few_rows_are_imported_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    write(Path(), "qa.jsonl", jsonl([{"question": "2+2?", "answer": "4"}]))
    assert main(["--plain", "dataset", "import", "qa.jsonl", "-o", "out.jsonl", "-y"]) == 0
    assert "a platform would refuse the file: found 1 row;" in capsys.readouterr().err


def test_validation_points_to_the_import(capsys: pytest.CaptureFixture[str]) -> None:
    write(Path(), "qa.jsonl", jsonl([{"question": "2+2?", "answer": "4"}] * 4))
    assert main(["--plain", "dataset", "validate", "qa.jsonl"]) == 1
    assert "`osmosis dataset import qa.jsonl` maps columns of other names." in capsys.readouterr().err
