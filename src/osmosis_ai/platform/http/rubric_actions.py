"""The deletion of a rubric result on its page: the page that asks, and the POST that does it, as the REST API does."""

from __future__ import annotations

from typing import Annotated

from fastapi import Form
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from osmosis_ai.platform.http.action_proposals import ActionProposal
from osmosis_ai.platform.http.csrf import MAX_TOKEN_CHARS, STALE_FORM, is_own_form
from osmosis_ai.platform.http.page_shell import page_router
from osmosis_ai.platform.http.run_buttons import why_not_deleted
from osmosis_ai.platform.http.workspace_visits import WorkspacePage, WorkspaceVisit
from osmosis_ai.platform.rubric_results import FoundRubricResult
from osmosis_ai.ui.numbers import iso, size

router = page_router(knows_its_words=True)


@router.get("/{workspace}/rubrics/{name}/delete", include_in_schema=False)
def ask(page: WorkspacePage, name: str) -> Response:
    """Say what would be deleted."""
    found = page.services.rubric_results.get(page.workspace.id, name)
    refused = why_not_deleted(page, found.row.creator_id)
    return _confirm(page, found, problem=refused or "", status=403 if refused else 200)


@router.post("/{workspace}/rubrics/{name}/delete", include_in_schema=False)
def delete(
    page: WorkspacePage, name: str, csrf: Annotated[str, Form(max_length=MAX_TOKEN_CHARS)] = ""
) -> Response:
    """Delete it, and lead to the list."""
    found = page.services.rubric_results.get(page.workspace.id, name)
    refused = why_not_deleted(page, found.row.creator_id)
    if refused is None and not is_own_form(page.request, csrf):
        refused = STALE_FORM
    if refused is not None:
        return _confirm(page, found, problem=refused, status=403)
    page.services.rubric_results.delete(found.row)
    return RedirectResponse(page.href("rubrics"), status_code=303)


def _confirm(page: WorkspaceVisit, found: FoundRubricResult, *, problem: str, status: int) -> HTMLResponse:
    row = found.row
    facts = [
        ("Judges", row.model_path),
        ("Data", row.dataset_name),
        ("Uploaded", iso(row.created_at)),
        ("By", found.creator),
        ("Size", size(row.size)),
    ]
    known = [(label, value) for label, value in facts if value]
    sentence = "It is gone for everybody in the workspace; the file that it was uploaded from is not touched."
    return page.page(
        "confirm.html",
        ("rubrics",),
        status=status,
        title=f"Delete: {row.name}",
        action_text="Delete",
        proposal=None if problem else ActionProposal(sentence, known),
        problem=problem[:1].upper() + problem[1:],
        once="",
        back=page.href("rubrics", row.name),
        back_to="the result",
    )
