"""A run from its configuration to its folder: claim, build, iterate, report."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.markup import escape

from fedpriv.cli.printing import busy, err, print_json, print_rows

if TYPE_CHECKING:
    from fedpriv.config import Config
    from fedpriv.results import Result
    from fedpriv.training import Training


def run(
    config: Config, folder: Path, *, resumed: bool = False, fresh_noise: bool = False, as_json: bool = False
) -> None:
    """Train until the end, with progress, and report; an interrupt leaves a run that can be resumed."""
    from fedpriv.config.advice import at_start

    training = _build(config, folder, resumed=resumed, fresh_noise=fresh_noise)
    done = training.progress.round
    err.print(f"{training.strategy.name}: {len(training.population)} clients, {config.rounds} rounds, in {folder}")
    err.print(f"planned: {escape(str(training.plan.spent()))}")
    for warning in at_start(config, training):
        err.print(f"[bold yellow]warning:[/] {escape(warning)}")
    for note in _repeats(training):
        err.print(f"[yellow]note:[/] {note}")
    try:
        result = _iterate(config, training, folder, keep=(done if fresh_noise else math.inf) if resumed else 0)
    except KeyboardInterrupt:
        err.print(f"\nstopped after round {training.progress.round}; go on with: fedpriv resume {folder}")
        raise typer.Exit(130) from None
    _report(result, folder, save_nodes=config.log.save_node_models, as_json=as_json)


def _repeats(training: Training) -> list[str]:
    """What the owner should hear of examples of equal content, here and in no file: it is not private."""
    if not training.plan.privacy.private:
        return []
    found = training.repeats()
    return [
        f"{count} training examples equal {what} in content; if they are one person's, {meaning} (shown here only)"
        for count, what, meaning in (
            (found.examples, f"another one ({found.apart} of them one of another client)", "epsilon says less of it"),
            (found.tested, "a test example", "every test metric is an answer about it without noise"),
        )
        if count
    ]


def _build(config: Config, folder: Path, *, resumed: bool, fresh_noise: bool) -> Training:
    from fedpriv.config import build, to_yaml

    try:
        with busy(config.rounds):
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
        print_json({**result.to_json(), **places})
        return
    print_rows({**found.rows(), "picture": str(folder / "report.png"), "TensorBoard": board or "off"})


def claim_folder(folder: Path | None, name: str) -> Path:
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


def _tensorboard() -> str:
    """The command as the user can type it here."""
    beside = Path(sys.executable).with_name("tensorboard")
    return "tensorboard" if shutil.which("tensorboard") else os.path.relpath(beside)
