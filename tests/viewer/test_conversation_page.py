"""The page of a sample: its conversation, result and files, also if they are hostile or damaged."""

from __future__ import annotations

import html
import json
import re
from typing import Any, BinaryIO

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from osmosis_ai.errors import OsmosisError
from osmosis_ai.ui.text import plain, removed_words, without_sequences
from osmosis_ai.viewer.access import Viewing
from osmosis_ai.viewer.pages import conversation as page_module
from tests.viewer.browsing import page_of, page_text, text_by_class, visitor
from tests.viewer.builders import STEPS, trajectory
from tests.viewer.fake_source import FakeSource, a_run, a_sample

HERE = "/evals/one/samples/1.0"


def a_source(content: bytes = trajectory(*STEPS, label="6"), **more: Any) -> FakeSource:
    """Return two runs of the same rows; sample 1.0 of the first has ``content``."""
    samples = [
        a_sample(0),
        a_sample(1, tokens=15, duration_ms=1500, model_latency_ms=250, cost_usd=0.25),
        a_sample(1, 1, passed=False, reward=0.0),
        a_sample(
            2,
            status="failed",
            passed=None,
            reward=None,
            boundary="provider",
            category="rate_limit",
            error="Traceback\n\x1b]0;owned\x07<b>429</b>",
        ),
    ]
    return FakeSource(
        [a_run("one"), a_run("two")],
        listed={"one": samples, "two": samples},
        conversations={
            ("one", 1, 0): content,
            ("two", 1, 0): trajectory({"source": "user", "message": "Elsewhere"}),
        },
        traceback="in main.py\n<script>\x1b[31mred",
        **more,
    )


def shown(content: bytes, words: str = "") -> str:
    return page_of(a_source(content), HERE + words)


def test_messages() -> None:
    text = page_of(a_source(), HERE)
    assert text_by_class(text, "said") == [
        *("6", "Use the tool.", "2 * 3?", "I multiply.", "**See**.", '{\n  "a": 2,\n  "b": 3\n}'),
        *("6" + "1 terminal sequence removed", "#### 6"),
    ]
    assert [text.index(f'id="step-{number}"') for number in (1, 2, 3, 4)]
    assert '<details class="reasoning"' in text
    assert "10 tokens read, 5 written · $0.25 · 200 ms" in text
    assert "250 ms in the model" in text
    assert "agent and tools" in text and "<svg" in text


def test_grader_notes_and_judgements() -> None:
    judged = [{"model": "gpt", "score": 0.5, "explanation": "half <i>right</i>"}]
    source = a_source(
        record={"notes": "Nearly.", "parts": {"format": 1.0, "answer": 0.0}, "judgements": judged}
    )
    text = page_of(source, HERE)
    assert "Nearly." in text and "<dt>format</dt><dd>1.000</dd>" in text
    assert "Judgement of gpt: 0.500" in text and "half &lt;i&gt;right&lt;/i&gt;" in text
    told = {"grader_notes": {"notes": "From the rollout.", "parts": {"answer": 0}}}
    assert "From the rollout." in shown(trajectory(*STEPS, sample_extra_fields=told))


def test_failure() -> None:
    text = page_of(a_source(), "/evals/one/samples/2.0")
    assert "Error (provider, rate_limit)" in text
    assert "Traceback\n&lt;b&gt;429&lt;/b&gt;" in text and "owned" not in text
    assert "No conversation was recorded." in text


@pytest.mark.parametrize(
    ("digest", "said"),
    [("9" * 64, "No other run has this row."), (None, "uploaded without a digest of this row")],
)
def test_row_that_is_in_no_other_run(digest: str | None, said: str) -> None:
    source = a_source()
    source.listed["one"] = [a_sample(1, attempt, row_digest=digest) for attempt in (0, 1)]
    assert said in page_of(source, f"{HERE}?elsewhere=1")


