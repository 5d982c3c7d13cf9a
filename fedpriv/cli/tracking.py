"""Sends the rounds of a run folder to an experiment tracker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedpriv.cli.printing import print_rows
from fedpriv.errors import ConfigError
from fedpriv.reports.report import Run
from fedpriv.reports.sinks import MLflow, WandB
from fedpriv.reports.tags import list_scalars
from fedpriv.runs import read_metrics


def send_run(folder: Path, project: str | None, experiment: str | None) -> None:
    """Sends a run, finished or not, to a project of Weights & Biases or to an experiment of MLflow.

    Raises:
        ConfigError: If both or none are named, or the library is not installed.
        FedprivError: If the folder holds no run, or the tracker does not accept it.
    """
    run = Run.read(folder)
    name = folder.resolve().name
    settings = _flat(run.config)
    if project is not None and experiment is None:
        tracker = WandB(project, name, settings=settings)
    elif experiment is not None and project is None:
        tracker = MLflow(experiment, name, settings=settings)
    else:
        raise ConfigError(
            "--wandb, --mlflow", None, "exactly one of them is required: --wandb PROJECT or --mlflow EXPERIMENT"
        )
    target = run.config["privacy"]["epsilon"]
    rows = read_metrics(folder / "metrics.jsonl")
    for row in rows:
        epsilon = row.pop("epsilon")
        metrics = {name: value for name, value in row.items() if name not in ("round", "releases", "head")}
        numbers = {metric: value for metric, value in metrics.items() if value is not None}
        tracker.add(row["round"], list_scalars(numbers, float(epsilon), target))
    tracker.close()
    print_rows({"rounds": str(len(rows)), "run": name, "sent to": project or experiment or ""})


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested settings with dotted names, as on the command line."""
    flat = dict[str, Any]()
    for name, value in settings.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat
