"""The command line: init, train, plan, resume, show, account, statement, budget, audit, claims, key, topology and more.

Each command imports what it uses when it is called, so that `fedpriv --help` and shell completion are fast.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fedpriv import __version__
from fedpriv.cli import federating, processes, shipped
from fedpriv.cli.options import AllowPlugins, AsJson, ConfigFile, Overrides, RunFolder


class _Commands(TyperGroup):
    """Errors that fedpriv raises on purpose are one line and exit code 2; anything else is a bug and shows itself."""

    def invoke(self, ctx: Any) -> object:  # noqa: ANN401 - typer brings its own click
        from fedpriv.cli.processes import speaks
        from fedpriv.errors import FedprivError

        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # a run that trains says more
            raise typer.Exit(130) from None
        except BrokenPipeError:  # as in `fedpriv list | head`
            raise
        except FedprivError as error:
            text = str(error) if speaks(error) else ""
        except OSError as error:
            text = f"{error.filename or 'a file'} cannot be read or written ({error.strerror})"
        from fedpriv.cli.printing import print_error

        if text:
            print_error(text)
        raise typer.Exit(2)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # boxes around the help take longer to draw than all else to import
)


def _tell_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedpriv {__version__}")
        raise typer.Exit


app.add_typer(federating.site, name="site")
app.add_typer(federating.federate, name="federate")


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Tell the version and exit.")
    ] = False,
) -> None:
    """Differentially private federated learning: the epsilon that it prints is counted, not claimed."""


def _again(folder: Path, *, allow_plugins: bool) -> str:
    """The command that goes on with a run."""
    together = f" --processes {os.environ['WORLD_SIZE']}" if processes.launched() else ""
    return f"fedpriv resume {folder}{together}{' --allow-plugins' * allow_plugins}"


def _flags(**given: bool) -> list[str]:
    """The options that are set, as they are typed."""
    return [f"--{name.replace('_', '-')}" for name, wanted in given.items() if wanted]


@app.command()
def init(
    name: Annotated[
        str,
        typer.Argument(metavar="[NAME]", help="One of `fedpriv list configs`.", autocompletion=shipped.names),
    ] = "digits_iadmm",
    folder: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Folder; created if needed.")] = Path(),
    python: Annotated[bool, typer.Option("--python", help="Also write a Python script that trains it.")] = False,
    project: Annotated[
        bool, typer.Option("--project", help="Write a small project with your own data, model and algorithm instead.")
    ] = False,
) -> None:
    """Write a configuration to start from, and print the next command. Existing files are not changed."""
    from fedpriv.cli import starting
    from fedpriv.cli.printing import print_rows

    write = starting.script if python else starting.config
    following = starting.project(folder) if project else write(name, folder)
    print_rows({"written": str(folder), "next": following})


@app.command()
def train(
    config: ConfigFile,
    overrides: Overrides = None,
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder of the run; a new one in runs/ if left out.")
    ] = None,
    fix_model: Annotated[
        bool, typer.Option("--fix-model", help="Replace BatchNorm and the like by GroupNorm.")
    ] = False,
    number: processes.Number = None,
    allow_plugins: AllowPlugins = False,
    as_json: AsJson = False,
) -> None:
    """Train. All files of the run go to its folder."""
    if number is not None:
        flags = _flags(fix_model=fix_model, allow_plugins=allow_plugins, json=as_json)
        where = [] if folder is None else ["--out", str(folder)]
        processes.launch(number, ["train", str(config), *(overrides or []), *where, *flags])
    from fedpriv.cli import running
    from fedpriv.config import load_config
    from fedpriv.storage.folder import RunFolder

    settings = load_config(shipped.found(config), [*(overrides or []), *(["model.fix=true"] if fix_model else [])])
    if not processes.leads():
        return running.follow(settings)
    claimed = RunFolder.new(folder) if folder else RunFolder.numbered(Path("runs") / config.stem)
    running.run(settings, claimed, again=_again(claimed.path, allow_plugins=allow_plugins), as_json=as_json)


@app.command()
def resume(
    run: RunFolder,
    fresh_noise: Annotated[
        bool,
        typer.Option("--fresh-noise", help="Draw new noise for rounds past the checkpoint and pay for them again."),
    ] = False,
    number: processes.Number = None,
    allow_plugins: AllowPlugins = False,
    as_json: AsJson = False,
) -> None:
    """Go on with a run that stopped, from its last checkpoint."""
    if number is not None:
        flags = _flags(fresh_noise=fresh_noise, allow_plugins=allow_plugins, json=as_json)
        processes.launch(number, ["resume", str(run), *flags])
    from fedpriv.cli import running
    from fedpriv.config import load_config
    from fedpriv.errors import FedprivError
    from fedpriv.runs.integrity import findings, refuse
    from fedpriv.runs.run_files import RunFiles
    from fedpriv.storage.folder import RunFolder

    if not (run / "config.yaml").exists():
        fix = f"start one in it: fedpriv train CONFIG --out {run}"
        raise FedprivError(f"{run} holds no run (no config.yaml); {fix}")
    if (run / "ledger.jsonl").exists():
        refuse(findings(RunFiles.read(run)))
    if (run / "result.json").exists():
        raise FedprivError(f"{run} is finished; look at it with: fedpriv show {run}")
    settings = load_config(run / "config.yaml")
    if not processes.leads():
        return running.follow(settings, resumed=True, fresh_noise=fresh_noise)
    again = _again(run, allow_plugins=allow_plugins)
    running.run(settings, RunFolder(run), again=again, resumed=True, fresh_noise=fresh_noise, as_json=as_json)


@app.command()
def plan(
    config: ConfigFile,
    overrides: Overrides = None,
    timed: Annotated[bool, typer.Option("--time", help="Measure a round, on made-up data of the same shape.")] = False,
    picture: Annotated[Path | None, typer.Option("--out", metavar="PNG", help="Draw the graph to this file.")] = None,
    allow_plugins: AllowPlugins = False,
    as_json: AsJson = False,
) -> None:
    """Say what a run will cost in privacy, messages and time. Trains nothing."""
    from fedpriv.cli.printing import (
        busy,
        forecast_rows,
        print_json,
        print_noises,
        print_pairs,
        print_rows,
        print_warning,
    )
    from fedpriv.config import forecast, load_config
    from fedpriv.network.drawing import draw as draw_graph
    from fedpriv.network.graph import of_peers

    settings = load_config(shipped.found(config), overrides or [])
    with busy(settings.rounds):
        found = forecast(settings, timed=timed)
    if picture is not None:
        draw_graph(of_peers(settings.network.build(found.n_clients)), picture)
    if as_json:
        print_json(found.to_json())
        return
    print_rows(forecast_rows(found))
    if found.pairs is not None:
        print_pairs(found.pairs)
    if found.noises is not None:
        print_noises(found.noises)
    for warning in found.warnings:
        print_warning(warning)


@app.command()
def show(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folder of a run; several are compared.")],
    key_file: Annotated[
        Path | None,
        typer.Option("--verify", metavar="KEYFILE", help="Check the ledger's seals too (see fedpriv key)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a run, finished or not, or compare several. Epsilon is counted again from the ledger.

    The exit code is 1 if files of a run were altered or are missing.
    """
    from fedpriv.cli import running
    from fedpriv.cli.printing import print_comparison, print_run
    from fedpriv.errors import ConfigError
    from fedpriv.reports.report import Run

    if key_file is not None and len(folders) > 1:
        raise ConfigError("--verify", str(key_file), "is the key of one run; name that run alone")
    key = None if key_file is None else running.read_key(key_file)
    runs = [Run.read(folder, key) for folder in folders]
    found, picture = runs[0], folders[0] / "report.png"
    if len(runs) > 1:
        print_comparison(runs, as_json=as_json)
    else:
        print_run(found, picture, as_json=as_json)
    if any(run.findings for run in runs):
        raise typer.Exit(1)