def test_next_and_previous_keep_the_filter() -> None:
    pages = visitor(a_source())
    text = page_text(pages.get(f"{HERE}?outcome=passed&q="))
    assert 'rel="prev" href="/evals/one/samples/0.0?outcome=passed"' in text
    assert 'rel="next"' not in text
    assert 'rel="next" href="/evals/one/samples/1.1"' in page_text(pages.get(HERE))
    assert 'data-shortcut="]" href="/evals/one/samples/1.1"' in page_text(pages.get(HERE))


@pytest.mark.parametrize("word", ["1.1", "two/1.0"])
def test_second_conversation(word: str) -> None:
    text = page_of(a_source(), f"{HERE}?with={word}")
    assert text.count('class="outcome"') == 2
    assert ("Elsewhere" in text) == (word == "two/1.0")
    assert 'id="step-1"' in text and (('id="other-1"' in text) == (word == "two/1.0"))


def test_pages_of_steps() -> None:
    content = trajectory(*({"source": "user", "message": f"message {number}"} for number in range(1, 451)))
    first, last = shown(content), shown(content, "?from=450")
    assert len(text_by_class(first, "said")) == 200 and "from=201" in first
    assert text_by_class(last, "said")[0] == "message 401" and 'id="step-450"' in last
    assert "from=201" in last
    assert text_by_class(shown(content, "?from=999999999"), "said")[-1] == "message 450"


def test_long_messages() -> None:
    content = trajectory(
        {"source": "user", "message": "x" * 70_000}, {"source": "user", "message": "y" * 70_000}
    )
    text = shown(content)
    assert [len(said) for said in text_by_class(text, "said")] == [65_536, 65_536]
    assert "4,464 more characters." in text and "show=2#step-2" in text
    assert [len(said) for said in text_by_class(shown(content, "?show=2"), "said")] == [65_536, 70_000]

    huge = trajectory(
        {"source": "user", "message": "x" * (3 << 20)},
        *({"source": "user", "message": "z" * 60_000} for _ in range(100)),
    )
    pages = visitor(a_source(huge))
    text = page_text(pages.get(HERE))
    assert "show=1#" not in text and f"{HERE}/raw?step=1" in text
    assert len(text) < 1_500_000
    reply = pages.get(f"{HERE}/raw?step=1")
    assert reply.headers["content-disposition"].startswith("attachment") and len(reply.content) > 3 << 20


def test_conversation_over_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "LARGEST_CONVERSATION_BYTES", 100)
    text = shown(trajectory(*STEPS))
    assert "it is not read, a download has it" in text and text_by_class(text, "said") == []


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "The file is empty."),
        (trajectory(*STEPS)[:-400], "The file is not valid JSON."),
        (b"\xff\xfe\x00", "not valid UTF-8"),
        (
            b'{"steps":[' + b"[" * 10_000 + b"]" * 10_000 + b',{"source":"user","message":"kept"}]}',
            "too deeply",
        ),
        (b" \n", "is empty"),
        (b"[1, 2]", "but no object"),
        (b'{"steps": {}}', "`steps` is missing"),
        (b"{}", "`steps` is missing"),
        (b"{" * 100_000, "not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"steps":[' + b'"\\"' * 100_000, "not valid JSON"),
    ],
)
def test_broken_file(content: bytes, sentence: str) -> None:
    text = shown(content)
    assert sentence in text
    pages = visitor(a_source(content))
    assert all(
        pages.get(f"{HERE}/raw{words}").status_code == 200 for words in ("", "?as=messages", "?as=row")
    )


def test_odd_numbers_and_lone_surrogates() -> None:
    content = (
        '{"steps":[{"source":"agent","message":"a\\ud800b\\ud83d\\ude00\\\\ud800","metrics":{"cost_usd":NaN,'
        '"prompt_tokens":-1},"extra":{"duration_ms":1e999},"tool_calls":[{"function_name":"f","tool_call_id":"c",'
        f'"arguments":{{"x":Infinity,"n":{"9" * 5000},"id":12345678901234567890123}}}}]}}]}}'
    ).encode()
    text = shown(content)
    assert "lone surrogates" in text and "tokens read" not in text
    called = json.loads(text_by_class(text, "said")[1])
    assert called == {"x": "Infinity", "n": "9" * 5000, "id": 12345678901234567890123}
    (message,) = visitor(a_source(content)).get(f"{HERE}/raw?as=messages").json()
    assert message["content"] == "a\ufffdb\U0001f600\\ud800"


