"""Options that several commands have, in the same words."""

from __future__ import annotations

from typing import Annotated

import typer

Folder = Annotated[str, typer.Option("--dir", "-C", metavar="DIR", help="The project folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Model = Annotated[str | None, typer.Option("--model", "-m", metavar="PROVIDER/MODEL", help="The model.")]
Agent = Annotated[str | None, typer.Option("--agent", "-a", metavar="AGENT", help="The agent.")]
