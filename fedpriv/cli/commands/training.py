"""The commands that use data: init, train, resume, plan, describe."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from fedpriv.cli import processes, shipped
from fedpriv.cli.options import AllowPlugins, AsJson, ConfigFile, MaybeConfigFile, Overrides, RunFolder

commands = typer.Typer()


def _resume_command(folder: Path, *, allow_plugins: bool) -> str:
    """Returns the command that resumes a run."""
    command = f"fedpriv resume {folder}"
    if processes.is_launched():
        command += f" --processes {os.environ['WORLD_SIZE']}"
    if allow_plugins:
        command += " --allow-plugins"
    return command


def _flags(**values: bool) -> list[str]:
    """Returns the flags that are set, as typed on the command line."""
    return [f"--{name.replace('_', '-')}" for name, is_set in values.items() if is_set]


@commands.command()
def init(
    name: Annotated[
        str,
        typer.Argument(metavar="[NAME]", help="One of `fedpriv list configs`.", autocompletion=shipped.complete_names),
    ] = "digits_iadmm",
    folder: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Folder; created if it does not exist.")
    ] = Path(),
    python: Annotated[bool, typer.Option("--python", help="Also write an equivalent Python script.")] = False,
    project: Annotated[
        bool, typer.Option("--project", help="Write a small project with your data, model and algorithm instead.")
    ] = False,
) -> None:
    """Write a configuration to start from, and print the next command. Existing files are not changed."""
    from fedpriv.cli import starting
    from fedpriv.cli.printing import print_rows

    if project:
        next_command = starting.write_project(folder)
    elif python:
        next_command = starting.write_script(name, folder)
    else:
        next_command = starting.write_config(name, folder)
    print_rows({"written": f"into {folder.resolve()}", "next": next_command})


@commands.command()
def train(
    config: MaybeConfigFile = None,
    overrides: Overrides = None,
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder of the run; default: a new one in runs/.")
    ] = None,
    extend: Annotated[
        Path | None,
        typer.Option(
            "--extend",
            metavar="RUN",
            help="Extend this finished run: leave CONFIG out, and set rounds=N, the total number of rounds.",
        ),
    ] = None,
    fix_model: Annotated[
        bool, typer.Option("--fix-model", help="Replace BatchNorm and similar layers by GroupNorm.")
    ] = False,
    number: processes.Number = None,
    allow_plugins: AllowPlugins = False,
    as_json: AsJson = False,
) -> None:
    """Train. All files of the run are written to its folder."""
    if extend is not None:
        changed = [*([] if config is None else [str(config)]), *(overrides or [])]
        return _extend(extend, changed, folder, number, allow_plugins=allow_plugins, as_json=as_json)
    if config is None:
        raise typer.BadParameter(
            "it is required; name the YAML file of the run, or a configuration that comes with fedpriv",
            param_hint="CONFIG",
        )
    if number is not None:
        flags = _flags(fix_model=fix_model, allow_plugins=allow_plugins, json=as_json)
        if folder is None:
            out = []
        else:
            out = ["--out", str(folder)]
        processes.launch(number, ["train", str(config), *(overrides or []), *out, *flags])
    from fedpriv.cli import running
    from fedpriv.config import load_config
    from fedpriv.storage import RunFolder

    changes = list(overrides or [])
    if fix_model:
        changes.append("model.fix=true")
    settings = load_config(shipped.resolve(config), changes)
    if not processes.is_main_process():
        return running.run_follower(settings)
    if folder:
        run_folder = RunFolder.new(folder)
    else:
        run_folder = RunFolder.numbered(Path("runs") / config.stem)
    again = _resume_command(run_folder.path, allow_plugins=allow_plugins)
    running.run(settings, run_folder, again=again, as_json=as_json)


def _extend(
    earlier: Path, changed: list[str], folder: Path | None, number: int | None, *, allow_plugins: bool, as_json: bool
) -> None:
    """Extends a finished run, in a new folder; `changed` are settings as `name=value`.

    Raises:
        ConfigError: If a configuration or a number of processes is given as well.
    """
    from fedpriv.cli import running
    from fedpriv.config import load_config
    from fedpriv.errors import ConfigError
    from fedpriv.runs import find_config_file
    from fedpriv.storage import RunFolder

    if changed and "=" not in changed[0]:
        raise ConfigError(
            "CONFIG", changed[0], f"cannot be used with --extend, which uses {earlier / 'config.yaml'}: leave it out"
        )
    if number is not None or processes.is_launched():
        raise ConfigError(
            "--processes",
            number,
            "cannot be used with --extend, since a run is extended in one process: leave it out, and start the command "
            "without torchrun",
        )
    settings = load_config(find_config_file(earlier), changed)
    if folder:
        run_folder = RunFolder.new(folder)
    else:
        run_folder = RunFolder.numbered(Path("runs") / f"{earlier.resolve().name}-extended")
    again = _resume_command(run_folder.path, allow_plugins=allow_plugins)
    running.run(settings, run_folder, again=again, extend=earlier, as_json=as_json)


@commands.command()
def resume(
    run: RunFolder,
    number: processes.Number = None,
    allow_plugins: AllowPlugins = False,
    as_json: AsJson = False,
) -> None:
    """Resume a stopped run from its last checkpoint, with new noise.

    Each release is made and charged once: rounds since the checkpoint stay charged, and their results are lost.
    """
    if number is not None:
        flags = _flags(allow_plugins=allow_plugins, json=as_json)
        processes.launch(number, ["resume", str(run), *flags])
    from fedpriv.cli import running
    from fedpriv.config import load_config
    from fedpriv.errors import FedprivError
    from fedpriv.runs import RunFiles, find_config_file, find_problems, raise_problems
    from fedpriv.storage import RunFolder

    path = find_config_file(run, f"start a run in it: fedpriv train CONFIG --out {run}")
    if (run / "ledger.jsonl").exists():
        raise_problems(find_problems(RunFiles.read(run)))
    if (run / "result.json").exists():
        raise FedprivError(
            f"{run} is finished, so there is nothing to resume; print its results with: fedpriv show {run}"
        )
    settings = load_config(path)
    if not processes.is_main_process():
        return running.run_follower(settings, resumed=True)
    again = _resume_command(run, allow_plugins=allow_plugins)
    running.run(settings, RunFolder(run), again=again, resumed=True, as_json=as_json)


@commands.command()
def plan(
    config: ConfigFile,
    overrides: Overrides = None,
    timed: Annotated[bool, typer.Option("--time", help="Measure a round, on made-up data of the same shape.")] = False,
    picture: Annotated[
        Path | None, typer.Option("--out", metavar="PNG", help="Write a picture of the graph to this file.")
    ] = None,
    allow_plugins: AllowPlugins = False,
    as_json: AsJson = False,
) -> None:
    """Print the expected privacy cost, messages and time of a run. Trains nothing."""
    from fedpriv.cli.drawing import draw as draw_graph
    from fedpriv.cli.printing import print_forecast, print_json, spinner
    from fedpriv.config import forecast, load_config
    from fedpriv.network import as_peer_graph

    settings = load_config(shipped.resolve(config), overrides or [])
    with spinner(settings.rounds):
        result = forecast(settings, timed=timed)
    if picture is not None:
        draw_graph(as_peer_graph(settings.network.build(result.n_clients)), picture)
    if as_json:
        print_json(result.to_json())
        return
    print_forecast(result)


@commands.command()
def describe(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="CSV...", help="A file for each owner, or a configuration with data: {name: csv, ...}."),
    ],
    numbers: Annotated[
        list[str] | None,
        typer.Option("--number", metavar="COLUMN=LOW:HIGH", help="A numeric column with its public range."),
    ] = None,
    categories: Annotated[
        list[str] | None,
        typer.Option("--category", metavar="COLUMN=A,B", help="A categorical column with its public values."),
    ] = None,
    correlate: Annotated[bool, typer.Option("--correlate", help="Also correlations of the numeric columns.")] = False,
    epsilon: Annotated[float, typer.Option("--epsilon", help="Privacy cost of all statistics together.")] = 1.0,
    delta: Annotated[float, typer.Option("--delta", help="Failure probability.")] = 1e-5,
    trust: Annotated[
        str, typer.Option("--trust", help="local, central (one party is trusted), or pairwise (one may collude).")
    ] = "local",
    budget: Annotated[Path | None, typer.Option("--budget", metavar="FILE", help="Lifetime budget to charge.")] = None,
    folder: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="New folder for the ledger.")] = None,
    picture: Annotated[Path | None, typer.Option("--picture", metavar="PNG", help="Picture to write.")] = None,
    plan_only: Annotated[
        bool, typer.Option("--plan", help="Print the width of each interval, and spend nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Describe tables privately: mean, deviation, quartiles, counts and correlations, with 95 % intervals."""
    from fedpriv.cli import describing

    privacy = describing.make_privacy(epsilon, delta, trust, budget)
    question = describing.make_question(files, numbers or [], categories or [], correlate, privacy)
    describing.run(question, folder, picture, plan_only=plan_only, as_json=as_json)
