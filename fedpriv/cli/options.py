"""Arguments and options that several commands share."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedpriv.cli import shipped


def _permit_plugins(context: typer.Context, is_given: bool) -> bool:
    """Allows imports of names outside the catalogue during this command, if an option or the environment permits it."""
    from fedpriv.settings import plugins

    if is_given:
        context.with_resource(plugins.allow_plugins())
    if plugins.are_allowed():
        sys.path.append(os.getcwd())  # the user's own modules are searched there, after all other folders
    return is_given


_CONFIG = typer.Argument(
    metavar="CONFIG",
    help="YAML file of the run, or the name of one that comes with fedpriv (see `fedpriv list configs`).",
    autocompletion=shipped.complete_names,
)
ConfigFile = Annotated[Path, _CONFIG]
MaybeConfigFile = Annotated[Path | None, _CONFIG]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[SECTION.FIELD=VALUE]...", help="Settings to change; values are YAML.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object to standard output.")]
AllowPlugins = Annotated[
    bool,
    typer.Option(
        "--allow-plugins", callback=_permit_plugins, help="Allow importing code named as 'package.module:Name'."
    ),
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]
