"""`osmosis --help` as text, written from the registry: no command and no parser is imported for it."""

from __future__ import annotations

from osmosis_ai.cli.registry import visible_by_panel

SUMMARY = "Evaluate and train LLM agents, on your machine or on the Osmosis platform."
OPTIONS = (
    ("--json", "Print one JSON document. Goes anywhere on the line."),
    ("--plain", "Print plain lines for scripts and logs. Goes anywhere."),
    ("--env-file FILE", "Read variables from FILE (default: the workspace's .env)."),
    ("--platform URL", "Use the platform at URL."),
    ("-V, --version", "Print the version."),
    ("-h, --help", "Print this help; `osmosis COMMAND --help` tells more."),
)


def root_help() -> str:
    """Return the help of the command line itself, ended by a newline."""
    panels = visible_by_panel()
    width = 2 + max(len(name) for rows in (*panels.values(), OPTIONS) for name, _ in rows)
    lines = ["Usage: osmosis [OPTIONS] COMMAND [ARGS]...", "", f"  {SUMMARY}"]
    for title, rows in (*panels.items(), ("Options", OPTIONS)):
        lines += ["", f"{title}:", *(f"  {name:<{width}}{text}" for name, text in rows)]
    return "\n".join(lines) + "\n"
