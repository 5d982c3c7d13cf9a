"""The command line: train, plan, resume, show, list."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

if TYPE_CHECKING:
    from fedpriv.config import Config, Forecast
    from fedpriv.network.graph import Facts
    from fedpriv.report import Run
    from fedpriv.results import Result
    from fedpriv.training import Training

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


class _Commands(TyperGroup):
    """Errors that fedpriv raises on purpose are one line and exit code 2; anything else is a bug and shows itself."""

    def invoke(self, ctx: Any) -> object:  # noqa: ANN401 - typer brings its own click
        from fedpriv.errors import FedprivError

        sys.path.append(os.getcwd())  # where `package.module:Name` of the user's own is looked for, after all else
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # as in `fedpriv list | head`
            raise
        except FedprivError as error:
            text = str(error)
        except OSError as error:
            text = f"{error.filename or 'a file'} cannot be read or written ({error.strerror})"
        err.print(f"[bold red]error:[/] {escape(text)}")
        raise typer.Exit(2)


app = typer.Typer(
    cls=_Commands,
    help="Differentially private federated learning: the epsilon that it prints is counted, not claimed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file of the run.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[SECTION.FIELD=VALUE]...", help="Settings to change, values as YAML.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object to standard output.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]


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
    as_json: AsJson = False,
) -> None:
    """Train; everything about the run goes to its folder."""
    from fedpriv.config import load_config

    settings = load_config(config, [*(overrides or []), *(["model.fix=true"] if fix_model else [])])
    _run(settings, _claim_folder(folder, config.stem), as_json=as_json)


@app.command()
def resume(
    run: RunFolder,
    fresh_noise: Annotated[
        bool,
        typer.Option("--fresh-noise", help="Draw new noise for rounds past the checkpoint and pay for them again."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Go on with a run that stopped, from its last checkpoint."""
    from fedpriv.config import load_config
    from fedpriv.errors import FedprivError

    if not (run / "config.yaml").exists():
        raise FedprivError(f"{run} holds no run (no config.yaml); name a folder that fedpriv train made")
    if (run / "result.json").exists():
        raise FedprivError(f"{run} is finished; look at it with: fedpriv show {run}")
    _run(load_config(run / "config.yaml"), run, resumed=True, fresh_noise=fresh_noise, as_json=as_json)


