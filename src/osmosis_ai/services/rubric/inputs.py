"""The inputs of a judge session: records, rubrics and judges, from local files."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from osmosis_ai.errors import NotFoundError, OsmosisError, reason_of
from osmosis_ai.files import expanded
from osmosis_ai.services.report_files import ReportFile

if TYPE_CHECKING:
    from osmosis_ai.evaluation.spec import Budget
    from osmosis_ai.rubric.config import Rubric
    from osmosis_ai.rubric.documents import Baseline
    from osmosis_ai.rubric.judge_model import JudgeModel
    from osmosis_ai.rubric.records import RecordIndex
    from osmosis_ai.rubric.session import SessionSpec


_ID_LIKE = re.compile(r"[\w.-]+")
_FILE_NAME = "rubric_eval_result.json"
_LONGEST_FOLDER = 80
_ELSEWHERE = "name another place with `--output` or `--report`"


class JudgeRequiredError(OsmosisError):
    """The user named no judge."""


@dataclass(frozen=True)
class RubricRequest:
    """The options of a judge session.

    Attributes:
        data: a JSON Lines file.
        rubric: the text, ``@file``, or the id of a rubric in a YAML file.
        config: that YAML file; discovered if None.
        models: the judges, by their LiteLLM names; those of the rubric's ``model_info`` if empty.
        number: calls per record and judge.
        output: a file or directory, as typed (default: the cache directory).
        api_base: an OpenAI-compatible endpoint for every judge.
        score_min, score_max: the scale; if None, that of the rubric, or 0 to 1.
        report_text: include rubric, records and explanations in the report, not only numbers.
        overwrite_report: replace an existing report.
        swap: reverse the order of the quoted texts in every other call, to measure position bias.
        classic: read records and write results as `osmosis eval-rubric` does.
    """

    data: Path
    rubric: str
    config: Path | None = None
    models: tuple[str, ...] = ()
    number: int = 1
    output: str | None = None
    api_key: str | None = field(default=None, repr=False)
    api_base: str | None = None
    timeout_s: float | None = None
    score_min: float | None = None
    score_max: float | None = None
    report: Path | None = None
    report_text: bool = True
    overwrite_report: bool = False
    baseline: Path | None = None
    resume: bool = False
    seed: int = 0
    swap: bool = False
    concurrency: int | None = None
    budget: Budget | None = None
    classic: bool = False


class OutputPlan(NamedTuple):
    """The result file; ``fixed`` if the user named it, otherwise it is a new name in a directory."""

    path: Path
    fixed: bool


@dataclass(frozen=True)
class PreparedRubric:
    """A session whose inputs have been found, read and checked.

    Attributes:
        model_shown, provider_shown: the judges as the user named them.
        notes: what the user should know before the session starts.
    """

    request: RubricRequest
    spec: SessionSpec
    index: RecordIndex
    output: OutputPlan
    report: Path | None
    baseline: Baseline | None
    model_shown: str
    provider_shown: str
    notes: tuple[str, ...]


def choose_rubric(request: RubricRequest) -> Rubric:
    """Find the rubric: ``@file``, the id of one in a YAML file, or the text itself.

    A single word counts as an id if there is a YAML file that could contain it.
    """
    from osmosis_ai.rubric.config import Rubric, candidate_configs, discover_config, find_rubric

    text, config, data = request.rubric.strip(), request.config, request.data
    if not text:
        raise OsmosisError("Rubric text must not be empty.")
    if text.startswith("@"):
        path = expanded(text[1:])
        return Rubric(path.stem, _text_of_file(path), str(path))
    looks_like_id = _ID_LIKE.fullmatch(text) is not None
    is_configured = any(path.is_file() for path in candidate_configs(data))
    if config is not None or (looks_like_id and is_configured):
        path = discover_config(config, data)
        return find_rubric(path, text, need_model=not request.models, strict=not request.classic)
    note = (
        f"`{text}` is taken as the text of the rubric: there is no rubric_configs.yaml that could define it."
        if looks_like_id
        else None
    )
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]
    return Rubric(f"inline-{digest}", text, "inline", note=note)


def require_configured(data: Path, config: Path | None) -> Path:
    """Return the YAML file of rubrics, which `osmosis eval-rubric` requires.

    Raises:
        OsmosisError: there is no data file, or no YAML file.
    """
    from osmosis_ai.rubric.config import discover_config
    from osmosis_ai.rubric.records import require_file

    require_file(data, "Data path")
    return discover_config(config, data)


def check_bounds(score_min: float | None, score_max: float | None, rubric: Rubric) -> tuple[float, float]:
    """Return the scale: the user's, otherwise the rubric's, the judge's, or 0 to 1."""
    from osmosis_ai.rubric import types

    lowest = (score_min, rubric.score_min, rubric.model_info.get("score_min"), 0.0)
    highest = (score_max, rubric.score_max, rubric.model_info.get("score_max"), 1.0)
    return types.check_bounds(
        next(value for value in lowest if value is not None),
        next(value for value in highest if value is not None),
    )


