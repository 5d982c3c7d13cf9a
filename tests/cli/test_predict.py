"""`fedpriv predict`: rows of a new file by the model of a run, as plain torch computes them."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import error_line, fedpriv

ROWS = 300


def table(path: Path, seed: int, *, label: str | None = "outcome") -> Path:
    stream = np.random.default_rng(seed)
    lines = ["id,age,smoker" + (f",{label}" if label else "")]
    for index in range(ROWS):
        age, smoker = stream.integers(20, 90), stream.choice(["no", "yes"])
        ill = stream.random() < 1 / (1 + math.exp(-(age - 55) / 8))
        values = [str(index), str(age), smoker]
        if label == "outcome":
            values.append("ill" if ill else "well")
        elif label:
            values.append(f"{age / 2:.2f}")
        lines.append(",".join(values))
    path.write_text("\n".join(lines) + "\n")
    return path


def trained(
    folder: Path,
    *,
    label: str = "outcome",
    loss: str = "logistic",
    model: str = "logistic_regression",
    centered: bool = False,
) -> Path:
    train, test = table(folder / "train.csv", 1, label=label), table(folder / "test.csv", 2, label=label)
    numbers = {"age": [0, 100]} | ({} if label == "outcome" else {label: [0, 50]})
    classes = "classes: [well, ill], " if label == "outcome" else ""
    config = folder / "run.yaml"
    config.write_text(
        f"data: {{name: csv, train: {train}, test: {test}, label: {label}, {classes}numbers: {json.dumps(numbers)}, "
        f'categories: {{smoker: ["no", "yes"]}}, centered: {json.dumps(centered)}, '
        "partition: {kind: iid, n_clients: 2}}\n"
        f"model: {model}\nloss: {loss}\nstrategy: {{name: fedavg, learning_rate: 1}}\n"
        "privacy: {epsilon: 8}\nrounds: 10\nlog: {tensorboard: false}\n"
    )
    done = fedpriv("train", str(config), "--out", str(folder / "run"))
    assert done.exit_code == 0, done.stderr
    return folder / "run"


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


@pytest.mark.parametrize("centered", [False, True])
def test_predictions_match_model_weights(centered: bool, tmp_path: Path):
    run = trained(tmp_path, centered=centered)
    new = table(tmp_path / "new.csv", 3, label=None)
    rows = rows_of(fedpriv("predict", str(run), str(new)).stdout)
    assert [row["id"] for row in rows] == [str(index) for index in range(ROWS)], "other columns are copied"
    weight = torch.load(run / "model.pt", weights_only=True)["linear.weight"][0].tolist()
    for row in rows[:50]:
        flags = [(row["smoker"] == value) - centered / 2 for value in ("no", "yes")]
        features = [2 * float(row["age"]) / 100 - 1, *flags, 1]
        score = sum(w * x for w, x in zip(weight, features, strict=True))
        assert float(row["p(ill)"]) == pytest.approx(1 / (1 + math.exp(-score)), abs=2e-4)
        assert row["predicted outcome"] == ("ill" if score > 0 else "well")


def test_predict_out_file_equals_json(tmp_path: Path):
    run, new, out = trained(tmp_path), table(tmp_path / "new.csv", 3), tmp_path / "p.csv"
    done = fedpriv("predict", str(run), str(new), "--out", str(out))
    assert done.exit_code == 0 and "guarantee of the run: epsilon=8" in done.stdout
    listed = json.loads(fedpriv("predict", str(run), str(new), "--json").stdout)["rows"]
    assert listed == rows_of(out.read_text())


def test_predict_numbers_in_original_units(tmp_path: Path):
    run = trained(tmp_path, label="stay", loss="mse", model="linear_regression")
    rows = rows_of(fedpriv("predict", str(run), str(table(tmp_path / "new.csv", 3, label=None))).stdout)
    weight = torch.load(run / "model.pt", weights_only=True)["linear.weight"][0].tolist()
    first = rows[0]
    features = [2 * float(first["age"]) / 100 - 1, first["smoker"] == "no", first["smoker"] == "yes", 1]
    scaled = sum(w * x for w, x in zip(weight, features, strict=True))
    assert float(first["predicted stay"]) == pytest.approx((scaled + 1) / 2 * 50, abs=1e-2)


def test_predict_hinge_loss_has_no_probabilities(tmp_path: Path):
    run = trained(tmp_path, loss="hinge", model="linear_svm")
    rows = rows_of(fedpriv("predict", str(run), str(table(tmp_path / "new.csv", 3, label=None))).stdout)
    assert [*rows[0]] == ["id", "age", "smoker", "predicted outcome"]


def test_predict_invalid_rows_raise(tmp_path: Path):
    run = trained(tmp_path)
    (tmp_path / "gap.csv").write_text("age,smoker\n30,no\n,yes\n")
    (tmp_path / "more.csv").write_text("age,smoker\n30,no,7\n")
    assert "more values than the heading line has names" in error_line("predict", str(run), str(tmp_path / "more.csv"))
    (tmp_path / "less.csv").write_text("age\n30\n")
    assert "gap.csv, row 3: age = ''" in error_line("predict", str(run), str(tmp_path / "gap.csv"))
    assert "is not a column of" in error_line("predict", str(run), str(tmp_path / "less.csv"))
    (run / "model.pt").unlink()
    assert "finish the run" in error_line("predict", str(run), str(tmp_path / "train.csv"))
