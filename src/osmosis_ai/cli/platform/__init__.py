"""`osmosis platform`: a platform of one's own."""

from __future__ import annotations

import typer

from osmosis_ai.cli.platform import member, repository, secret_key, token, user, worker_token, workspace
from osmosis_ai.cli.platform.backup import backup
from osmosis_ai.cli.platform.connect import connect
from osmosis_ai.cli.platform.disconnect import disconnect
from osmosis_ai.cli.platform.restore import restore
from osmosis_ai.cli.platform.start import start
from osmosis_ai.cli.platform.status import status
from osmosis_ai.cli.platform.stop import stop
from osmosis_ai.cli.platform.worker import worker

app = typer.Typer(help="Run and administer your own platform.")
app.command("start")(start)
app.command("status")(status)
app.command("stop")(stop)
app.command("connect")(connect)
app.command("disconnect")(disconnect)
app.command("backup")(backup)
app.command("restore")(restore)
app.command("worker")(worker)

tokens = typer.Typer(help="Make, list and revoke tokens.")
tokens.command("create")(token.create)
tokens.command("list")(token.list_)
tokens.command("revoke")(token.revoke)
app.add_typer(tokens, name="token")

worker_tokens = typer.Typer(help="Create, list and revoke worker tokens.")
worker_tokens.command("create")(worker_token.create)
worker_tokens.command("list")(worker_token.list_)
worker_tokens.command("revoke")(worker_token.revoke)
app.add_typer(worker_tokens, name="worker-token")

users = typer.Typer(help="Add and list users, change passwords, send people away.")
users.command("add")(user.add)
users.command("list")(user.list_)
users.command("password")(user.password)
users.command("disable")(user.disable)
users.command("enable")(user.enable)
users.command("remove")(user.remove)
app.add_typer(users, name="user")

workspaces = typer.Typer(help="Add and list workspaces.")
workspaces.command("add")(workspace.add)
workspaces.command("list")(workspace.list_)
app.add_typer(workspaces, name="workspace")

secret_keys = typer.Typer(help="Rotate the key that seals the platform's secrets.")
secret_keys.command("rotate")(secret_key.rotate)
app.add_typer(secret_keys, name="secret-key")

repositories = typer.Typer(help="List the connected repositories.")
repositories.command("list")(repository.list_)
app.add_typer(repositories, name="repository")

members = typer.Typer(help="Let users into workspaces and out of them.")
members.command("add")(member.add)
members.command("remove")(member.remove)
app.add_typer(members, name="member")