def test_number_of_steps_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osmosis_ai.evaluation.conversation._MOST_STEPS", 50)
    text = shown(trajectory(*({"source": "user", "message": str(n)} for n in range(200))))
    assert text_by_class(text, "said") == [str(n) for n in range(50)]
    assert "more than 50 steps" in text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
SHAPES: list[Any] = [None, 3, "text", [], {}, [None], [3], {"a": 1}, True]
KEYS = ("step_id", "source", "message", "reasoning_content", "timestamp", "model_name", "extra")
ODD_STEPS = [
    {"source": "user", "message": "hello", name: shape}
    for name in (*KEYS, "tool_calls", "observation", "metrics")
    for shape in SHAPES
]


@given(
    st.lists(json_values | st.fixed_dictionaries({"source": st.sampled_from(["agent", "user"])}), max_size=4),
    st.integers(0, 400),
)
@example([*ODD_STEPS, *SHAPES], 0)
def test_any_json_is_shown(steps: list[Any], cut: int) -> None:
    content = json.dumps({"steps": steps, "agent": steps, "extra": steps}).encode()
    for given_content in (content, content[:cut], content[::-1]):
        pages = visitor(a_source(given_content))
        assert HERE in page_text(pages.get(HERE))
        assert pages.get(f"{HERE}/raw?as=messages").status_code == 200
        assert pages.get(f"{HERE}/raw?as=row").status_code == 200


def test_malformed_steps_are_kept() -> None:
    text = shown(trajectory(*ODD_STEPS, *SHAPES))
    assert text.count('id="step-') == len(ODD_STEPS) + 2 and "not objects" in text


