"""What `make docs` does in addition to MkDocs: pages from the root of the repository, and folders in the navigation."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
ROOT_PAGES = {
    "ARCHITECTURE.md": "internals/architecture.md", "CONTRIBUTING.md": "internals/contributing.md",
    "SECURITY.md": "internals/security-policy.md", "CHANGELOG.md": "internals/changelog.md",
}  # fmt: skip
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace each folder of the navigation, such as ``design/``, by its pages."""
    config.nav = _expanded(config.nav)
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the Markdown files of the repository's root that belong to the site."""
    for name, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Point links to files of the repository at their page; a file that has none is named without a link."""
    source = page.file.src_uri
    original = {page: name for name, page in ROOT_PAGES.items()}.get(source, f"docs/{source}")

    def relinked(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(original), target))
        destination = path.removeprefix("docs/") if path.startswith("docs/") else ROOT_PAGES.get(path)
        if destination is None:
            return text
        return f"[{text}]({posixpath.relpath(destination, posixpath.dirname(source))}{anchor})"

    return LINK.sub(relinked, markdown)


def _expanded(item: Any) -> Any:
    if isinstance(item, list):
        return [_expanded(member) for member in item]
    if isinstance(item, dict):
        return {title: _expanded(target) for title, target in item.items()}
    if item.endswith("/"):
        docs = ROOT / "docs"
        return sorted(
            (path.relative_to(docs).as_posix() for path in (docs / item).glob("*.md")),
            key=lambda name: (not name.endswith("index.md"), name),
        )
    return item
