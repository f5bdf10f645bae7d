"""Rubrics in YAML: several per file, each with an id, a text and the judge that applies it.

A rubric is any mapping with a text under ``rubric``: at the top level, in a list or in named groups. Top-level
``default_*`` keys fill in missing fields. A file with an error is refused as a whole; only :func:`find_items`
is lenient, for inspecting a draft.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from osmosis_ai.errors import NotFoundError, OsmosisError, reason_of
from osmosis_ai.files import expanded
from osmosis_ai.rubric.records import require_file

CONFIG_NAME = "rubric_configs.yaml"
_SUPPORTED_VERSIONS = (0, 1)
_DEFAULTS = ("model_info", "score_min", "score_max", "system_prompt", "original_input", "ground_truth")
_KEYS = ("id", "rubric", "title", "description", *_DEFAULTS)
# More nodes than anyone writes by hand; a few lines of aliases can expand to billions.
_MAX_NODES = 200_000


class RubricItem(NamedTuple):
    """A rubric as written in the file."""

    label: str
    payload: dict[str, Any]
    defaults: Mapping[str, Any]


class Rubric(NamedTuple):
    """A rubric: the criteria, and the judge and scale of its YAML file.

    Attributes:
        rubric_id: its id, the name of its file, or a name made from its text.
        text: the criteria.
        source: where it comes from, for display.
        path: its YAML file, if it is from one.
        model_info: the judge that the file names.
        note: what the user should know about the choice.
    """

    rubric_id: str
    text: str
    source: str
    path: Path | None = None
    model_info: Mapping[str, Any] = MappingProxyType({})
    score_min: float | None = None
    score_max: float | None = None
    system_prompt: str | None = None
    original_input: str | None = None
    ground_truth: str | None = None
    note: str | None = None


def discover_config(given: Path | None, data_path: Path) -> Path:
    """Return the rubric file to use."""
    if given is not None:
        require_file(given, "Rubric config")
        return given
    candidates = candidate_configs(data_path)
    found = next((path for path in candidates if path.is_file()), None)
    if found is None:
        raise NotFoundError(
            f"No {CONFIG_NAME} was found (looked for {', '.join(map(str, candidates))}).",
            hint="name the file with '--config FILE'",
        )
    return found


def candidate_configs(data_path: Path) -> list[Path]:
    """Return the default locations of a rubric file, in order."""
    here = Path.cwd()
    places = [expanded(data_path).absolute().parent, here, here / "examples"]
    return list(dict.fromkeys(place / CONFIG_NAME for place in places))


def find_rubric(path: Path, rubric_id: str, *, need_model: bool = True, strict: bool = False) -> Rubric:
    """Return one rubric of a file, after checking all of them."""
    rubrics = load_rubrics(path, need_model=need_model, strict=strict)
    if rubric_id not in rubrics:
        known = sorted(rubrics)
        raise NotFoundError(
            f"Rubric '{rubric_id}' not found in '{path}'. Available ids: {', '.join(known)}",
            details={"available_ids": known},
        )
    return rubrics[rubric_id]


def load_rubrics(path: Path, *, need_model: bool = True, strict: bool = False) -> dict[str, Rubric]:
    """Return the rubrics of a file by id; ``strict`` rejects unknown keys, which the 0.2 SDK ignores."""
    found = {}
    for item in find_items(path):
        if strict:
            _require_known_keys(path, item)
        config = _config(path, item, need_model=need_model)
        found[config.rubric_id] = config
    if not found:
        raise OsmosisError(
            f"No rubric entries found in '{path}'.",
            hint="an entry is a mapping with `id`, `rubric` (the text) and `model_info`",
        )
    return found


def find_items(path: Path) -> list[RubricItem]:
    """Return every rubric of a file as written, complete or not."""
    documents = _read_documents(path)
    _check_version(path, documents)
    items: list[RubricItem] = []
    labels: dict[str, str] = {}
    for position, document in enumerate(documents):
        defaults = _defaults(path, document)
        start = f"document[{position}]"
        for label, payload in _walk(path, document, start if isinstance(document, list) else "", set()):
            item = RubricItem(label or start, payload, defaults)
            items.append(item)
            name = _text(payload.get("id"))
            if name in labels:
                raise OsmosisError(
                    f"Duplicate rubric id '{name}' in '{path}': at {labels[name]} and {item.label}."
                )
            if name is not None:
                labels[name] = item.label
            if _unfolded(payload, {}) > _MAX_NODES:
                raise OsmosisError(
                    f"The rubric in '{path}' at {item.label} unfolds to more than {_MAX_NODES:,} values."
                )
    return items


def _unfolded(node: Any, known: dict[int, int]) -> int:
    """Count the values below ``node`` as often as aliases repeat them; one that contains itself counts once."""
    if not isinstance(node, dict | list):
        return 1
    if id(node) not in known:
        known[id(node)] = 1
        parts = node.values() if isinstance(node, dict) else node
        known[id(node)] = 1 + sum(_unfolded(part, known) for part in parts)
    return known[id(node)]


def _read_documents(path: Path) -> list[Any]:
    import yaml

    require_file(path, "Rubric config")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise OsmosisError(f"'{path}' is not UTF-8 text (byte {error.start}); expected YAML.") from None
    try:
        return [document for document in yaml.safe_load_all(text) if document]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" on line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise OsmosisError(
            f"Invalid YAML in '{path}'{where}: {error.problem or error.context or 'it cannot be read'}.",
            details={"line": mark.line + 1 if mark else None},
        ) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else reason_of(error)
        raise OsmosisError(f"Invalid YAML in '{path}': {reason.partition(chr(10))[0].rstrip('.')}.") from None


def _check_version(path: Path, documents: Iterable[Any]) -> None:
    stated = [each["version"] for each in documents if isinstance(each, dict) and "version" in each]
    for version in stated:
        if type(version) is not int or version not in _SUPPORTED_VERSIONS:
            raise OsmosisError(f"'{path}' has version {version!r}; this release reads version 1.")
    if len(set(stated)) > 1:
        raise OsmosisError(f"The documents of '{path}' state different versions: {sorted(set(stated))}.")


def _walk(path: Path, node: Any, label: str, seen: set[int]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Find the rubrics below ``node``, visiting aliased nodes once."""
    if not isinstance(node, dict | list) or id(node) in seen:
        return
    seen.add(id(node))
    if len(seen) > _MAX_NODES:
        raise OsmosisError(f"'{path}' holds more than {_MAX_NODES:,} mappings and lists.")
    if isinstance(node, dict):
        if isinstance(node.get("rubric"), str):
            yield label, node
            return
        for key, value in node.items():
            yield from _walk(path, value, str(key), seen)
    else:
        for index, value in enumerate(node):
            yield from _walk(path, value, f"{label}[{index}]", seen)