@app.command()
def plan(
    config: ConfigFile,
    overrides: Overrides = None,
    timed: Annotated[bool, typer.Option("--time", help="Measure a round, on made-up data of the same shape.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what a run will cost in privacy, messages and time. Trains nothing."""
    from fedpriv.config import forecast, load_config

    found = forecast(load_config(config, overrides or []), timed=timed)
    if as_json:
        _print_json(found.to_json())
        return
    _print_rows(_forecast_rows(found))
    for warning in found.warnings:
        out.print(f"[bold yellow]warning:[/] {escape(warning)}")


@app.command()
def show(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folder of a run; several are compared.")],
    as_json: AsJson = False,
) -> None:
    """Show a run, finished or not, or compare several; epsilon is counted again from the ledger."""
    from fedpriv.report import Run, draw

    if len(runs) > 1:
        _compare([Run.read(run) for run in runs], as_json=as_json)
        return
    found = Run.read(runs[0])
    picture = runs[0] / "report.png"
    draw(found, picture)
    if as_json:
        _print_json({**found.to_json(), "picture": str(picture)})
        return
    _print_rows({**found.rows(), "picture": str(picture)})


@app.command()
def topology(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A topology that `fedpriv list` names.")],
    n_clients: Annotated[int, typer.Argument(metavar="N", help="Number of nodes.", min=1)],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[FIELD=VALUE]...", help="e.g. topology.p=0.1 mixing=max_degree")
    ] = None,
    picture: Annotated[Path | None, typer.Option("--out", metavar="PNG", help="Draw the graph to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Describe and draw a communication graph and its mixing matrix."""
    from dataclasses import asdict

    from fedpriv.config.base import check
    from fedpriv.config.files import override
    from fedpriv.config.network import NetworkSection
    from fedpriv.network.drawing import draw as draw_graph

    given: dict[str, Any] = {"topology": {"name": name}}
    for option in options or []:
        given = override(given, option)
    network = check(NetworkSection, given, "network").graph(n_clients)
    if picture is not None:
        draw_graph(network, picture)
    if as_json:
        _print_json({**asdict(network.facts()), "picture": None if picture is None else str(picture)})
        return
    _print_rows({"graph": _graph_line(network.facts()), **({"picture": str(picture)} if picture else {})})


@app.command(name="list")
def list_names(as_json: AsJson = False) -> None:
    """List what a configuration can name."""
    from fedpriv.backends import BACKENDS
    from fedpriv.config import STRATEGIES
    from fedpriv.config.network import ALL_ACTIVITIES, TOPOLOGIES
    from fedpriv.constraints import CONSTRAINTS, OBJECTIVES
    from fedpriv.data import DATASETS
    from fedpriv.models import LOSSES, MODELS
    from fedpriv.network.mixing import MIXINGS
    from fedpriv.privacy.mechanisms import MECHANISMS

    registries = {
        "strategies": STRATEGIES,
        "models": MODELS,
        "losses": LOSSES,
        "objectives": OBJECTIVES,
        "constraints": CONSTRAINTS,
        "data sets": DATASETS,
    }
    registries |= {"topologies": TOPOLOGIES, "mixing matrices": MIXINGS, "activities": ALL_ACTIVITIES}
    names = {title: {name: row.description for name, row in rows.items()} for title, rows in registries.items()}
    for title, objects in {"mechanisms": MECHANISMS, "backends": BACKENDS}.items():
        names[title] = {name: (item.__doc__ or "").strip().split("\n")[0] for name, item in objects.items()}
    if as_json:
        _print_json(names)
        return
    for title, rows in names.items():
        out.print(f"[bold]{title}[/]")
        _print_rows(rows, indent=2)


def _compare(runs: list[Run], *, as_json: bool) -> None:
    from fedpriv import comparison

    if as_json:
        _print_json({"runs": [run.to_json() for run in runs], "notes": comparison.notes(runs)})
        return
    for line in comparison.table(runs):
        out.print(escape(line))
    for note in comparison.notes(runs):
        out.print(f"[yellow]note:[/] {escape(note)}")


def _run(
    config: Config, folder: Path, *, resumed: bool = False, fresh_noise: bool = False, as_json: bool = False
) -> None:
    training = _build(config, folder, resumed=resumed, fresh_noise=fresh_noise)
    done = training.progress.round
    err.print(f"{training.strategy.name}: {len(training.population)} clients, {config.rounds} rounds, in {folder}")
    err.print(f"planned: {escape(str(training.plan.spent()))}")
    if config.seed is not None and training.plan.privacy.private and not config.privacy.secure:
        err.print(f"[yellow]note:[/] whoever knows seed {config.seed} can subtract the noise; leave it out in earnest")
    try:
        result = _iterate(config, training, folder, keep=(done if fresh_noise else math.inf) if resumed else 0)
    except KeyboardInterrupt:
        err.print(f"\nstopped after round {training.progress.round}; go on with: fedpriv resume {folder}")
        raise typer.Exit(130) from None
    _report(result, folder, save_nodes=config.log.save_node_models, as_json=as_json)


def _build(config: Config, folder: Path, *, resumed: bool, fresh_noise: bool) -> Training:
    from fedpriv.config import build, to_yaml

    try:
        training = build(config, folder, resume=resumed, fresh_noise=fresh_noise)
        if not resumed:
            (folder / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    except BaseException:
        if not resumed:
            _clear(folder)
        raise
    return training


def _clear(folder: Path) -> None:
    """Leave nothing of a run that could not be started; it has released nothing."""
    for name in ("ledger.jsonl", "checkpoint.pt", "checkpoint.new", "config.yaml"):
        (folder / name).unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()


def _iterate(config: Config, training: Training, folder: Path, keep: float) -> Result:
    from fedpriv import sinks
    from fedpriv.config import to_yaml

    done = training.progress.round
    board = sinks.TensorBoard(folder / "tb", done) if config.log.tensorboard else None
    writers = [
        sinks.Jsonl(folder / "metrics.jsonl", keep),
        *([sinks.Csv(folder / "metrics.csv", keep)] if config.log.csv else []),
        *([board] if board else []),
        sinks.Live(config.rounds, done, err),
    ]
    if board and not done:
        board.text("config", f"```yaml\n{to_yaml(config)}```")
        board.text("privacy", f"planned: {training.plan.spent()}")
    try:
        for report in training:
            for sink in writers:
                sink.write(report)
        result = training.result()
        if board:
            board.text("privacy", str(result.spent), result.rounds)
        return result
    finally:
        for sink in writers:
            sink.close()


def _report(result: Result, folder: Path, *, save_nodes: bool, as_json: bool) -> None:
    from fedpriv.report import Run, draw

    result.save(folder, nodes=save_nodes)
    (folder / "result.json").write_text(json.dumps(result.to_json(), indent=2) + "\n", encoding="utf-8")
    found = Run.read(folder)
    draw(found, folder / "report.png")
    board = f"{_tensorboard()} --logdir {folder / 'tb'}" if (folder / "tb").exists() else None
    if as_json:
        places = {"folder": str(folder), "picture": str(folder / "report.png"), "tensorboard": board}
        _print_json({**result.to_json(), **places})
        return
    if result.rounds < result.planned_rounds:
        reason = result.measures.get("status", "the next would overspend epsilon")
        out.print(f"stopped after {result.rounds} of {result.planned_rounds} rounds: {reason}")
    _print_rows({**found.rows(), "picture": str(folder / "report.png"), "TensorBoard": board or "off"})


def _claim_folder(folder: Path | None, name: str) -> Path:
    """Make the folder of a new run.

    Raises:
        FedprivError: it holds another run.
    """
    from fedpriv.errors import FedprivError

    if folder is None:
        number = 1
        while (folder := Path("runs") / f"{name}-{number}").exists():
            number += 1
    if (folder / "ledger.jsonl").exists() or (folder / "config.yaml").exists():
        raise FedprivError(
            f"{folder} holds another run; go on with it (fedpriv resume {folder}) or choose another folder (--out)"
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _forecast_rows(found: Forecast) -> dict[str, str]:
    fewest, most = found.examples
    rows = {
        "strategy": f"{found.strategy}, {found.rounds} rounds",
        "clients": f"{found.n_clients}, with {fewest if fewest == most else f'{fewest} to {most}'} examples each",
        "privacy": str(found.spent),
        "one round": str(found.first_round),
        "noise multiplier": "none" if found.noise_multiplier is None else f"{found.noise_multiplier:.4g}",
        "batches": found.batches,
        "releases": str(found.releases),
        "messages": f"{found.parameters:,} numbers each; {found.floats_per_round:,} numbers a round "
        f"({_size(found.bytes_per_round)}), {_size(found.bytes_per_round * found.rounds)} in the whole run",
    }
    if found.network is not None:
        rows["graph"] = _graph_line(found.network)
    if found.if_activity_hidden is not None:
        rows["whoever sees messages"] = f"epsilon={found.spent.epsilon:.4g}: a silent node is seen to be silent"
        rows["final model only"] = (
            f"epsilon<={found.spent.epsilon:.4g}; papers argue for {found.if_activity_hidden:.4g}, which holds only if "
            "inactive nodes add noise too (not claimed)"
        )
    if found.formula is not None:
        rows["by the paper's formula"] = (
            f"this noise would be called epsilon={found.formula.stated_epsilon:.4g} ({found.formula.paper}, "
            f"{found.formula.assumes}); its true price is {found.spent.epsilon:.4g}"
        )
    if found.seconds_per_round is not None:
        whole = found.seconds_per_round * found.rounds
        rows["time"] = f"about {found.seconds_per_round:.3g} s a round, {whole:.3g} s in all, without evaluation"
    if found.claim is not None:
        rows["the paper's claim"] = f"{found.claim.stated} ({found.claim.paper})"
        views = "; ".join(f"{view}: {epsilon:.4g}" for view, epsilon in found.claim.views)
        rows |= {"its noise costs": f"epsilon at delta={found.spent.delta:g}, {views}"} if views else {}
    return rows


def _graph_line(facts: Facts) -> str:
    return (
        f"{facts.nodes} nodes, {facts.links} links, {facts.mean_degree:.3g} neighbours on average, diameter "
        f"{facts.diameter}, spectral gap {facts.spectral_gap:.4g}, contraction of a round {facts.contraction:.4g}, "
        f"active {facts.active_fraction:.3g}"
    )


def _size(n_bytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} TB"


def _tensorboard() -> str:
    """The command as the user can type it here."""
    beside = Path(sys.executable).with_name("tensorboard")
    return "tensorboard" if shutil.which("tensorboard") else os.path.relpath(beside)


def _print_rows(rows: dict[str, str], indent: int = 0) -> None:
    """One line a row, never wrapped: an epsilon and its conditions stay together, for readers and for grep."""
    width = max(len(name) for name in rows)
    for name, value in rows.items():
        out.print(f"{' ' * indent}[bold]{name:<{width}}[/]  {escape(value)}")


def _print_json(value: dict[str, Any]) -> None:
    typer.echo(json.dumps(value, indent=2))