def choose_judges(request: RubricRequest, rubric: Rubric, env: Mapping[str, str]) -> tuple[JudgeModel, ...]:
    """Choose the judges and their keys."""
    from osmosis_ai.rubric.judge_model import resolve_judge

    if not request.models and not rubric.model_info:
        raise JudgeRequiredError("nobody is named to judge.", hint="add `--model provider/model`")
    timeout_s = request.timeout_s if request.timeout_s is not None else rubric.model_info.get("timeout")
    judges = tuple(
        resolve_judge(judge, env=env, api_base=request.api_base, api_key=request.api_key, timeout_s=timeout_s)
        for judge in request.models or (rubric.model_info,)
    )
    names = [judge.model_path for judge in judges]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise OsmosisError(
            f"`{twice}` is named twice.",
            hint="ask one judge several times with `-n`; a panel has different ones",
        )
    return judges


def require_prices(judges: Sequence[JudgeModel], budget: Budget | None) -> None:
    """Reject a cost limit if a judge has no known price."""
    if budget is None or budget.max_cost_usd is None:
        return
    from osmosis_ai.llm.prices import price_of

    for judge in judges:
        if price_of(judge) is None:
            raise OsmosisError(
                f"`--max-cost` requires the price of `{judge.model_path}`, which is unknown.",
                hint="limit the session with `--max-tokens` or `--max-time` instead",
            )


def plan_report(report: Path | None, *, overwrite: bool) -> Path | None:
    """Return the report's path after checking that it can be written."""
    if report is None:
        return None
    path = expanded(report)
    ReportFile(path, overwrite=overwrite).check()
    return path.absolute()


def plan_output(output: str | None, rubric_id: str, *, classic: bool) -> OutputPlan:
    """Return where results are written."""
    if output is None:
        from osmosis_ai.files import cache_dir

        return _fresh(cache_dir() / "eval_result" / folder_of(rubric_id))
    try:
        path = expanded(output).resolve()
    except (OSError, RuntimeError) as error:  # a loop of links
        raise OsmosisError(f"Output path '{output}' cannot be resolved: {reason_of(error)}.") from None
    names_directory = output.endswith(("/", os.sep))
    if classic:
        if path.suffix and path.is_dir():
            raise OsmosisError(f"Output path '{output}' is a directory.")
        if names_directory or not path.suffix:
            return _fresh(path)
    elif names_directory or path.is_dir():
        path = path / _FILE_NAME
    _require_writable(path.parent)
    if path.exists() and not path.is_file():
        raise OsmosisError(f"Output path '{output}' is not a regular file.")
    return OutputPlan(path, fixed=True)


def require_swappable(spec: SessionSpec, index: RecordIndex) -> None:
    """Check that every record quotes at least two texts, whose order can be reversed."""
    if spec.runs < 2:
        raise OsmosisError("--swap compares calls with each other.", hint="ask twice or more: `--number 2`")
    if index.bare_line is not None and not (spec.rubric.original_input or spec.rubric.ground_truth):
        raise OsmosisError(
            f"Line {index.bare_line} of '{index.path}' has nothing but the text that is judged: there is no "
            "order to reverse.",
            hint="give records a `ground_truth`, `original_input` or `metadata`, or leave out `--swap`",
        )


def require_apart(*, written: Sequence[Path | None], read: Sequence[Path | None]) -> None:
    """Check that no output file is also an input, and that no two outputs are the same file."""
    taken = {path.resolve() for path in read if path is not None}
    for path in (path.resolve() for path in written if path is not None):
        if path in taken:
            raise OsmosisError(
                f"'{path}' would be overwritten: it is read, or written already.", hint=_ELSEWHERE
            )
        taken.add(path)


def folder_of(rubric_id: str) -> str:
    """Return the name of a rubric's directory: letters, digits, ``-`` and ``_``, in lower case."""
    kept = "".join(character if character.isalnum() or character in "-_" else "_" for character in rubric_id)
    return kept.strip("_").lower()[:_LONGEST_FOLDER] or "rubric"


