"""`stead completion`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from stead.interfaces.cli import out

Shell = Literal["bash", "zsh", "fish", "powershell"]


def completion(shell: Annotated[Shell, typer.Argument(help="Which shell.")]) -> int:
    """Print the completion script for a shell, to be loaded by its start file: eval "$(stead completion bash)"."""
    from typer import completion as scripts

    make: Any = vars(scripts)["get_completion_script"]
    out.line(make(prog_name="stead", complete_var="_STEAD_COMPLETE", shell=shell))
    return 0
