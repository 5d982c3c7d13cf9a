"""The commands that read the files of runs: show, watch, report, predict, account, statement, track, secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpriv.cli.options import AllowPlugins, AsJson, RunFolder

commands = typer.Typer()


@commands.command()
def show(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folder of a run; several are compared.")],
    open_it: Annotated[
        bool, typer.Option("--open", help="Also write report.html to the first run's folder, and show it in a browser.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a run, finished or not, or compare several. Epsilon is computed again from the ledger.

    The exit code is 1 if files of a run were altered or are missing.
    """
    from fedpriv.cli.printing import print_comparison, print_run
    from fedpriv.reports.report import Run

    runs = [Run.read(folder) for folder in folders]
    if len(runs) > 1:
        print_comparison(runs, as_json=as_json)
    else:
        print_run(runs[0], folders[0] / "report.png", as_json=as_json)
    if any(run.findings for run in runs):
        raise typer.Exit(1)
    if open_it:
        from fedpriv.cli.reporting import write_report

        write_report(folders, folders[0] / "report.html", open_it=True, as_json=as_json)


@commands.command()
def watch(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    every: Annotated[float, typer.Option("--every", help="Seconds between two looks.", min=0.2)] = 2.0,
) -> None:
    """Show running runs until they end: round, last test, epsilon spent, time left, and if they still make progress."""
    from fedpriv.cli.watching import watch as show_until_finished

    show_until_finished(folders, every)


@commands.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folder of a run; several are compared.")],
    output: Annotated[Path, typer.Option("--out", metavar="HTML", help="The file to write.")] = Path("report.html"),
    open_it: Annotated[bool, typer.Option("--open", help="Show it in a browser.")] = False,
    allow_plugins: AllowPlugins = False,
    as_json: AsJson = False,
) -> None:
    """Write a report to send: one HTML file with curves, spending over time, protected units, and the settings.

    It loads nothing from other places, and is suitable for printing. For several runs it is a comparison.
    """
    from fedpriv.cli.reporting import write_report

    write_report(folders, output, open_it=open_it, as_json=as_json)


@commands.command()
def predict(
    run: RunFolder,
    table: Annotated[Path, typer.Argument(metavar="CSV", help="File with the columns of the features.")],
    output: Annotated[
        Path | None, typer.Option("--out", metavar="CSV", help="File to write; printed if left out.")
    ] = None,
    allow_plugins: AllowPlugins = False,
    as_json: AsJson = False,
) -> None:
    """Predict the rows of a CSV file with the model of a run on CSV files. It costs no epsilon."""
    from fedpriv.cli.predicting import predict as write_predictions

    write_predictions(run, table, output, as_json=as_json)


@commands.command()
def account(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs on the same data.")],
    delta: Annotated[
        float | None, typer.Option("--delta", help="Price at this delta; the smallest of the runs' own if left out.")
    ] = None,
    accountant: Annotated[
        str | None, typer.Option("--accountant", help="Only this bound: gaussian, pld, rdp or pure.")
    ] = None,
    colluders: Annotated[int, typer.Option("--colluders", help="Clients that tell each other all they know.")] = 1,
    group: Annotated[int, typer.Option("--group", help="Units that are protected together.")] = 10,
    allow_plugins: AllowPlugins = False,
    as_json: AsJson = False,
) -> None:
    """Compute the cost of runs from their ledgers: in total, at any delta, for each adversary and privacy unit."""
    from fedpriv.cli import accounting

    accounting.print_costs(
        folders, as_json=as_json, delta=delta, accountant=accountant, colluders=colluders, group=group
    )


@commands.command()
def statement(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders of runs on the same data, or of a site, or a search."),
    ],
    outputs: Annotated[
        list[Path] | None, typer.Option("--out", metavar="FILE", help="A file: .md, .html or .pdf; may be repeated.")
    ] = None,
    colluders: Annotated[int, typer.Option("--colluders", help="Clients that tell each other all they know.")] = 1,
    group: Annotated[int, typer.Option("--group", help="Records that one person may have.")] = 10,
    allow_plugins: AllowPlugins = False,
    as_json: AsJson = False,
) -> None:
    """Write a page for a data-protection officer: protected data, adversaries, releases, and verification."""
    from fedpriv.cli import stating

    stating.state(folders, outputs or [], colluders=colluders, group=group, as_json=as_json)


@commands.command()
def track(
    run: RunFolder,
    wandb: Annotated[
        str | None, typer.Option("--wandb", metavar="PROJECT", help="A project of Weights & Biases (fedpriv[wandb]).")
    ] = None,
    mlflow: Annotated[
        str | None, typer.Option("--mlflow", metavar="EXPERIMENT", help="An experiment of MLflow (fedpriv[mlflow]).")
    ] = None,
) -> None:
    """Send a run's settings and rounds to Weights & Biases or MLflow: the contents of its files, and nothing else."""
    from fedpriv.cli import tracking

    tracking.send(run, wandb, mlflow)


@commands.command()
def secrets(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a site.")],
    where: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="WHERE", help="Encrypt them anew: env:NAME, keyring or age:RECIPIENT; or back: folder."
        ),
    ] = None,
    renew_keys: Annotated[
        bool, typer.Option("--renew-keys", help="A site: draw new keys for plans to come; others keep theirs.")
    ] = False,
) -> None:
    """Print the location of a site's keys; with --to, move them under another key. Runs have no secrets to keep."""
    from fedpriv.cli import sealing

    sealing.print_secrets(folder, where, renew_keys=renew_keys)


@commands.command()
def seal(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a site.")],
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Also give up what has not ended: it can never go on.")
    ] = False,
) -> None:
    """Destroy the keys of a site after its last plan, so that the noise it shared with others cannot be recomputed.

    Ledgers, epsilon and statement are kept.
    """
    from fedpriv.cli import sealing

    sealing.seal(folder, unfinished=unfinished)