HOSTILE = [
    *("<script>alert(1)</script>", "</script><img src=x onerror=alert(1)>"),
    *("[click](javascript:alert(1))", "![x](https://evil.example/x.png)", "{{ 7*7 }}{% raw %}"),
    *('"><svg onbegin=alert(1)>', "<style>*{display:none}</style>", "\u202egnp.exe\u200b\x00\x9b31m"),
    "x" * (1 << 20),
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("words", ["", "?text=markdown"])
def test_hostile_text_is_escaped(text: str, words: str) -> None:
    call = {"tool_call_id": text, "function_name": text, "arguments": {text: text}}
    step = {
        "source": text,
        "message": text,
        "reasoning_content": text,
        "model_name": text,
        "tool_calls": [call],
        "observation": {"results": [{"source_call_id": text, "content": text}]},
    }
    content = trajectory(step, {**step, "source": "agent"}, {"source": "user", "message": text}, label=text)
    source = a_source(content, record={"notes": text, "parts": {text: 1.0}, "judgements": [{"model": text}]})
    html = page_of(source, HERE + words)
    assert (
        "<script>" not in html and "<img" not in html and "<svg onbegin" not in html and "<style" not in html
    )
    assert 'href="javascript:' not in html
    assert "{{ 7*7 }}" in html or "7*7" not in text
    assert not any(mark in html for mark in ("\u202e", "\u200b", "\x00", "\x9b"))


@given(st.lists(st.text(max_size=40), min_size=1, max_size=5), st.sampled_from(["user", "system", "agent"]))
@example(["a\x1b[1mb\x1b]8;;x\x1b\\c", "\x1b[2J", "\x1b[31m"], "user")
def test_rendered_text_equals_conversation(texts: list[str], source: str) -> None:
    content = trajectory(*({"source": source, "message": text} for text in texts))
    from osmosis_ai.ui.pages import ShellView
    from osmosis_ai.viewer.access import render
    from osmosis_ai.viewer.queries import words_of

    view = Viewing(a_source(content), ShellView(), is_local=True)
    html = render(view, page_module.page(view, words_of(""), run="one", item="1.0"))
    read = [text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in texts]
    # Less what drives a terminal, which is counted.
    told = [plain(text) + removed_words(without_sequences(text).removed) for text in read if text]
    assert text_by_class(html, "said") == told


@pytest.mark.parametrize(
    "item",
    ["1", "1.", "a.b", "-1.0", "9.9", "1.0.0", "1" * 5000 + ".0", "1.0?with=1.9", "1.0?with=nowhere/1.0"],
)
def test_sample_not_found(item: str) -> None:
    page_of(a_source(), f"/evals/one/samples/{item}", status=404)


@pytest.mark.parametrize(
    "words", ["from=a", "show=-1", "outcome=x", "hide=all", "hide=tools&hide=x", "text=html"]
)
def test_invalid_parameters(words: str) -> None:
    page_of(a_source(), f"{HERE}?{words}", status=400)


def test_downloads() -> None:
    pages = visitor(a_source())
    text = page_text(pages.get(HERE))
    assert "data-copy=" in text
    messages = pages.get(f"{HERE}/raw?as=messages")
    assert [each["role"] for each in messages.json()] == ["system", "user", "assistant", "tool", "assistant"]
    assert pages.get(f"{HERE}/raw?as=row").json() == {
        "system_prompt": "Use the tool.",
        "user_prompt": "2 * 3?",
        "ground_truth": "6",
    }
    whole = pages.get(f"{HERE}/raw?as=file")
    assert whole.content == trajectory(*STEPS, label="6")
    for reply in (messages, whole):
        assert_download(reply)
    assert "&#34;steps&#34;" in page_text(pages.get(f"{HERE}/raw"))
    page_text(pages.get(f"{HERE}/raw?as=nonsense"), status=400)
    for step in ("9", "0", "000000001" + "9", "9" * 30):
        page_text(pages.get(f"{HERE}/raw?step={step}"), status=404)
    page_text(pages.get("/evals/one/samples/2.0/raw"), status=404)


def test_copied_text_is_exact() -> None:
    said = (
        "\x1b[31mÄ\x1b[0m \u202egnp.exe\u202c \x7f\x9b1m a\u200bb \U000e0041 \u2039U+202E\u203a <b>\"&'\r\n\0"
    )
    text = page_of(a_source(trajectory({"source": "user", "message": said})), HERE)
    messages, row = (
        json.loads(html.unescape(copied)) for copied in re.findall(r'class="copy" data-copy="([^"]*)"', text)
    )
    assert (messages, row["user_prompt"]) == ([{"role": "user", "content": said}], said)


def test_artifacts_are_downloads() -> None:
    files = {"a/re port.html": b"<script>alert(1)</script>", "\u202e.svg": b"<svg onload=alert(1)>"}
    pages = visitor(a_source(files={("one", 1, 0): files}))
    text = page_text(pages.get(HERE))
    assert f'href="{HERE}/artifacts/a/re%20port.html"' in text
    reply = pages.get(f"{HERE}/artifacts/a/re%20port.html")
    assert reply.content == files["a/re port.html"]
    assert "re%20port.html" in reply.headers["content-disposition"]
    assert_download(reply)
    assert_download(pages.get(f"{HERE}/artifacts/%E2%80%AE.svg"))


@pytest.mark.parametrize(
    "path", ["..%2F..%2Fevents.jsonl", "%2Fetc%2Fpasswd", "nothing", "a%00b", "a/../re%20port.html"]
)
def test_invalid_artifact_paths(path: str) -> None:
    pages = visitor(a_source(files={("one", 1, 0): {"file": b"x"}}))
    assert pages.get(f"{HERE}/artifacts/{path}").status_code == 404


def test_deleted_artifact(monkeypatch: pytest.MonkeyPatch) -> None:
    def deleted(*_: Any) -> BinaryIO:
        raise OsmosisError("no blob has the key.", code="NOT_FOUND")

    monkeypatch.setattr(FakeSource, "open_artifact", deleted)
    page_of(a_source(files={("one", 1, 0): {"file": b"x"}}), f"{HERE}/artifacts/file", status=404)


def assert_download(reply: Any) -> None:
    assert reply.status_code == 200
    assert reply.headers["content-disposition"].startswith("attachment")
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in reply.headers["content-security-policy"]
