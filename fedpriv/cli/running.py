"""Trains from a configuration into a folder, and prints the result."""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.markup import escape

from fedpriv.cli.printing import err, print_json, print_rows, spinner
from fedpriv.cli.processes import with_launched_engine
from fedpriv.cli.signals import Signals

if TYPE_CHECKING:
    from fedpriv.config import Config
    from fedpriv.runs import Result, Training
    from fedpriv.storage import RunFolder

_BROKEN = 3  # exit code: everything is written, but the model is unusable


def run(
    config: Config,
    folder: RunFolder,
    *,
    again: str,
    resumed: bool = False,
    extend: Path | None = None,
    as_json: bool = False,
) -> None:
    """Trains to the end with a progress bar, and prints the result. After a signal the run can be resumed.

    Args:
        config: The configuration.
        folder: The run's folder, closed at the end.
        again: The command that resumes the run, printed if it is stopped.
        resumed: True to resume the run in the folder.
        extend: Folder of the finished run that this one extends; None for any other run.
        as_json: Print one JSON object.

    Raises:
        typer.Exit: If a signal stopped the run, or (code 3) the final model or test loss is not finite.
    """
    from fedpriv.config.building import list_start_warnings
    from fedpriv.errors import PromiseWarning, format_count

    with folder, Signals() as signals, warnings.catch_warnings():
        warnings.simplefilter("ignore", PromiseWarning)  # printed below
        training = _build(config, folder, resumed=resumed, extend=extend)
        clients = format_count(training.network.n_clients, "client")
        rounds = format_count(config.rounds, "round")
        err.print(f"{training.strategy.name}: {clients}, {rounds}, in {folder.path}")
        if extend is not None:
            err.print(
                f"extending {extend} from round {training.progress.round}; the privacy cost includes its releases"
            )
        err.print(f"planned: {escape(str(training.plan.spent()))}")
        err.print(f"gradients: {escape(training.backend)}")
        for warning in list_start_warnings(config, training):
            err.print(f"[bold yellow]warning:[/] {escape(warning)}")
        for note in _duplicate_notes(training):
            err.print(f"[yellow]note:[/] {note}")
        try:
            result = _iterate(config, training, folder.path, signals)
        except KeyboardInterrupt:
            try:
                err.print(f"\nstopped after round {training.progress.round}; resume with: {again}")
            except OSError:  # the terminal is closed; unwritten output would change the exit code
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
            raise typer.Exit(signals.exit_code) from None
        _print_result(training.linked(result), folder, as_json=as_json)
        if result.broken:
            raise typer.Exit(_BROKEN)


def run_follower(config: Config, *, resumed: bool = False) -> None:
    """Takes part in a run that the process of rank 0 writes and reports; see `run` for the arguments.

    Raises:
        typer.Exit: If a signal stopped the run, in any process.
    """
    from fedpriv.config import build
    from fedpriv.errors import PromiseWarning

    with Signals() as signals, warnings.catch_warnings():
        warnings.simplefilter("ignore", PromiseWarning)
        training = build(with_launched_engine(config), resume=resumed)
        _duplicate_notes(training)  # all processes take part in the comparison
        with signals.patiently():
            for _ in training:
                if training.any_process(signals.pending > 0):
                    training.save()
                    raise typer.Exit(signals.exit_code)
        training.result()


def _duplicate_notes(training: Training) -> list[str]:
    """Returns notes on examples with equal content; they are not private, and are printed but never written."""
    if not training.plan.privacy.private:
        return []
    duplicates = training.count_duplicates()
    cases = (
        (
            duplicates.examples,
            f"another training example ({duplicates.apart} of them as an example of another client)",
            "epsilon covers each copy alone",
        ),
        (duplicates.tested, "a test example", "test metrics reveal these examples without noise"),
    )
    return [
        f"{count} training examples have the same content as {other}; if both belong to one person, {meaning} (this "
        "number is private, and is printed only here)"
        for count, other, meaning in cases
        if count
    ]


def _build(config: Config, folder: RunFolder, *, resumed: bool, extend: Path | None) -> Training:
    """Builds the run in its folder; releases the folder if that fails."""
    from fedpriv.config import build, to_yaml

    try:
        if not resumed:
            folder.write("config.yaml", to_yaml(config).encode())
        with spinner(config.rounds):
            training = build(with_launched_engine(config), folder, resume=resumed, extend=extend)
        if extend is not None and config.log.csv and (extend / "metrics.csv").exists():
            folder.write("metrics.csv", (extend / "metrics.csv").read_bytes())
        return training
    except BaseException:
        folder.abandon()
        raise


def _iterate(config: Config, training: Training, folder: Path, signals: Signals) -> Result:
    """Trains all rounds and writes each to the sinks; after a signal it saves and raises `KeyboardInterrupt`."""
    from fedpriv.config import to_yaml
    from fedpriv.evaluation import format_constraint_verdict, metrics
    from fedpriv.reports import sinks

    done = training.progress.round
    if config.log.tensorboard:
        board = sinks.TensorBoard(_private_folder(folder / "tb"), done)
    else:
        board = None
    evaluate = training.measures.evaluate
    if evaluate is None:
        columns = []
    else:
        columns = [*evaluate.names(training.population.params[0])]
    if config.log.client_tests:
        columns += [name for name in metrics.list_report_names() if name.startswith("client_")]
    writers: list[sinks.Csv | sinks.TensorBoard | sinks.ProgressDisplay] = []
    if config.log.csv:
        writers.append(sinks.Csv(folder / "metrics.csv", done, columns))
    if board:
        writers.append(board)
    writers.append(sinks.ProgressDisplay(config.rounds, done, err))
    if board and not done:
        board.text("config", f"```yaml\n{to_yaml(config)}```")
        board.text("privacy", f"planned: {training.plan.spent()}")
    try:
        with signals.patiently():
            for reports in training.in_groups():
                for report in reports:
                    for sink in writers:
                        sink.write(report)
                if training.any_process(signals.pending > 0):
                    for sink in writers:
                        sink.close()
                    training.save()
                    raise KeyboardInterrupt
        result = training.result()
        if board:
            board.text("privacy", str(result.spent), result.rounds)
            verdict = format_constraint_verdict(result.measures)
            if verdict:
                board.text("constraints", verdict, result.rounds)
        return result
    finally:
        for sink in writers:
            sink.close()


def _print_result(facts: dict[str, Any], folder: RunFolder, *, as_json: bool) -> None:
    """Draws the picture of a run, and prints its result."""
    from fedpriv.reports.picture import draw
    from fedpriv.reports.report import Run

    path = folder.path
    run = Run.read(path)
    picture = path / "report.png"
    draw(run, picture)
    if (path / "tb").exists():
        board = f"{_tensorboard_command()} --logdir {path / 'tb'}"
    else:
        board = None
    if as_json:
        print_json({**facts, "folder": str(path), "picture": str(picture), "tensorboard": board})
        return
    print_rows({**run.rows(), "picture": str(picture), "TensorBoard": board or "off"})


def _private_folder(folder: Path) -> Path:
    """Creates a folder that only its owner can read, for files with permissions set by other libraries."""
    folder.mkdir(0o700, exist_ok=True)
    folder.chmod(0o700)
    return folder


def _tensorboard_command() -> str:
    """Returns the command of TensorBoard as the user can type it in the current folder."""
    if shutil.which("tensorboard"):
        return "tensorboard"
    return os.path.relpath(Path(sys.executable).with_name("tensorboard"))