@app.command()
def audit(
    subject: Annotated[
        str,
        typer.Argument(metavar="CONFIG|RUN|STRATEGY", help="Configuration, folder of a run, or 'package.module:Name'."),
    ],
    overrides: Overrides = None,
    folder: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Write audit.json and audit.png here; they are not private."),
    ] = None,
    runs: Annotated[
        Path | None, typer.Option("--runs", metavar="DIR", help="Folder with other runs, maybe on the same data.")
    ] = None,
    allow_plugins: AllowPlugins = False,
    as_json: AsJson = False,
) -> None:
    """Look for broken promises of a run or a strategy: data, clipping, noise, ledger, what else leaves.

    The exit code is 0 if all held, 1 if something was found, and 2 if something could not be checked.
    """
    from fedpriv.cli import auditing

    made = auditing.run(subject, overrides or [], folder, runs, as_json=as_json)
    if made.status:
        raise typer.Exit(made.status)


@app.command()
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
    """Price runs from their ledgers: together, at any delta, against each adversary and for each unit."""
    from fedpriv.cli import accounting

    accounting.tell(folders, as_json=as_json, delta=delta, accountant=accountant, colluders=colluders, group=group)


@app.command()
def statement(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of runs on the same data, or of a site.")
    ],
    places: Annotated[
        list[Path] | None, typer.Option("--out", metavar="FILE", help="A file: .md, .html or .pdf; may be repeated.")
    ] = None,
    colluders: Annotated[int, typer.Option("--colluders", help="Clients that tell each other all they know.")] = 1,
    group: Annotated[int, typer.Option("--group", help="Records that one person may have.")] = 10,
    allow_plugins: AllowPlugins = False,
    as_json: AsJson = False,
) -> None:
    """Write a page for a data-protection officer: what was protected, from whom, what left, and how to verify it."""
    from fedpriv.cli import stating

    stating.state(folders, places or [], colluders=colluders, group=group, as_json=as_json)


