"""A command group made of what commands can return and how they can end."""

from __future__ import annotations

import math

import typer

from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import Column, DetailResult, ListResult, OperationResult, Status, Table
from osmosis_ai.errors import NotFoundError

app = typer.Typer(help="Ships and what they carry.")
crew = typer.Typer(help="Who sails.")
app.add_typer(crew, name="crew")

SHIPS = [
    {"name": "Argo [red]", "status": "running", "tons": 12.5},
    {"name": "Tab\there", "status": "failed", "tons": None},
]
COLUMNS = (
    Column("Name", "name", keep=True),
    Column("Status", value=lambda item: Status(item["status"])),
    Column("Tons", "tons", right=True),
)


@app.command("list")
def list_ships() -> ListResult:
    """List the ships."""
    return ListResult(
        SHIPS,
        COLUMNS,
        total_count=7,
        has_more=True,
        next_offset=2,
        extra={"git": {"identity": "a/b"}, "items": "never"},
        hints=["See one: osmosis fleet info NAME"],
    )


@app.command()
def launch() -> OperationResult:
    """Launch a ship."""
    return OperationResult(
        "fleet.launch",
        message="Ship launched: Argo",
        resource={"name": "Argo"},
        next_steps=["Follow it: osmosis fleet info Argo"],
        next_steps_structured=[{"action": "fleet_info", "name": "Argo"}],
        extra={"wind": "fair", "status": "never", "message": "never"},
    )


@app.command()
def bare() -> OperationResult:
    """Return the least an operation can say."""
    return OperationResult("fleet.noop", status="noop")


@app.command()
def say(text: str) -> OperationResult:
    """Say something."""
    return OperationResult("fleet.say", message=text, extra={"loud": False})


@app.command()
def nan() -> DetailResult:
    """Return a number that JSON cannot say."""
    return DetailResult({"reward": math.nan})


@app.command()
def missing() -> None:
    """Fail as commands do."""
    raise NotFoundError(
        "No ship named 'Argo'.\nLook in the harbour.",
        details={"name": "Argo"},
        hint="list them with `osmosis fleet list`",
    )


@app.command()
def crash(text: str = "boom") -> None:
    """Fail as bugs do."""
    raise KeyError(text)


@app.command()
def interrupt() -> None:
    """End as Ctrl-C does."""
    raise KeyboardInterrupt


@app.command()
def sink(yes: bool = typer.Option(False, "--yes", "-y")) -> OperationResult:
    """Ask before doing."""
    current().confirm(
        "Sink the Argo?", yes=yes, summary={"Ship": "Argo"}, notes=["It is old."], warnings=["It is full."]
    )
    return OperationResult("fleet.sink", message="Sunk.")


@app.command()
def sail() -> OperationResult:
    """Take a while."""
    output = current()
    with output.status("Raising the anchor"):
        pass
    output.warn("Fog ahead.", code="FOG")
    output.show(Table(["Plan"], [["north"]]))
    with output.progress("Sailing", total=20, unit="miles") as progress:
        for done in range(21):
            progress.update(done, note="calm")
    return OperationResult("fleet.sail", message="Arrived.")


@crew.command("list")
def list_crew() -> ListResult:
    """List the crew."""
    return ListResult([{"name": "Jason"}], [Column("Name", "name")])
