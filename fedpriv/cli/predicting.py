"""Predicts the rows of a CSV file with the model of a finished run.

The model has already been released. Predictions are computed from the model alone and cost no epsilon. The new rows are
read and not stored.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedpriv.cli.printing import print_json, print_rows
from fedpriv.clients import PublicDataInfo
from fedpriv.config.building import make_model
from fedpriv.config.files import load_config
from fedpriv.config.schema import Config
from fedpriv.config.standardizing import read_scales
from fedpriv.data.csv_file import read_headings, read_table
from fedpriv.data.table_encoder import TableEncoder, check_columns
from fedpriv.errors import ConfigError, FedprivError
from fedpriv.reports.report import Run
from fedpriv.runs import find_config_file, raise_problems
from fedpriv.storage import write_whole

_WITH_CHANCES = ("logistic", "cross_entropy")  # losses with logits as outputs
_ENCODING = tuple(option.name for option in fields(TableEncoder) if option.name != "label")


def predict(folder: Path, table: Path, output: Path | None, *, as_json: bool) -> None:
    """Writes predictions for the rows of a CSV file, or prints them.

    Args:
        folder: Folder of a finished run on a CSV file.
        table: CSV file with the columns of the features; its other columns are copied, the label is not needed.
        output: CSV file to write; None prints it.
        as_json: Print one JSON object.

    Raises:
        ConfigError: If the run's data are not a CSV file, or the new file lacks a column.
        FedprivError: If the run is unfinished or altered, or a value cannot be encoded.
    """
    run = Run.read(folder)
    raise_problems(run.findings)
    config = load_config(find_config_file(folder))
    if config.data.name != "csv":
        raise ConfigError(
            "data.name",
            config.data.name,
            "is not supported by predict, which needs a run on csv data: load model.pt in Python instead",
        )
    encoder = _encoder(config, folder)
    headings = read_headings(str(table))
    check_columns(str(table), encoder.feature_columns, headings)
    rows = read_table(str(table), headings)
    inputs = encoder.inputs(rows)
    outputs = _outputs(config, folder, inputs, encoder.n_classes)
    has_chances = config.loss.name in _WITH_CHANCES
    columns = {**rows.columns, **_predictions(outputs, encoder, has_chances=has_chances)}
    text = _csv(columns)
    if output is None:
        if as_json:
            print_json({"rows": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]})
        else:
            print(text, end="")  # noqa: T201 - a table for a pipe
        return
    write_whole(output, text.encode())
    facts = {"predictions": str(output), "rows": str(len(inputs)), "privacy": "guarantee of the run: " + run.privacy}
    if as_json:
        print_json(facts)
    else:
        print_rows(facts)


def _encoder(config: Config, folder: Path) -> TableEncoder:
    """Returns the encoder of a run, with the centres and scales that it released, if any.

    Raises:
        FedprivError: If they are lost.
    """
    if config.data.standardize is not None:
        released = read_scales(folder)
        if released is None:
            raise FedprivError(
                f"{folder} has no standardize/scales.json, but its data were standardised: restore the file"
            )
        scales = {**(config.data.options.get("scales") or {}), **released[0]}
        config = config.model_copy(update={"data": config.data.model_copy(update={"scales": scales})})
    options: Mapping[str, Any] = config.data.options
    given = {name: options[name] for name in _ENCODING if options.get(name) is not None}
    return TableEncoder(options["label"], **given)


def _outputs(config: Config, folder: Path, inputs: Tensor, n_classes: int | None) -> Tensor:
    """Returns the outputs of the run's model, `[n, k]`.

    Raises:
        FedprivError: If there is no model.
    """
    path = folder / "model.pt"
    if not path.exists():
        raise FedprivError(f"{folder} contains no model.pt: finish the run (fedpriv resume {folder})")
    info = PublicDataInfo((len(inputs),), tuple(inputs.shape[1:]), n_classes)
    model, _ = make_model(config, info)
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    model.eval()
    dtype = next(model.parameters()).dtype
    with torch.no_grad():
        outputs = model(inputs.to(dtype))
    return outputs.double().reshape(len(inputs), -1)


def _predictions(outputs: Tensor, encoder: TableEncoder, *, has_chances: bool) -> dict[str, list[str]]:
    """Returns the columns of predictions: a number in the label's units, or a class with the probability of each."""
    if encoder.classes is None:
        low, high = encoder.numbers[encoder.label]
        values = (outputs[:, 0] + 1) / 2 * (high - low) + low
        return {f"predicted {encoder.label}": [f"{value:.6g}" for value in values.tolist()]}
    classes = [str(name) for name in encoder.classes]
    if outputs.shape[1] == 1:
        chance = torch.sigmoid(outputs)
        chances = torch.cat([1 - chance, chance], 1)
    else:
        chances = torch.softmax(outputs, 1)
    columns = {f"predicted {encoder.label}": [classes[index] for index in chances.argmax(1).tolist()]}
    if not has_chances:
        return columns
    for index, name in enumerate(classes):
        columns[f"p({name})"] = [f"{value:.4f}" for value in chances[:, index].tolist()]
    return columns


def _csv(columns: Mapping[str, Sequence[str]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return file.getvalue()
