"""What people see in a browser behind the links that commands print."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.platform.db.tables import DbLoraModel, DbMetricPoint, DbRun
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.runs.working_directory import WorkingDirectory
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.ui.policy import PAGE_POLICY
from osmosis_ai.viewer.cursors import encode
from tests.datasets.builders import write_rows
from tests.lazily import needs
from tests.platform.conftest import ManualClock, Member, assert_flat_error
from tests.platform.evaluations import add_dataset, end_with, submit_body, training_body
from tests.platform.http.pages.browsing import HOSTILE, path_of, sign_in, submitted, text_of
from tests.platform.viewer.runs_world import add_run, add_samples

PAGES = ("evals", "training", "datasets", "models", "secrets", "integrations/git", "api-keys", "members")


def test_every_list_shows_what_the_workspace_has(
    browser: TestClient, member: Member, services: PlatformServices
) -> None:
    needs("torch")  # without it no training run is accepted
    evaluated = submitted(browser, "/api/cli/eval-runs", submit_body(), member)
    trained = submitted(browser, "/api/cli/training-runs", training_body(), member)
    services.secrets.put(member.workspace.id, member.user.id, "MARAS_KEY", "sk-canary-4711", "user")
    sign_in(browser)
    assert browser.get("/").headers["location"] == "http://127.0.0.1:8733/fern/evals"
    everything = text_of(browser.get("/fern"))
    assert evaluated["name"] in everything and trained["name"] in everything
    shown = {page: text_of(browser.get(f"/fern/{page}")) for page in PAGES}
    assert evaluated["name"] in shown["evals"]
    assert trained["name"] in shown["training"]
    assert "multiply uploaded 200" in shown["datasets"]
    assert "mara@fern.example Mara owner" in shown["members"] and "Who may do what" in shown["members"]
    assert "osmosis train submit" in shown["models"]
    assert "MARAS_KEY personal" in shown["secrets"]
    assert "fern/agents" in shown["integrations/git"]
    assert "sk-canary" not in "".join(shown.values())


def test_replies_name_the_pages_of_what_they_are_about(browser: TestClient, member: Member) -> None:
    run = submitted(browser, "/api/cli/eval-runs", submit_body(), member)
    missing = browser.post(
        "/api/cli/eval-runs",
        json=submit_body(secrets={"required": ["NO_KEY"]}),
        headers=member.headers,
    )
    announced = browser.post(
        "/api/cli/datasets",
        json={"file_name": "sums", "file_size": 100, "extension": "jsonl"},
        headers=member.headers,
    ).json()
    stored = browser.post(
        "/api/cli/environment-secrets",
        json={"name": "A_KEY", "value": "sk-canary-4711", "scope": "user"},
        headers=member.headers,
    ).json()
    listed = browser.get("/api/cli/datasets", headers=member.headers).json()["datasets"]
    named = [
        announced["platform_url"],
        stored["platform_url"],
        *(dataset["platform_url"] for dataset in listed),
        run["platform_url"],
        browser.get(f"/api/cli/eval-runs/{run['id']}", headers=member.headers).json()["eval_run"][
            "platform_url"
        ],
        browser.get("/api/cli/datasets/multiply", headers=member.headers).json()["platform_url"],
        browser.get("/api/cli/environment-secrets", headers=member.headers).json()["platform_url"],
        assert_flat_error(missing, 404, "SECRETS_NOT_FOUND")["platform_url"],
    ]
    sign_in(browser)
    assert [browser.get(path_of(url)).status_code for url in named] == [200] * len(named)


def test_a_run_shows_its_numbers_its_log_and_why_it_failed(
    browser: TestClient, member: Member, services: PlatformServices
) -> None:
    run = submitted(browser, "/api/cli/eval-runs", submit_body(), member)
    estimate = {"value": 0.625, "stderr": 0.1, "low": 0.43, "high": 0.81, "n": 8, "clusters": 4}
    with services.db.transaction() as session:
        row = session.get_one(DbRun, run["id"])
        row.status, row.error = "failed", f"the agent's module is missing {HOSTILE}"
        row.metrics = {
            "summary": {},
            "estimates": {"reward": estimate, "pass_rate": None, "pass_at_k": {"2": estimate}},
        }
        row.results = {**(row.results or {}), "graded": 4, "passed": 1, "failed": 1, "total_runs": 5}
    services.logs.append(run["id"], [LogLine(f"importing {HOSTILE}", step="server")])
    sign_in(browser)
    page = browser.get(path_of(run["platform_url"]))
    shown = text_of(page)
    assert "the agent's module is missing" in shown
    assert "25.0 %" in shown and "4 of 6 planned" in shown and "80.0 %" in shown
    assert "Rows 3 of 200 rows, the first" in shown
    listed = text_of(browser.get(path_of(run["platform_url"]).rpartition("/")[0]))
    assert run["name"] in listed and "25.0 %" in listed
    assert "importing" in shown
    assert HOSTILE not in page.text and "&lt;script&gt;" in page.text


def test_a_run_and_its_retry_lead_to_each_other_and_show_what_they_have_come_to_together(
    browser: TestClient, member: Member, services: PlatformServices
) -> None:
    runs = "/api/cli/eval-runs"
    run = submitted(browser, runs, submit_body(), member)
    passed: dict[str, Any] = {"status": "success", "reward": 1.0}
    first = {(row, attempt): passed for row in range(3) for attempt in range(2)}
    end_with(services, run["id"], {**first, (1, 1): {"status": "failed", "boundary": "provider"}})
    retry = submitted(browser, f"{runs}/{run['id']}/retry", {}, member)
    end_with(services, retry["id"], {(1, 1): passed})
    sign_in(browser)
    for name, other, label in (
        (run["name"], retry["name"], "Retry"),
        (retry["name"], run["name"], "Retry of"),
    ):
        page = browser.get(f"/fern/evals/{name}")
        text = text_of(page)
        assert f"{label} {other}" in text
    together = text_of(browser.get(f"/fern/evals/{run['name']}"))
    assert "100.0 %" in together and "6 of 6 planned" in together
    for path in (f"{runs}/{run['id']}", "/api/cli/datasets/multiply"):
        assert browser.delete(path, headers=member.headers).status_code == 200
    page = browser.get(f"/fern/evals/{retry['name']}")
    alone = text_of(page)
    assert "Dataset multiply" in alone and f"Retry of {run['name']}" in alone


def test_a_training_run_that_can_go_on_shows_the_command(
    browser: TestClient, member: Member, services: PlatformServices
) -> None:
    needs("torch")  # without it no training run is accepted
    run = submitted(browser, "/api/cli/training-runs", training_body(), member)
    sign_in(browser)
    again = f"osmosis train resume {run['name']}"
    assert again not in text_of(browser.get(path_of(run["platform_url"])))
    checkpoints = WorkingDirectory(services.config.runs_dir, run["id"]).training.checkpoints
    (checkpoints / "step-00000004").mkdir(parents=True)
    with services.db.transaction() as session:
        row = session.get_one(DbRun, run["id"])
        row.status, row.completed_at = "failed", services.clock.now()
    assert again in text_of(browser.get(path_of(run["platform_url"])))


def test_a_training_run_shows_what_its_newest_validation_stands_on(
    browser: TestClient, member: Member, services: PlatformServices
) -> None:
    needs("torch")  # without it no training run is accepted
    run = submitted(browser, "/api/cli/training-runs", training_body(), member)
    newest = {"reward": 0.5, "reward_low": 0.25, "reward_high": 0.75, "scored": 17.0, "samples": 20.0}
    with services.db.transaction() as session:
        session.add_all(
            DbMetricPoint(
                run_id=run["id"],
                key=f"eval/validation/{name}",
                step=10,
                value=value,
                timestamp=services.clock.now(),
            )
            for name, value in newest.items()
        )
    sign_in(browser)
    shown = text_of(browser.get(path_of(run["platform_url"])))
    assert "Validation reward 0.500 (0.250 – 0.750) after step 10 Validation scored 17 of 20 planned" in shown
    assert "Warning validation: only 17 of 20 finished attempts have a score (85.0 %)" in shown


def test_long_lists_are_shown_in_pages(
    browser: TestClient, member: Member, services: PlatformServices, clock: ManualClock
) -> None:
    for number in range(31):
        clock.advance(seconds=1)
        add_dataset(services, member, f"rows-{number:02}", rows=[{"user_prompt": HOSTILE}])
    sign_in(browser)
    first = browser.get("/fern/datasets")
    assert 'rel="next"' in first.text and 'rel="prev"' not in first.text
    # What is added and deleted before it moves nothing from one page to another.
    clock.advance(seconds=1)
    add_dataset(services, member, "later")
    assert browser.delete("/api/cli/datasets/rows-30", headers=member.headers).status_code == 200
    second = browser.get(f"/fern/datasets{leads_to(first, 'next')}")
    assert 'rel="prev"' in second.text and 'rel="next"' not in second.text
    assert names_on(second) == ["rows-00", "multiply"]
    back = browser.get(f"/fern/datasets{leads_to(second, 'prev')}")
    assert names_on(back) == ["later", *(f"rows-{number:02}" for number in range(29, 0, -1))]
    rows = text_of(browser.get("/fern/datasets/multiply", params={"rows": 25}))
    assert "Rows Row" in rows and " 25 " in rows and "Before" in rows and "After" in rows
    moment = services.clock.now().replace(year=2000).isoformat()
    behind_all = {
        "datasets": encode("datasets:created_at:id", [moment, "ds"]),
        "models": encode("lora_models:created_at:id", [moment, "model"]),
        "secrets": encode("secrets:name:scope", ["ZZ", "user"]),
    }
    for section, cursor in behind_all.items():
        beyond = browser.get(f"/fern/{section}", params={"cursor": cursor})
        assert beyond.status_code == 404 and "Nothing stands in the list any more" in beyond.text, section
        assert f'<a href="/fern/{section}">Back to the list</a>' in beyond.text


def test_secrets_and_models_are_paged_through_each_once(
    browser: TestClient, member: Member, services: PlatformServices
) -> None:
    for number in range(65):
        scope = "user" if number % 2 else "workspace"
        services.secrets.put(member.workspace.id, member.user.id, f"KEY_{number // 2:02}", "x", scope)
    run = add_run(services, member, "mine")
    with services.db.transaction() as session:
        session.add_all(
            DbLoraModel(
                id=f"model_{number:02}",
                workspace_id=member.workspace.id,
                run_id=run.id,
                name=f"adapter-{number:02}",
                base_model="osmosis/tiny",
                step=number,
                files={},
                created_at=services.clock.now(),
            )
            for number in range(65)
        )
    sign_in(browser)
    wanted = {
        "secrets": [f"KEY_{number // 2:02}" for number in range(65)],
        "models": [f"adapter-{number:02}" for number in reversed(range(65))],
    }
    for section, names in wanted.items():
        pages = [browser.get(f"/fern/{section}")]
        while 'rel="next"' in pages[-1].text:
            pages.append(browser.get(f"/fern/{section}{leads_to(pages[-1], 'next')}"))
        assert len(pages) == 3 and [name for page in pages for name in names_on(page)] == names
        before = browser.get(f"/fern/{section}{leads_to(pages[2], 'prev')}")
        assert names_on(before) == names_on(pages[1])


def leads_to(page: Any, direction: str) -> str:
    """Return where a list goes on."""
    found = re.search(rf'rel="{direction}" href="([^"]+)"', page.text)
    assert found is not None
    return unescape(found[1])


def names_on(page: Any) -> list[str]:
    """Return what stands in a list, by the names in its first column."""
    return re.findall(r'<th scope="row" class="text">(?:<a [^>]*>)?([^<]+)<', page.text)


@pytest.mark.parametrize("extension", ["jsonl", "parquet", "csv", "json"])
def test_one_walks_and_jumps_through_all_rows_of_a_dataset(
    browser: TestClient, member: Member, services: PlatformServices, tmp_path: Path, extension: str
) -> None:
    rows = [{"user_prompt": f"row number {number}."} for number in range(12_010)]
    add_dataset(services, member, "large", file=write_rows(tmp_path, extension, rows))
    sign_in(browser)
    jumped = browser.get("/fern/datasets/large", params={"rows": 11_990})
    shown = text_of(jumped)
    assert "11990 row number 11990." in shown and "12009 row number 12009." in shown
    assert "row number 11989." not in shown and 'rel="next"' not in jumped.text
    before = text_of(browser.get("/fern/datasets/large?rows=11965"))
    assert "row number 11965." in before and "11989 row number 11989." in before and "After" in before
    assert '<input type="number" name="rows" min="0" max="12009" value="11990" required>' in jumped.text
    beyond = browser.get("/fern/datasets/large", params={"rows": 12_010})
    assert beyond.status_code == 404
    assert "The dataset &#39;large&#39; has no row 12,010: its last is 12,009." in beyond.text


def test_a_row_that_can_not_be_read_is_told_without_where_the_platform_keeps_it(
    browser: TestClient, member: Member, services: PlatformServices, tmp_path: Path
) -> None:
    file = tmp_path / "torn.jsonl"
    file.write_text('{"user_prompt": "one"}\n' * 40 + '{"user_prompt": "tw')
    add_dataset(services, member, "torn", file=file)
    sign_in(browser)
    assert "one" in text_of(browser.get("/fern/datasets/torn"))
    page = browser.get("/fern/datasets/torn?rows=25")
    assert page.status_code == 200
    assert "Its rows can not be read: torn.jsonl: line 41: not valid JSON" in text_of(page)
    assert str(services.config.home) not in page.text and "/ds_" not in page.text


def test_a_name_that_is_not_there_is_told_with_the_three_nearest_and_leads_back(
    browser: TestClient, member: Member, services: PlatformServices
) -> None:
    for name in ("multiply-2", "multiply-a/b", "multiply-4", "letters"):
        add_dataset(services, member, name)
    sign_in(browser)
    reply = browser.get("/fern/datasets/multipl-a/b".replace("/b", "%2Fb"))
    main = reply.text[reply.text.index("<main") :]
    assert reply.status_code == 404 and "did you mean multiply-a/b?" in main
    assert (
        main.count("<li><a href") == 3 and '<a href="/fern/datasets/multiply-a%2Fb">multiply-a/b</a>' in main
    )
    assert '<a href="/fern/datasets">Back to the list</a>' in main and "letters" not in main
    assert '<a href="/fern/datasets" aria-current="page">Datasets</a>' in reply.text, (
        "the other pages are at hand"
    )
    assert "mara@fern.example" in reply.text and "<title>Not found · fern</title>" in reply.text
    assert '<a href="/fern/models">Back to the list</a>' in browser.get("/fern/models/nothing").text
    refused = browser.get("/fern/datasets/multiply", params={"rows": 9_999})
    assert refused.status_code == 404 and '<a href="/fern/datasets">Back to the list</a>' in refused.text
    nowhere = browser.get("/nowhere/datasets/multiply").text
    assert '<a href="/">Back to your workspaces</a>' in nowhere and "/nowhere/evals" not in nowhere
    program = browser.get("/api/cli/datasets/multipl", headers=member.headers)
    assert "nearest" not in program.text and program.json()["suggestion"].startswith("multipl")


def test_of_a_name_that_is_like_no_other_those_that_there_are_are_told_and_nobody_else_s(
    browser: TestClient, member: Member, stranger: Member, services: PlatformServices
) -> None:
    for name in ("amber-owl-2", "keen-fox-9"):
        add_dataset(services, member, name)
        add_run(services, member, name)
    add_dataset(services, stranger, "qqq-plans")
    add_run(services, stranger, "qqq-run")
    sign_in(browser)
    for section, there_are in (("datasets", 3), ("evals", 2)):  # of datasets the workspace has one more
        theirs, nobodys = (browser.get(f"/fern/{section}/{name}") for name in ("qqq-plans", "qqq-cards"))
        for reply in (theirs, nobodys):
            main = reply.text[reply.text.index("<main") :]
            assert reply.status_code == 404 and main.count("<li><a href") == there_are
            assert f'<a href="/fern/{section}/amber-owl-2">' in main and "did you mean" not in main
            assert f'<a href="/fern/{section}">Back to the list</a>' in main and "qqq-run" not in main
    program = browser.get("/api/cli/datasets/qqq", headers=member.headers)
    assert "amber" not in program.text and "did you mean" not in program.text
    assert "suggestion" not in program.json()


def test_a_workspace_that_one_is_not_in_is_told_with_those_that_one_is_in(
    browser: TestClient, member: Member, stranger: Member
) -> None:
    sign_in(browser)
    for name in (stranger.workspace.name, "none"):
        main = browser.get(f"/{name}/evals").text.partition("<main")[2]
        assert '<li><a href="/fern">fern</a></li>' in main and main.count("<li><a href") == 1


@pytest.mark.parametrize("rows", ["-1", "x", "1.5", "\u0665", "9" * 30])
def test_what_is_no_number_of_a_row_is_told_in_a_sentence(
    browser: TestClient, member: Member, rows: str
) -> None:
    sign_in(browser)
    reply = browser.get("/fern/datasets/multiply", params={"rows": rows})
    assert reply.status_code == 400 and reply.headers["content-type"].startswith("text/html")
    assert "'rows' is the number of a row, from 0 on, and not" in unescape(reply.text)


@pytest.mark.parametrize(
    ("path", "strange", "known"),
    [
        ("datasets?page=1", "page", "it knows cursor."),
        ("datasets/multiply?page=2", "page", "it knows rows."),
        ("models?limit=5", "limit", "it knows cursor."),
        ("members?page=1", "page", "it takes none."),
        ("api-keys?page=1", "page", "it takes none."),
        ("evals?page=2", "page", "it knows status"),
    ],
)
def test_words_that_a_page_does_not_know_are_refused_on_a_page(
    browser: TestClient, member: Member, path: str, strange: str, known: str
) -> None:
    sign_in(browser)
    reply = browser.get(f"/fern/{path}")
    assert reply.status_code == 400 and reply.headers["content-type"].startswith("text/html")
    said = unescape(reply.text)
    assert f"This page does not know the word '{strange}' in its address: {known}" in said


def test_what_is_anothers_or_does_not_exist_is_not_found(
    browser: TestClient, member: Member, stranger: Member, services: PlatformServices
) -> None:
    theirs = add_dataset(services, stranger, "secret-plans")
    sign_in(browser)
    for path in (
        "/moss",
        "/moss/evals",
        f"/moss/datasets/{theirs.name}",
        f"/fern/datasets/{theirs.id}",
        "/fern/evals/nothing",
        "/fern/training/nothing",
        "/fern/models/nothing",
        f"/{stranger.workspace.id}/evals",
        "/%3Cscript%3Ealert(1)%3C%2Fscript%3E",
    ):
        page = browser.get(path)
        assert page.status_code == 404 and page.headers["content-type"].startswith("text/html"), path
        assert "secret-plans" not in page.text or theirs.name in path
        assert HOSTILE not in page.text


def test_pages_load_and_run_only_what_is_the_platform_s_own(browser: TestClient, member: Member) -> None:
    sign_in(browser)
    for path in ("/login", "/fern/evals", "/fern/api-keys", "/fern/datasets/multiply"):
        page = browser.get(path)
        policy = page.headers["content-security-policy"]
        assert policy == PAGE_POLICY and "unsafe" not in policy
        assert page.headers["cache-control"] == "private, no-cache"
        sources = re.findall(r'(?:src|href)="([^"]*)"', page.text)
        assert all(source.startswith(("/", "?", "#", "data:,")) for source in sources), sources
        assert "http-equiv" not in page.text and " style=" not in page.text


def test_a_page_that_a_newer_installation_does_not_fit_says_so(
    browser: TestClient, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlike(*_: object, **__: object) -> None:
        raise ImportError("cannot import name 'of_tomorrow'")

    sign_in(browser)
    monkeypatch.setattr("osmosis_ai.platform.viewer.source.PlatformSource.runs", unlike)
    path = f"/{member.workspace.name}/evals"
    before = browser.get(path)
    assert before.status_code == 500 and "met an unexpected error" in before.text
    monkeypatch.setattr("osmosis_ai.platform.http.errors.installed_state", lambda: (1, 2))
    after = browser.get(path)
    assert after.status_code == 500 and "of_tomorrow" not in after.text
    assert "Osmosis was installed anew since this platform was started" in after.text


def test_a_page_of_samples_from_before_a_retry_goes_on_behind_it(
    browser: TestClient,
    services: PlatformServices,
    member: Member,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("osmosis_ai.viewer.pages.samples.SAMPLES_A_PAGE", 2)
    failed = {"status": "failed", "boundary": "provider"}
    run = add_run(services, member, "calm-fern-1")
    add_samples(services, run, [{"row": row, "attempt": 0, **failed} for row in range(4)])
    sign_in(browser)

    def listed(page: Any) -> list[str]:
        return re.findall(r'<th scope="row" class="nowrap"><a href="[^"]*">(\d+\.\d+)</a>', page.text)

    first = browser.get(f"/{member.workspace.name}/evals/calm-fern-1/samples?sort=reward&dir=asc")
    onward = unescape(re.findall(r'href="([^"]*cursor=[^"]*)"', first.text)[0])
    clock.advance(60)
    made = [[row, 0] for row in range(4)]
    retry = add_run(services, member, "again", retry_of_id=run.id, retry_of_name=run.name, retried=made)
    add_samples(services, retry, [{"row": row, "attempt": 0, "reward": 1.0} for row in range(4)])
    # Those that were unscored have a score now, and stand before the place that the cursor names.
    second = browser.get(onward)
    assert listed(first) == ["0.0", "1.0"]
    assert second.status_code == 200 and not set(listed(second)) & {"0.0", "1.0"}
    asked = {"limit": 2}
    rows = []
    api = {"headers": member.headers}
    early = browser.get(f"/api/cli/eval-runs/{run.id}/samples", params=asked, **api).json()
    rows += [(each["row"], each["reward"]) for each in early["samples"]]
    clock.advance(60)
    newest = add_run(services, member, "third", retry_of_id=run.id, retry_of_name=run.name, retried=made[2:])
    add_samples(services, newest, [{"row": row, "attempt": 0, "reward": 0.5} for row in (2, 3)])
    late = browser.get(
        f"/api/cli/eval-runs/{run.id}/samples", params={**asked, "cursor": early["next_cursor"]}, **api
    ).json()
    rows += [(each["row"], each["reward"]) for each in late["samples"]]
    assert rows == [(0, 1.0), (1, 1.0), (2, 0.5), (3, 0.5)] and late.get("next_cursor") is None
