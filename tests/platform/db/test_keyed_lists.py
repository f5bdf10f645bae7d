"""Lists of datasets, adapters and secrets: a page of any depth costs two statements, which follow an index."""

from __future__ import annotations

from typing import Any

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.secrets import SecretScope
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.viewer.cursors import decode, encode
from tests.platform.conftest import Member
from tests.platform.evaluations import add_dataset
from tests.platform.viewer.runs_world import SORTING, plans_of_pages, statements_of

ORDER = "datasets:created_at:id"


@pytest.fixture
def datasets(services: PlatformServices, member: Member) -> list[str]:
    """The ids of nine datasets of one moment: the id alone tells them apart."""
    made = [add_dataset(services, member, f"rows-{number}", rows=[{"a": 1}]).id for number in range(9)]
    return sorted(made, reverse=True)


def test_a_page_of_any_depth_is_two_statements_by_an_index(
    services: PlatformServices, member: Member, datasets: list[str]
) -> None:
    seen: list[str] = []
    cursor: str | None = None
    with statements_of(services.db) as noted, plans_of_pages(services.db) as plans:
        for _ in range(3):
            page = services.datasets.page(member.workspace.id, limit=3, cursor=cursor)
            seen += [each.row.id for each in page.items]
            cursor = page.next
    assert (seen, cursor) == (datasets, None)
    read = [
        each for each, _ in noted if " FROM " in each.replace("\n", " ") and not each.startswith("EXPLAIN")
    ]
    assert (len(read), len(plans)) == (6, 3)
    assert not any(word in plan for plan in plans for word in SORTING), plans


def test_secrets_of_workspace_and_member_are_paged_by_an_index(
    services: PlatformServices, member: Member
) -> None:
    stored: list[tuple[str, SecretScope]] = [
        (f"NAME_{number}", scope)
        for number in range(6)
        for scope in ("user", "workspace")
        if number % 4 or scope == "user"
    ]
    of_member = (member.workspace.id, member.user.id)
    for name, scope in reversed(stored):
        services.secrets.put(*of_member, name, "value", scope)
    with plans_of_pages(services.db) as plans:
        first = services.secrets.page(*of_member, limit=4, cursor=None)
        seen = [first]
        while seen[-1].next:
            seen.append(services.secrets.page(*of_member, limit=4, cursor=seen[-1].next))
        back = services.secrets.page(*of_member, limit=4, cursor=seen[1].previous)
    assert [(each.secret.name, each.secret.scope) for page in seen for each in page.items] == stored
    assert [each.secret.id for each in back.items] == [each.secret.id for each in first.items]
    assert len(plans) == len(seen) + 1
    assert not any(word in plan for plan in plans for word in SORTING), plans


def test_a_row_that_a_cursor_names_need_not_be_there_any_more(
    services: PlatformServices, member: Member, datasets: list[str]
) -> None:
    first = services.datasets.page(member.workspace.id, limit=3, cursor=None)
    assert first.next is not None
    with services.db.transaction() as session:
        session.delete(first.items[-1].row)
    behind = services.datasets.page(member.workspace.id, limit=3, cursor=first.next)
    assert [each.row.id for each in behind.items] == datasets[3:6]
    back = services.datasets.page(member.workspace.id, limit=3, cursor=behind.previous)
    assert [each.row.id for each in back.items] == datasets[:2] and back.previous is None


@pytest.mark.parametrize(
    "changed", [["soon", "id"], ["2026-01-01T00:00:00", "id"], [1, "id"], [None, "id"], ["KEPT", 1]]
)
def test_a_cursor_that_nobody_made_is_refused(
    services: PlatformServices, member: Member, datasets: list[str], changed: list[Any]
) -> None:
    made = services.datasets.page(member.workspace.id, limit=3, cursor=None).next
    assert made is not None
    (moment, _), _ = decode(made, ORDER, parts=2)
    key = [moment if part == "KEPT" else part for part in changed]
    with pytest.raises(OsmosisError, match="the cursor is none of this list"):
        services.datasets.page(member.workspace.id, limit=3, cursor=encode(ORDER, key))
