"""The commands about names and the installation: list, schema, topology, doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedpriv.cli import shipped
from fedpriv.cli.options import AllowPlugins, AsJson

commands = typer.Typer()


@commands.command()
def topology(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A topology listed by `fedpriv list`.")],
    n_clients: Annotated[int, typer.Argument(metavar="N", help="Number of nodes.", min=1)],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[FIELD=VALUE]...", help="e.g. topology.p=0.1 mixing=max_degree")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--out", metavar="PNG", help="Write a picture of the graph to this file.")
    ] = None,
    allow_plugins: AllowPlugins = False,
    as_json: AsJson = False,
) -> None:
    """Describe and draw a communication graph and its mixing matrix."""
    from dataclasses import asdict

    from fedpriv.cli.drawing import draw as draw_graph
    from fedpriv.cli.printing import print_json, print_rows
    from fedpriv.config.base import check
    from fedpriv.config.files import override
    from fedpriv.config.network import NetworkSection
    from fedpriv.network import as_peer_graph, graph_line

    raw: dict[str, Any] = {"topology": {"name": name}}
    for option in options or []:
        raw = override(raw, option)
    network = as_peer_graph(check(NetworkSection, raw, "network").build(n_clients))
    if picture is not None:
        draw_graph(network, picture)
    if as_json:
        print_json({**asdict(network.facts()), "picture": None if picture is None else str(picture)})
        return
    rows = {"graph": graph_line(network.facts())}
    if picture:
        rows["picture"] = str(picture)
    print_rows(rows)


@commands.command(name="list")
def list_names(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[KIND|NAME]", help="A kind, to list its names; or a name, to list its options."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the names that a configuration can use, the names of one kind, or the options of one name."""
    from fedpriv.cli.printing import print_json, print_tables

    configs = {key: shipped.read_title(path) for key, path in shipped.list_configs().items()}
    if name == "configs":  # avoids the seconds that importing the other names takes
        tables = {"configs": configs}
    else:
        from fedpriv.cli.catalogue import look_up

        tables = look_up(name, {"configs": configs})
    if as_json:
        print_json(tables)
    else:
        print_tables(tables)


@commands.command()
def schema(
    file: Annotated[Path | None, typer.Option("--out", metavar="JSON", help="Write to this file.")] = None,
) -> None:
    """Print a JSON schema, with which editors check configurations and complete names, including installed packages."""
    from fedpriv.cli.json_schema import dumps

    if file is None:
        typer.echo(dumps(), nl=False)
    else:
        file.write_text(dumps(), encoding="utf-8")


@commands.command()
def doctor(
    folder: Annotated[
        Path, typer.Option("--folder", metavar="DIR", help="Folder for runs; the check writes to it.")
    ] = Path(),
    as_json: AsJson = False,
) -> None:
    """Check the installation and this machine: versions, device, threads, data, disk and locks. Suggests fixes.

    The exit code is 1 if there is a problem.
    """
    from fedpriv.cli import diagnosing

    if diagnosing.print_findings(folder, as_json=as_json):
        raise typer.Exit(1)
