"""`osmosis auth`: who is asking. The same commands stand at the top: `osmosis login` is `osmosis auth login`."""

from __future__ import annotations

import typer

from osmosis_ai.cli.auth.login import CONTEXT_SETTINGS, login
from osmosis_ai.cli.auth.logout import logout
from osmosis_ai.cli.auth.whoami import whoami

app = typer.Typer(help="Log in, log out, see who you are.")
app.command("login", context_settings=CONTEXT_SETTINGS)(login)
app.command("logout")(logout)
app.command("whoami")(whoami)
