"""Answers judged on this machine, their scores uploaded to a real platform, looked at in a session there, and deleted."""

from __future__ import annotations

import json
import re
from contextlib import closing
from html import unescape

import httpx
import pytest

from tests.e2e.platform_checkout import World
from tests.rubric.judge_server import running_judge

pytestmark = pytest.mark.e2e

KEY = "sk-canary-77c1f0a4d2"


def judge(world: World, seed: int) -> None:
    """Judge three answers into ``answers.json``, all paths in whole."""
    lines = (json.dumps({"id": f"r{n}", "solution_str": f"answer {n} [score 0.{n}]"}) for n in (3, 5, 7))
    (world.root / "data.jsonl").write_text("\n".join(lines) + "\n")
    (world.root / "RUBRIC.md").write_text("Be good and clear.")
    with running_judge() as server:
        place = str(world.root)
        done = world.json(
            *("eval", "rubric", "-d", f"{place}/data.jsonl", "-r", f"@{place}/RUBRIC.md"),
            *("-o", f"{place}/judged/answers.json", "--model", "openai/judge", "--seed", str(seed)),
            OPENAI_BASE_URL=server.base_url,
            OPENAI_API_KEY=KEY,
        )
        assert done.status == 0, done.err


def signed_in(world: World) -> httpx.Client:
    """Return a browser of the administrator."""
    made = world.json("platform", "user", "password", "admin@localhost").resource
    browser = httpx.Client(base_url=world.url, headers={"accept": "text/html"}, timeout=60)
    form = {"csrf": csrf_of(browser.get("/login").text), "email": "admin@localhost", "next": "/"}
    reply = browser.post("/login", data={**form, "password": made["password"]})
    assert reply.status_code == 303, reply.text
    return browser


def csrf_of(page: str) -> str:
    found = re.search(r'name="csrf" value="([^"]+)"', page)
    assert found, page
    return found[1]


def test_a_judged_file_is_uploaded_looked_at_and_deleted(world: World) -> None:
    (world.root / "judged").mkdir()
    judge(world, seed=0)
    uploaded = world.json("eval", "upload", "judged", OPENAI_API_KEY=KEY).resource
    assert uploaded["is_new"] and uploaded["platform_url"] == f"{world.url}/default/rubrics/answers"
    again = world.osmosis("--plain", "eval", "upload", "judged/answers.json")
    assert again.status == 0 and "This rubric result is there already: answers" in again.out

    with closing(signed_in(world)) as browser:
        listed = browser.get("/default/rubrics").text
        assert '<a href="/default/rubrics/answers">answers</a>' in listed and "0.500" in listed
        assert '<a href="/default/rubrics/answers">answers</a>' in browser.get("/default").text
        page = browser.get("/default/rubrics/answers").text
        shown = " ".join(unescape(re.sub(r"<[^>]+>", " ", page)).split())
        assert "Mean score 0.500 on a scale from 0 to 1, over 3 records." in shown
        assert "Be good and clear." in shown and "data.jsonl" in shown and "RUBRIC.md" in shown
        assert str(world.root) not in page and KEY not in page

        judge(world, seed=1)
        other = world.json("eval", "upload", "judged").error
        assert other["code"] == "CONFLICT" and "eval delete --rubric answers" in other["message"]
        assert world.json("eval", "delete", "--rubric", "answers", "--yes").status == 0
        assert world.json("eval", "upload", "judged").resource["is_new"]
        assert browser.get("/default/rubrics/answers").status_code == 200
        assert world.json("eval", "delete", "--rubric", "answers", "--yes").status == 0
        assert browser.get("/default/rubrics/answers").status_code == 404
    assert not [path for path in (world.platform.home / "blobs").rglob("*rub_*") if path.is_file()]
