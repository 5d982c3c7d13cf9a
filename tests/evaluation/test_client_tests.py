"""A public test set of each client: how well every one of them is served."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset
from typer.testing import CliRunner

import fedpriv as fp
from fedpriv.cli import app
from fedpriv.errors import PrivacyError
from fedpriv.evaluation.client_tests import summarize_quantiles
from fedpriv.reports import picture
from fedpriv.reports.report import Run

CLASSES, N = 3, 5
RUN = str(Path(__file__).parents[1] / "run.yaml")


def data(n: int, seed: int) -> TensorDataset:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=draw)
    y = (x[:, :CLASSES] + seed * torch.eye(CLASSES)[seed % CLASSES]).argmax(1)
    return TensorDataset(x, y)


TESTS = [data(7 + i, 10 + i) for i in range(N)]


def training(strategy: fp.Strategy | None = None, **options: Any) -> fp.Training:
    torch.manual_seed(0)
    clients = fp.make_clients(nn.Linear(4, CLASSES), nn.CrossEntropyLoss(), [data(20, i) for i in range(N)])
    settings = {"rounds": 4, "seed": 0, "secret_seed": 1, "client_tests": TESTS, **options}
    return fp.Training(clients, strategy or fp.fedavg(0.5), fp.Privacy(epsilon=5), **settings)


def accuracies(models: list[nn.Module]) -> np.ndarray[Any, Any]:
    return np.array(
        [
            float((model(test.tensors[0]).argmax(1) == test.tensors[1]).double().mean())
            for model, test in zip(models, TESTS, strict=True)
        ]
    )


def expected(models: list[nn.Module]) -> dict[str, float]:
    each = accuracies(models)
    p10, median, p90 = np.quantile(each, [0.1, 0.5, 0.9])
    low, high = each.min(), each.max()
    return {"min": low, "p10": p10, "median": median, "p90": p90, "max": high, "mean": each.mean()}


def test_client_tests_of_one_model() -> None:
    run = training(test=data(30, 99))
    *_, last = run
    result = run.result()
    wanted = expected([result.model] * N)
    assert result.measures["client_test_accuracy"] == pytest.approx(wanted)
    assert {part: last.metrics[f"client_test_accuracy_{part}"] for part in wanted} == pytest.approx(wanted)
    assert wanted["min"] < wanted["max"], "else there is nothing to see"
    assert set(result.to_json()["client_test_loss"]) == set(wanted)
    assert result.test_accuracy != pytest.approx(wanted["mean"])


def test_client_tests_of_node_models() -> None:
    run = training(fp.decentralized_sgd(0.5), network=fp.Graph(nx.path_graph(N)))
    list(run)
    result, models = run.result(), list[nn.Module]()
    for row in result.node_params:
        models.append(nn.Linear(4, CLASSES))
        nn.utils.vector_to_parameters(row, models[-1].parameters())
    assert result.measures["client_test_accuracy"] == pytest.approx(expected(models))


def test_client_tests_joined_as_test_data() -> None:
    run = training()
    list(run)
    result, whole = run.result(), ConcatDataset(TESTS)
    right = [int(result.model(x[None]).argmax()) == int(y) for x, y in whole]
    assert result.test_accuracy == pytest.approx(sum(right) / len(whole))


def test_client_without_test_set_left_out() -> None:
    some = training(client_tests=[*TESTS[:2], None, None, None])
    list(some)
    found = some.result()
    each = accuracies([found.model] * N)[:2]
    assert found.measures["client_test_accuracy"]["mean"] == pytest.approx(each.mean())
    bare = training(client_tests=None)
    list(bare)
    assert torch.equal(found.params, bare.result().params)


def test_stop_on_worst_client_accuracy() -> None:
    run = training(stop=fp.Stop("client_test_accuracy_min", 1, min_delta=0.99, min_rounds=0), rounds=6)
    assert len(list(run)) == 2
    assert run.result().ended == "metric"


def test_invalid_client_tests_raise() -> None:
    with pytest.raises(fp.ConfigError, match="client_tests = 2: must have one entry for each of the 5 clients"):
        training(client_tests=TESTS[:2])
    with pytest.raises(fp.ConfigError, match="contains no test set"):
        training(client_tests=[None] * N)
    with pytest.raises(fp.DataError, match="the test data are empty"):
        training(client_tests=[*TESTS[:4], Subset(TESTS[0], [])])


def test_client_test_with_training_examples_raises() -> None:
    """Every metric would be a query result about training examples without noise."""
    own = [data(20, i) for i in range(N)]
    theirs = Subset(own[2], [1, 2, 3])
    clients = fp.make_clients(nn.Linear(4, CLASSES), nn.CrossEntropyLoss(), own)
    with pytest.raises(PrivacyError, match="3 test examples are also training examples"):
        fp.train(clients, fp.fedavg(1), fp.Privacy(epsilon=1), rounds=1, client_tests=[*TESTS[:4], theirs])
    copies = [data(20, i) for i in range(N)]
    clients = fp.make_clients(nn.Linear(4, CLASSES), nn.CrossEntropyLoss(), own)
    with pytest.raises(PrivacyError, match="are copies of the training examples"):
        fp.train(clients, fp.fedavg(1), fp.Privacy(epsilon=1), rounds=1, test=data(9, 99), client_tests=copies)


def test_spread_interpolates_quantiles() -> None:
    assert summarize_quantiles([0.0, 1.0]) == {"min": 0, "p10": 0.1, "median": 0.5, "p90": 0.9, "max": 1, "mean": 0.5}
    assert set(summarize_quantiles([0.25]).values()) == {0.25}


@pytest.fixture
def writers(tmp_path: Path) -> Path:
    """Three writers; each one's images are of one class in the test data, which a model learns or does not."""
    draw = np.random.default_rng(0)
    folder = tmp_path / "femnist"
    folder.mkdir()
    writers = np.repeat([3, 5, 8], 12)
    split = np.tile(np.repeat([0, 1], [8, 4]), 3).astype(np.uint8)
    images = draw.integers(0, 256, (36, 28, 28), dtype=np.uint8)
    np.savez(folder / "few.npz", images=images, labels=draw.integers(0, 3, 36), writers=writers, split=split)
    return folder


