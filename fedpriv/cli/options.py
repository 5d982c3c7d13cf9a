"""Arguments and options that several commands have."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedpriv.cli import shipped


def _permit(context: typer.Context, given: bool) -> bool:
    """Let names outside the catalogue be imported during this command, if the user or the environment says so."""
    from fedpriv.settings import plugins

    if given:
        context.with_resource(plugins.allow_plugins())
    if plugins.are_allowed():
        sys.path.append(os.getcwd())  # where the user's own modules are looked for, after all else
    return given


_CONFIG = typer.Argument(
    metavar="CONFIG",
    help="YAML file of the run, or the name of one that comes with fedpriv (see `fedpriv list configs`).",
    autocompletion=shipped.names,
)
ConfigFile = Annotated[Path, _CONFIG]
MaybeConfigFile = Annotated[Path | None, _CONFIG]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[SECTION.FIELD=VALUE]...", help="Settings to change, values as YAML.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object to standard output.")]
AllowPlugins = Annotated[
    bool,
    typer.Option("--allow-plugins", callback=_permit, help="Import what is named as 'package.module:Name'."),
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]
