"""`osmosis platform`: a platform of one's own."""

from __future__ import annotations

import typer

from osmosis_ai.cli.platform import administration, server

app = typer.Typer()
app.command("start")(server.start)
app.command("status")(server.status)
app.command("stop")(server.stop)
app.command("connect")(administration.connect)
app.command("disconnect")(administration.disconnect)
app.command("backup")(server.backup)
app.command("restore")(server.restore)
app.command("worker")(server.worker)
app.add_typer(administration.tokens, name="token")
app.add_typer(administration.worker_tokens, name="worker-token")
app.add_typer(administration.users, name="user")
app.add_typer(administration.workspaces, name="workspace")
app.add_typer(administration.secret_keys, name="secret-key")
app.add_typer(administration.repositories, name="repository")
app.add_typer(administration.members, name="member")