def _text_of_file(path: Path) -> str:
    if path.is_dir():
        raise OsmosisError(f"Rubric file '{path}' is a directory.")
    if not path.exists():
        raise NotFoundError(f"Rubric file '{path}' does not exist.")
    try:
        text = path.read_text(encoding="utf-8-sig").strip()
    except UnicodeDecodeError:
        raise OsmosisError(f"Rubric file '{path}' is not UTF-8 text.") from None
    if not text:
        raise OsmosisError(f"Rubric file '{path}' is empty.")
    return text


def _fresh(directory: Path) -> OutputPlan:
    from osmosis_ai.rubric.session import journal_of

    _require_writable(directory)
    identifier = int(time.time())
    while (path := directory / f"rubric_eval_result_{identifier}.json").exists() or journal_of(path).exists():
        identifier += 1
    return OutputPlan(path, fixed=False)


def _require_writable(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OsmosisError(f"cannot create the directory '{directory}': {error.strerror}.") from None
    if not os.access(directory, os.W_OK):
        raise OsmosisError(f"cannot write to the directory '{directory}': permission denied.")


class PreviewedEntry(NamedTuple):
    """An entry of a file: kind and position, content as YAML or JSON, and the content for the JSON output."""

    title: str
    text: str
    value: Any


class FilePreview(NamedTuple):
    """The entries of a file, ``rubrics`` or ``records``, their number as a sentence, and why no judge would take it."""

    path: Path
    kind: str
    summary: str
    entries: list[PreviewedEntry]
    problem: str | None = None


def preview_file(path: Path) -> FilePreview:
    """Read a ``.yaml``, ``.yml`` or ``.jsonl`` file.

    Raises:
        OsmosisError: the file does not exist, is of another type, or cannot be read.
    """
    path = expanded(path)
    if not path.exists():
        raise NotFoundError(f"Path '{path}' does not exist.")
    if path.is_dir():
        raise OsmosisError(f"Expected a file path but got directory '{path}'.")
    suffix = path.suffix.lower()
    read = {".yaml": _preview_rubrics, ".yml": _preview_rubrics, ".jsonl": _preview_records}.get(suffix)
    if read is not None:
        return read(path)._replace(problem=_judging_problem(path))
    raise OsmosisError(
        f"Unsupported file extension '{suffix}'.",
        hint="rubrics are in .yaml or .yml files, records in .jsonl files",
    )


def _preview_rubrics(path: Path) -> FilePreview:
    from osmosis_ai.rubric.config import find_items

    entries = [
        PreviewedEntry(f"Rubric config #{number} ({item.label})", _as_yaml(payload), _plain(payload))
        for number, item in enumerate(find_items(path), start=1)
        if (payload := _without_keys(item.payload))
    ]
    return FilePreview(path, "rubrics", f"Loaded {len(entries)} rubric config(s) from {path}", entries)


def _preview_records(path: Path) -> FilePreview:
    from osmosis_ai.rubric.records import iter_objects

    entries = [
        PreviewedEntry(f"JSONL record #{number}", json.dumps(value, indent=2, ensure_ascii=False), value)
        for number, value in enumerate(iter_objects(path), start=1)
    ]
    return FilePreview(path, "records", f"Loaded {len(entries)} JSONL record(s) from {path}", entries)


def _judging_problem(path: Path) -> str | None:
    """Return why `osmosis eval rubric` rejects a file, if it does."""
    from osmosis_ai.rubric.config import load_rubrics
    from osmosis_ai.rubric.records import iter_records

    try:
        if path.suffix.lower() == ".jsonl":
            deque(iter_records(path), maxlen=0)
        else:
            load_rubrics(path, need_model=False, strict=True)
    except OsmosisError as error:
        return error.with_hint
    return None


def _without_keys(payload: dict[str, Any]) -> dict[str, Any]:
    """Hide the key of a judge's configuration."""
    info = payload.get("model_info")
    if not isinstance(info, dict) or not info.get("api_key"):
        return payload
    return {**payload, "model_info": {**info, "api_key": "<hidden>"}}


def _as_yaml(payload: dict[str, Any]) -> str:
    """Format an entry as YAML: keys in their order, long texts as blocks."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return False

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return yaml.dump(payload, Dumper=Dumper, sort_keys=False, allow_unicode=True).rstrip()


def _plain(value: Any) -> Any:
    """Convert a YAML value to JSON types: dates become text, and values without a JSON form become YAML text."""
    try:
        return json.loads(json.dumps(value, default=str, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return _as_yaml(value)