@app.command()
def budget(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The budget; with --epsilon it is made.")],
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="Make a budget: most that all runs on the data may cost.")
    ] = None,
    delta: Annotated[float, typer.Option("--delta", help="At this delta.")] = 1e-5,
    unit: Annotated[str, typer.Option("--unit", help="What is protected: sample or client.")] = "sample",
    relation: Annotated[
        str, typer.Option("--relation", help="Which data sets are neighbours: replace_one or add_remove.")
    ] = "replace_one",
    shared: Annotated[
        str, typer.Option("--shared", help="What else neighbours may have in common, e.g. 'sizes public'.")
    ] = "",
    data: Annotated[str, typer.Option("--data", help="Name of the data set; that of the file if left out.")] = "",
    accountant: Annotated[
        str | None,
        typer.Option("--accountant", help="Price by this bound alone; gaussian and pure also allow adaptive choices."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make the lifetime budget of a data set, or show what was spent of it by which runs, and what is left.

    A run whose configuration names it (privacy.budget) reserves its whole plan first, or is refused.
    """
    from fedpriv.cli import budgeting

    if epsilon is not None:
        terms = {"unit": unit, "relation": relation, "shared": shared, "data": data, "accountant": accountant}
        budgeting.create(file, epsilon=epsilon, delta=delta, **terms)
    budgeting.tell(file, as_json=as_json)


@app.command()
def tune(
    config: ConfigFile,
    space: Annotated[
        Path, typer.Argument(metavar="SPACE", help="YAML file of fields with ranges, e.g. rounds: {low: 5, high: 50}.")
    ],
    overrides: Overrides = None,
    trials: Annotated[int, typer.Option("--trials", help="Runs; with --hidden how many are expected.")] = 20,
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="Refuse a search that would cost more; its price if left out.")
    ] = None,
    metric: Annotated[str, typer.Option("--metric", help="The score, on public test data.")] = "test_accuracy",
    better: Annotated[str | None, typer.Option("--better", help="higher or lower, for metrics of your own.")] = None,
    sampler: Annotated[
        str, typer.Option("--sampler", help="tpe learns from scores; random chooses beforehand.")
    ] = "tpe",
    hidden: Annotated[
        str | None,
        typer.Option("--hidden", help="Draw the number of trials in secret and publish one model: logarithmic, ..."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Public seed of the choices.")] = 0,
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder; an unfinished search in it goes on.")
    ] = None,
    plan_only: Annotated[bool, typer.Option("--plan", help="Print what it would cost, and stop.")] = False,
    allow_plugins: AllowPlugins = False,
    as_json: AsJson = False,
) -> None:
    """Search for good settings; the price of all trials is told, and limited, before the first."""
    from fedpriv.cli import tuning
    from fedpriv.tuning import SearchSettings

    given: Any = {"better": better, "hidden": hidden, "sampler": sampler}
    settings = SearchSettings(trials, metric=metric, epsilon=epsilon, seed=seed, **given)
    tuning.run(config, space, overrides or [], settings, folder, plan_only=plan_only, as_json=as_json)


@app.command()
def claims(
    name: Annotated[str, typer.Argument(metavar="PAPER", help="A method, e.g. iadmm; a wrong one lists all.")],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[SETTING=VALUE]...", help="e.g. rounds=1000 delta=1e-6")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--out", metavar="PNG", help="Draw both epsilons against rounds to this file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the epsilon that a paper states with what its noise costs, and with the noise that it would need."""
    from fedpriv.cli.printing import print_json, print_rows
    from fedpriv.config.files import override
    from fedpriv.reports.claims import check, draw

    given: dict[str, Any] = {}
    for option in options or []:
        given = override(given, option)
    found, drawn = check(name, given), {} if picture is None else {"picture": str(picture)}
    if picture is not None:
        draw(found, picture)
    if as_json:
        print_json({**found.to_json(), **drawn})
    else:
        print_rows({**found.rows(), **drawn})


@app.command()
def key(run: RunFolder) -> None:
    """Print the key of a run's ledger. With it, `show --verify` finds lines that were written without the key.

    The key follows from the secret seed in the run's checkpoint by a one-way function, so it reveals no noise.
    """
    import torch

    from fedpriv.runs.checkpoint import Checkpoint

    saved = Checkpoint.load(run / "checkpoint.pt", torch.device("meta"))
    typer.echo(saved.randomness().seal_key().hex())


@app.command()
def topology(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A topology that `fedpriv list` names.")],
    n_clients: Annotated[int, typer.Argument(metavar="N", help="Number of nodes.", min=1)],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[FIELD=VALUE]...", help="e.g. topology.p=0.1 mixing=max_degree")
    ] = None,
    picture: Annotated[Path | None, typer.Option("--out", metavar="PNG", help="Draw the graph to this file.")] = None,
    allow_plugins: AllowPlugins = False,
    as_json: AsJson = False,
) -> None:
    """Describe and draw a communication graph and its mixing matrix."""
    from dataclasses import asdict

    from fedpriv.cli.printing import graph_line, print_json, print_rows
    from fedpriv.config.base import check
    from fedpriv.config.files import override
    from fedpriv.config.network import NetworkSection
    from fedpriv.network.drawing import draw as draw_graph
    from fedpriv.network.graph import of_peers

    given: dict[str, Any] = {"topology": {"name": name}}
    for option in options or []:
        given = override(given, option)
    network = of_peers(check(NetworkSection, given, "network").build(n_clients))
    if picture is not None:
        draw_graph(network, picture)
    if as_json:
        print_json({**asdict(network.facts()), "picture": None if picture is None else str(picture)})
        return
    print_rows({"graph": graph_line(network.facts()), **({"picture": str(picture)} if picture else {})})


@app.command(name="list")
def list_names(
    name: Annotated[
        str | None, typer.Argument(metavar="[KIND|NAME]", help="A kind, to list its names, or a name, for its options.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the names that a configuration can use, those of one kind, or the options of one name."""
    from fedpriv.cli.printing import print_json, print_tables

    configs = {key: shipped.title(path) for key, path in shipped.configs().items()}
    if name == "configs":  # without the seconds that all else takes to import
        tables = {"configs": configs}
    else:
        from fedpriv.cli.catalogue import look_up

        tables = look_up(name, {"configs": configs})
    (print_json if as_json else print_tables)(tables)


@app.command()
def schema(
    file: Annotated[Path | None, typer.Option("--out", metavar="JSON", help="Write it to this file.")] = None,
) -> None:
    """Print a JSON schema, by which editors check configurations and complete names, also of installed packages."""
    from fedpriv.cli.json_schema import dumps

    if file is None:
        typer.echo(dumps(), nl=False)
    else:
        file.write_text(dumps(), encoding="utf-8")