def _defaults(path: Path, document: Any) -> dict[str, Any]:
    if not isinstance(document, dict):
        return {}
    if "default_extra_info" in document:
        raise OsmosisError(
            f"'{path}' must not include 'default_extra_info'; context of a record belongs in the data file."
        )
    for name in ("default_score_min", "default_score_max"):
        _score(document.get(name), f"'{path}': '{name}'")
    return {
        key.removeprefix("default_"): value
        for key, value in document.items()
        if isinstance(key, str) and key.startswith("default_")
    }


def _require_known_keys(path: Path, item: RubricItem) -> None:
    from osmosis_ai.config.issues import closest
    from osmosis_ai.rubric.types import ModelInfo

    judge = tuple(ModelInfo.__annotations__)
    tables = (("", item.payload, _KEYS), ("default_", item.defaults, _DEFAULTS))
    judges = ((f"{start}model_info.", table.get("model_info"), judge) for start, table, _ in tables)
    for start, table, known in (*tables, *judges):
        for key in table if isinstance(table, dict) else ():
            if key not in known and key != "extra_info":  # 'extra_info' has an error of its own.
                near = closest(str(key), known)
                hint = f"did you mean '{start}{near}'?" if near else f"known keys: {', '.join(known)}"
                raise OsmosisError(f"Unknown key '{start}{key}' in '{path}' at {item.label}.", hint=hint)


def _config(path: Path, item: RubricItem, *, need_model: bool) -> Rubric:
    where, payload = f"'{path}' at {item.label}", item.payload
    if "extra_info" in payload:
        raise OsmosisError(
            f"The rubric in {where} must not include 'extra_info'; context of a record belongs in the data file."
        )
    rubric_id = payload.get("id")
    if not isinstance(rubric_id, str) or not rubric_id.strip():
        raise OsmosisError(f"The rubric in {where} needs an 'id': a non-empty string.")
    where = f"{where} ('{rubric_id.strip()}')"
    if not payload["rubric"].strip():
        raise OsmosisError(f"The rubric in {where} has an empty 'rubric' text.")
    values = {**item.defaults, **payload}
    model_info = values.get("model_info")
    if not isinstance(model_info, dict) and (need_model or model_info is not None):
        raise OsmosisError(
            f"The rubric in {where} needs 'model_info': a mapping with `provider` and `model`."
        )
    score_min = _score(values.get("score_min"), f"'score_min' of the rubric in {where}")
    score_max = _score(values.get("score_max"), f"'score_max' of the rubric in {where}")
    if score_min is not None and score_max is not None and score_max <= score_min:
        raise OsmosisError(
            f"The rubric in {where} has 'score_max' {score_max:g}, which is not greater than 'score_min' {score_min:g}."
        )
    judge = model_info or {}
    prompts = (values.get("system_prompt"), judge.get("system_prompt"))
    return Rubric(
        rubric_id=rubric_id.strip(),
        text=payload["rubric"].strip(),
        source=f"{path}:{item.label}",
        path=path,
        model_info=judge,
        score_min=score_min,
        score_max=score_max,
        system_prompt="\n\n".join(text for prompt in prompts if (text := _text(prompt))) or None,
        original_input=_text(values.get("original_input")) or _text(judge.get("original_input")),
        ground_truth=_text(values.get("ground_truth")),
    )


def _score(value: Any, what: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise OsmosisError(f"{what} must be a finite number, not {value!r}.")
    return float(value)


def _text(value: object) -> str | None:
    return value.strip() or None if isinstance(value, str) else None
