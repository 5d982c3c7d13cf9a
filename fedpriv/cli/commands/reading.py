"""The commands that read the files of runs: show, watch, report, predict, account, statement, track, secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpriv.cli.options import AllowPlugins, AsJson, RunFolder

commands = typer.Typer()


@commands.command()
def show(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folder of a run; several runs are compared.")
    ],
    open_it: Annotated[
        bool, typer.Option("--open", help="Also write report.html to the first run's folder, and open it in a browser.")
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
    interval: Annotated[float, typer.Option("--interval", help="Seconds between updates.", min=0.2)] = 2.0,
) -> None:
    """Show running runs until they end: round, last test, epsilon spent, time left, and if they still make progress."""
    from fedpriv.cli.watching import watch as show_until_finished

    show_until_finished(folders, interval)


@commands.command()
def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folder of a run; several runs are compared.")
    ],
    output: Annotated[Path, typer.Option("--out", metavar="HTML", help="File to write.")] = Path("report.html"),
    open_it: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
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
    table: Annotated[Path, typer.Argument(metavar="CSV", help="File with the feature columns.")],
    output: Annotated[Path | None, typer.Option("--out", metavar="CSV", help="File to write; default: print.")] = None,
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
        float | None,
        typer.Option("--delta", help="Compute epsilon at this delta; default: the smallest delta of the runs."),
    ] = None,
    accountant: Annotated[
        str | None, typer.Option("--accountant", help="Use only this accountant: gaussian, pld, rdp or pure.")
    ] = None,
    colluders: Annotated[
        int, typer.Option("--colluders", help="Number of clients that share all their information.")
    ] = 1,
    group: Annotated[int, typer.Option("--group", help="Number of units that are protected together.")] = 10,
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
        typer.Argument(
            metavar="RUN...", help="Folders of runs on the same data, folder of a site, or folder of a search."
        ),
    ],
    outputs: Annotated[
        list[Path] | None,
        typer.Option("--out", metavar="FILE", help="Output file: .md, .html or .pdf; may be repeated."),
    ] = None,
    colluders: Annotated[
        int, typer.Option("--colluders", help="Number of clients that share all their information.")
    ] = 1,
    group: Annotated[int, typer.Option("--group", help="Largest number of records of one person.")] = 10,
    allow_plugins: AllowPlugins = False,
    as_json: AsJson = False,
) -> None:
    """Write a page for a data-protection officer: protected data, adversaries, releases, and verification."""
    from fedpriv.cli import stating

    stating.write_statement(folders, outputs or [], colluders=colluders, group=group, as_json=as_json)


@commands.command()
def track(
    run: RunFolder,
    wandb: Annotated[
        str | None, typer.Option("--wandb", metavar="PROJECT", help="Project of Weights & Biases (fedpriv[wandb]).")
    ] = None,
    mlflow: Annotated[
        str | None, typer.Option("--mlflow", metavar="EXPERIMENT", help="Experiment of MLflow (fedpriv[mlflow]).")
    ] = None,
) -> None:
    """Send a run's settings and rounds to Weights & Biases or MLflow: the contents of its files, and nothing else."""
    from fedpriv.cli import tracking

    tracking.send_run(run, wandb, mlflow)


@commands.command()
def secrets(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a site.")],
    where: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="WHERE",
            help="Encrypt the secrets again: env:NAME, keyring or age:RECIPIENT; folder removes the encryption.",
        ),
    ] = None,
    renew_keys: Annotated[
        bool,
        typer.Option("--renew-keys", help="For a site: create new keys for later plans; accepted plans keep theirs."),
    ] = False,
) -> None:
    """Print the location of a site's keys; with --to, move them under another key. Runs have no secrets to keep."""
    from fedpriv.cli import sealing

    sealing.print_secrets(folder, where, renew_keys=renew_keys)


@commands.command()
def seal(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a site.")],
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Also abandon unfinished plans; they can never be resumed.")
    ] = False,
) -> None:
    """Destroy the keys of a site after its last plan, so that the noise it shared with others cannot be recomputed.

    Ledgers, epsilon and statement are kept.
    """
    from fedpriv.cli import sealing

    sealing.seal(folder, unfinished=unfinished)
