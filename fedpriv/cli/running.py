"""Train from a configuration into a folder, and report."""

from __future__ import annotations

import math
import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.markup import escape

from fedpriv.cli.printing import busy, err, print_json, print_rows
from fedpriv.cli.processes import as_launched
from fedpriv.cli.signals import Signals
from fedpriv.storage import strict_json

if TYPE_CHECKING:
    from fedpriv.config import Config
    from fedpriv.runs.results import Result
    from fedpriv.runs.training import Training
    from fedpriv.storage.folder import RunFolder

_BROKEN = 3  # exit code: everything is written, but what was trained is of no use


def run(
    config: Config,
    folder: RunFolder,
    *,
    again: str,
    resumed: bool = False,
    fresh_noise: bool = False,
    extend: Path | None = None,
    as_json: bool = False,
) -> None:
    """Train to the end with a progress bar, and report. After a signal the run can be resumed.

    Args:
        config: The configuration.
        folder: The run's folder, closed at the end.
        again: The command that resumes the run, to be printed if it is stopped.
        resumed: Whether to go on with the run in the folder.
        fresh_noise: See `fedpriv resume`.
        extend: Folder of the finished run that this one extends; None for any other run.
        as_json: Print one JSON object.

    Raises:
        typer.Exit: a signal stopped the run, or (code 3) the model or the test loss is not finite in the end.
    """
    from fedpriv.config.building import at_start
    from fedpriv.errors import PromiseWarning, counted

    with folder, Signals() as signals, warnings.catch_warnings():
        warnings.simplefilter("ignore", PromiseWarning)  # said below, on the terminal
        training = _build(config, folder, resumed=resumed, fresh_noise=fresh_noise, extend=extend)
        clients, rounds = counted(training.network.n_clients, "client"), counted(config.rounds, "round")
        err.print(f"{training.strategy.name}: {clients}, {rounds}, in {folder.path}")
        if extend is not None:
            err.print(f"goes on from round {training.progress.round} of {extend}, whose releases are counted here, too")
        err.print(f"planned: {escape(str(training.plan.spent()))}")
        for warning in at_start(config, training):
            err.print(f"[bold yellow]warning:[/] {escape(warning)}")
        for note in _repeats(training):
            err.print(f"[yellow]note:[/] {note}")
        try:
            result = _iterate(config, training, folder.path, signals)
        except KeyboardInterrupt:
            try:
                err.print(f"\nstopped after round {training.progress.round}; go on with: {again}")
            except OSError:  # the terminal is gone; what it did not take would make another exit code
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
            raise typer.Exit(signals.exit_code) from None
        result.save(folder.path, nodes=config.log.save_node_models)
        _report(training.linked(result), folder, as_json=as_json)
        if result.broken:
            raise typer.Exit(_BROKEN)


def follow(config: Config, *, resumed: bool = False, fresh_noise: bool = False) -> None:
    """Take part in a run that another process keeps and reports; arguments as of `run`.

    Raises:
        typer.Exit: a signal stopped the run, in any process.
    """
    from fedpriv.config import build
    from fedpriv.errors import PromiseWarning

    with Signals() as signals, warnings.catch_warnings():
        warnings.simplefilter("ignore", PromiseWarning)
        training = build(as_launched(config), resume=resumed, fresh_noise=fresh_noise)
        _repeats(training)
        with signals.patiently():
            for _ in training:
                if training.anywhere(signals.asked > 0):
                    training.save()
                    raise typer.Exit(signals.exit_code)
        training.result()


def _repeats(training: Training) -> list[str]:
    """What the owner should hear of examples of equal content, here and in no file: it is not private."""
    if not training.plan.privacy.private:
        return []
    found = training.repeats()
    return [
        f"{count} training examples equal {what} in content; if they are one person's, {meaning} (shown here only)"
        for count, what, meaning in (
            (found.examples, f"another one ({found.apart} of them one of another client)", "epsilon is for each"),
            (found.tested, "a test example", "every test metric is an answer about it without noise"),
        )
        if count
    ]