def test_femnist_client_tests_by_writer(writers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    settings = [
        f"data={{name: femnist, root: '{writers}', flat: true, partition: {{kind: by_writer, n_clients: null}}}}",
        *("log.client_tests=true", "log.csv=true", "rounds=3", "privacy.epsilon=20", "log.save_node_models=false"),
        "strategy={name: fedavg, learning_rate: 1}",
    ]
    done = CliRunner().invoke(app, ["train", RUN, "--out", str(folder), *settings])
    assert done.exit_code == 0, done.output
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    split = fp.data.load("femnist", root=str(writers), flat=True)
    assert split.test_writers is not None
    assert split.test_writers.tolist() == [3] * 4 + [5] * 4 + [8] * 4
    state, each = torch.load(folder / "model.pt"), list[float]()
    (weight,) = state.values()
    for writer in (3, 5, 8):
        own = Subset(split.test, (split.test_writers == writer).nonzero()[:, 0].tolist())
        x, y = next(iter(DataLoader(own, batch_size=len(own))))
        each.append(float(((x @ weight.T).argmax(1) == y).double().mean()))
    assert last["client_test_accuracy_min"] == pytest.approx(min(each))
    assert last["client_test_accuracy_mean"] == pytest.approx(sum(each) / 3) == pytest.approx(last["test_accuracy"])
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    assert float(rows[-1]["client_test_accuracy_p10"]) == last["client_test_accuracy_p10"]
    assert "of the worst client" in done.stderr
    assert "clients' test accuracy" in done.stdout
    assert "10 % of clients below" in done.stdout
    events = EventAccumulator(str(folder / "tb"))
    events.Reload()
    assert events.Scalars("client/test_accuracy_min")[-1].value == pytest.approx(last["client_test_accuracy_min"])
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    picture.draw(Run.read(folder), tmp_path / "picture.png")
    labels = drawn[0].axes[0].get_legend_handles_labels()[1]
    worst = (3, 5, 8)[each.index(min(each))]
    assert labels == ["clients, 10 % to 90 %", f"the worst client, at the end writer {worst}"]
    (folder / "result.json").unlink()
    assert Run.read(folder).to_json()["client_test_accuracy"]["min"] == last["client_test_accuracy_min"]


def test_client_tests_without_owners_raise(tmp_path: Path) -> None:
    command = [
        "train",
        str(Path(__file__).parents[1] / "run.yaml"),
        "--out",
        str(tmp_path / "run"),
        "log.client_tests=true",
    ]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    assert "needs the client of each test example, which digits does not give" in done.output