def _build(config: Config, folder: RunFolder, *, resumed: bool, fresh_noise: bool, extend: Path | None) -> Training:
    from fedpriv.config import build, to_yaml

    try:
        if not resumed:
            folder.write("config.yaml", to_yaml(config).encode())
        with busy(config.rounds):
            training = build(as_launched(config), folder, resume=resumed, fresh_noise=fresh_noise, extend=extend)
        if extend is not None and config.log.csv and (extend / "metrics.csv").exists():
            folder.write("metrics.csv", (extend / "metrics.csv").read_bytes())
        return training
    except BaseException:
        folder.abandon()
        raise


def _iterate(config: Config, training: Training, folder: Path, signals: Signals) -> Result:
    from fedpriv.config import to_yaml
    from fedpriv.evaluation import metrics
    from fedpriv.evaluation.verdict import constraint_verdict
    from fedpriv.reports import sinks

    done = training.progress.round
    # lines past the checkpoint are as they will be again, unless no release past it will be
    keep = math.inf if training.ledger.replays else done
    if config.log.tensorboard:
        board = sinks.TensorBoard(_private(folder / "tb"), done)
    else:
        board = None
    evaluate = training.measures.evaluate
    if evaluate is None:
        tested = []
    else:
        tested = evaluate.names(training.population.params[0])
    of_clients = [name for name in metrics.numbers() if name.startswith("client_") and config.log.client_tests]
    writers = [
        sinks.Jsonl(folder / "metrics.jsonl", keep),
        *([sinks.Csv(folder / "metrics.csv", keep, [*tested, *of_clients])] if config.log.csv else []),
        *([board] if board else []),
        sinks.ProgressDisplay(config.rounds, done, err),
    ]
    if board and not done:
        board.text("config", f"```yaml\n{to_yaml(config)}```")
        board.text("privacy", f"planned: {training.plan.spent()}")
    try:
        with signals.patiently():
            for report in training:
                for sink in writers:
                    sink.write(report)
                if training.anywhere(signals.asked > 0):
                    for sink in writers:
                        sink.close()
                    training.save()
                    raise KeyboardInterrupt
        result = training.result()
        if board:
            board.text("privacy", str(result.spent), result.rounds)
            if verdict := constraint_verdict(result.measures):
                board.text("constraints", verdict, result.rounds)
        return result
    finally:
        for sink in writers:
            sink.close()


def _report(facts: dict[str, Any], folder: RunFolder, *, as_json: bool) -> None:
    from fedpriv.reports.picture import draw
    from fedpriv.reports.report import Run

    path = folder.path
    folder.write("result.json", (strict_json.dumps(facts, indent=2) + "\n").encode())
    found = Run.read(path)
    draw(found, path / "report.png")
    if (path / "tb").exists():
        board = f"{_tensorboard()} --logdir {path / 'tb'}"
    else:
        board = None
    if as_json:
        places = {"folder": str(path), "picture": str(path / "report.png"), "tensorboard": board}
        print_json({**facts, **places})
        return
    print_rows({**found.rows(), "picture": str(path / "report.png"), "TensorBoard": board or "off"})


def read_key(path: Path) -> bytes:
    """The key in a file that `fedpriv key` printed.

    Raises:
        ConfigError: the file holds no key.
    """
    from fedpriv.errors import ConfigError

    try:
        key = bytes.fromhex(path.read_text(encoding="ascii"))
    except ValueError:
        key = b""
    if len(key) != 32:
        raise ConfigError("--verify", str(path), "holds no key: 64 hexadecimal digits, as fedpriv key prints them")
    return key


def _private(folder: Path) -> Path:
    """A folder for its owner alone, whose files others write as they like."""
    folder.mkdir(0o700, exist_ok=True)
    folder.chmod(0o700)
    return folder


def _tensorboard() -> str:
    """The command as the user can type it here."""
    beside = Path(sys.executable).with_name("tensorboard")
    if shutil.which("tensorboard"):
        return "tensorboard"
    return os.path.relpath(beside)
