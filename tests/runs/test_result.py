"""Results of finished runs in Python: text, HTML card, table, plot and files; and the printed progress."""

from __future__ import annotations

import gc
import inspect
import json
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset

import fedpriv
from fedpriv import data, models
from fedpriv.errors import PromiseWarning
from fedpriv.evaluation.evaluator import Evaluator
from fedpriv.runs.history import History
from fedpriv.runs.train import train
from fedpriv.runs.training import Training

DIGITS = data.load("digits", flat=True)
ROUNDS = 4


def clients(n: int = 3, model: nn.Module | None = None) -> list[fedpriv.Client]:
    parts = data.partition("iid", data.labels_of(DIGITS.train), n, torch.Generator().manual_seed(1))
    owners = [Subset(DIGITS.train, part.tolist()) for part in parts]
    return fedpriv.make_clients(model or models.SoftmaxRegression(64, 10), nn.functional.cross_entropy, owners)


def make_privacy(**changes: object) -> fedpriv.Privacy:
    return fedpriv.Privacy(**{"epsilon": 3, "delta": 1e-5, **changes})


@pytest.fixture(scope="module")
def result() -> fedpriv.Result:
    options = {"rounds": ROUNDS, "evaluate_every": 2, "seed": 0}
    return train(clients(), fedpriv.inexact_admm(), make_privacy(), test=DIGITS.test, **options)


def test_folder_accepts_string(result: fedpriv.Result, tmp_path: Path):
    result.save(str(tmp_path / "saved"))
    assert (tmp_path / "saved" / "model.pt").exists()
    run, sink = str(tmp_path / "run"), fedpriv.sinks.Jsonl(str(tmp_path / "lines"))
    train(clients(), fedpriv.inexact_admm(), make_privacy(), rounds=1, test=DIGITS.test, folder=run, sinks=[sink])
    assert (tmp_path / "run" / "ledger.jsonl").exists()
    assert len((tmp_path / "lines").read_text().splitlines()) == 1


def test_result_repr_is_one_line(result: fedpriv.Result):
    assert repr(result) == f"<Result of {result}>"
    assert "\n" not in repr(result)
    assert "epsilon=3 (delta=1e-5, unit=sample" in repr(result)
    assert "tensor" not in repr(result)


def test_result_card_shows_epsilon_and_escapes_html(result: fedpriv.Result):
    card = replace(result, strategy="<script>")._repr_html_()
    assert "&lt;script&gt;" in card
    assert "<script>" not in card
    assert str(result.spent) in card
    assert f"{result.test_accuracy:.2%}" in card


@pytest.mark.parametrize("has_pandas", [True, False])
def test_history_same_with_and_without_pandas(
    result: fedpriv.Result, has_pandas: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_pandas:
        monkeypatch.setitem(sys.modules, "pandas", None)  # as where it is not installed
    history = result.history
    assert [row["round"] for row in history] == [1, 2, 3, 4]
    assert history["round"].tolist() == [1, 2, 3, 4]
    assert np.isnan(history["test_accuracy"]).tolist() == [True, False, True, False]
    assert history[-1]["test_accuracy"] == result.test_accuracy
    assert history[0]["epsilon"] < history[-1]["epsilon"] <= 3
    assert history[["round", "epsilon"]].tail(2)[0].keys() == {"round", "epsilon"}
    assert history.dropna("test_accuracy")["round"].tolist() == [2, 4]
    heading, *lines = str(history).splitlines()
    assert heading.split()[:2] == ["round", "epsilon"]
    assert [line.split()[0] for line in lines] == ["1", "2", "3", "4"]
    with pytest.raises(fedpriv.ConfigError, match="has no such column; its columns are round, epsilon"):
        history["accuracy"]
    if has_pandas:
        assert history.to_pandas()["test_accuracy"].notna().tolist() == [False, True, False, True]
    else:
        with pytest.raises(fedpriv.FedprivError, match="pip install pandas"):
            history.to_pandas()


def test_long_history_prints_ends() -> None:
    table = History([{"round": at, "epsilon": at / 8} for at in range(1, 101)])
    lines = str(table).splitlines()
    assert len(lines) == 23
    assert (lines[1].split()[0], lines[11].split()[0], lines[21].split()[0]) == ("1", "...", "100")
    assert lines[-1] == "(100 rounds)"
    assert table._repr_html_().count("<tr>") == 22


def test_history_plots_columns(result: fedpriv.Result) -> None:
    from matplotlib import pyplot

    pyplot.switch_backend("agg")
    figure = result.history.plot("epsilon", "test_accuracy")
    assert [axes.get_ylabel() for axes in figure.axes] == ["epsilon", "test accuracy"]
    assert figure.axes[1].lines[0].get_xdata().tolist() == [2, 4]
    pyplot.close(figure)


def test_plot_draws_rounds_within_figure(result: fedpriv.Result) -> None:
    from matplotlib import pyplot

    pyplot.switch_backend("agg")
    figure = result.plot()
    above, below = figure.axes
    assert above.lines[0].get_xdata().tolist() == [2, 4]
    assert below.lines[0].get_ydata().tolist() == [0, *(row["epsilon"] for row in result.reports)]
    figure.canvas.draw()
    texts = [above.title, *above.texts, above._left_title]
    assert str(result.spent).replace(" ", "") in "".join(text.get_text() for text in texts).replace("\n", "").replace(
        " ", ""
    )
    width, height = figure.canvas.get_width_height()
    for text in texts:
        box = text.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= width
        assert box.y1 <= height
    pyplot.close(figure)


def test_save_writes_model_result_metrics(result: fedpriv.Result, tmp_path: Path):
    folder = tmp_path / "new" / "folder"
    result.save(folder)
    model = models.SoftmaxRegression(64, 10)
    model.load_state_dict(torch.load(folder / "model.pt"))
    assert json.loads((folder / "result.json").read_text())["epsilon"] == result.spent.epsilon
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3, 4]


def test_save_in_run_folder_keeps_result_file(tmp_path: Path):
    folder = tmp_path / "run"
    made = train(clients(), fedpriv.inexact_admm(), make_privacy(), rounds=2, folder=folder)
    before = (folder / "result.json").read_bytes()  # with the hash of the ledger's end, which a result does not have
    made.save(folder)
    assert (folder / "model.pt").exists()
    assert (folder / "result.json").read_bytes() == before


def test_train_and_training_same_arguments():
    def arguments(function: object) -> dict[str, object]:
        return {name: p.default for name, p in inspect.signature(function).parameters.items()}

    own = {"sinks": (), "progress": None}
    assert arguments(train) == {**arguments(Training), **own}


def test_train_stopped_by_sink_resumes(tmp_path: Path):
    class Enough(Exception):
        pass

    class Stop:
        closed = False

        def write(self, report: fedpriv.RoundReport) -> None:
            if report.round == 3:
                raise Enough

        def close(self) -> None:
            self.closed = True

    given = {"rounds": ROUNDS, "folder": tmp_path / "run", "checkpoint_every": 1, "test": DIGITS.test, "seed": 0}
    first = clients(), fedpriv.inexact_admm(), make_privacy()
    stop, jsonl = Stop(), fedpriv.reports.sinks.Jsonl
    (tmp_path / "run").mkdir()
    with pytest.raises(Enough):
        train(*first, **given, sinks=[jsonl(tmp_path / "run" / "metrics.jsonl"), stop])
    assert stop.closed
    gc.collect()  # the folder's lock goes with the first run
    made = train(clients(), *first[1:], **given, resume=True)
    assert [row["round"] for row in made.reports] == [1, 2, 3, 4]


@pytest.mark.parametrize("run", [train, Training])
def test_warning_points_to_caller_line(run):
    with pytest.warns(PromiseWarning, match="delta=0.001 is not below") as caught:
        run(clients(), fedpriv.inexact_admm(), make_privacy(delta=1e-3), rounds=1)
    assert {warning.filename for warning in caught} == {__file__}


def test_progress_bar_on_terminal_lines_elsewhere(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    def progress_output() -> str:
        train(clients(), fedpriv.inexact_admm(), make_privacy(), rounds=2, progress=True)
        return capfd.readouterr().err

    monkeypatch.setenv("TTY_COMPATIBLE", "0")
    assert [line.split(" · ")[0] for line in progress_output().splitlines()] == ["round 1/2", "round 2/2"]
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    assert "round" in progress_output()


@pytest.mark.parametrize(
    ("strategy", "network", "expected"),
    [
        (fedpriv.inexact_admm(), None, [1]),
        (
            fedpriv.decentralized_sgd(),
            fedpriv.Graph(networkx.cycle_graph(3)),
            [1, 3],
        ),  # the mean model, then each node's
    ],
)
def test_models_of_round_evaluated_once(
    strategy: fedpriv.Strategy, network: fedpriv.Graph | None, expected: list[int], monkeypatch: pytest.MonkeyPatch
):
    tested: list[int] = []
    answers = Evaluator._answers

    def counted(self: Evaluator, rows: Tensor, batches: Any) -> Any:
        tested.append(len(rows))
        return answers(self, rows, batches)

    monkeypatch.setattr(Evaluator, "_answers", counted)
    train(clients(), strategy, make_privacy(), rounds=2, evaluate_every=2, test=DIGITS.test, network=network)
    assert tested == expected


def nets() -> dict[str, nn.Module]:
    mlp = nn.Sequential(nn.Linear(64, 8), nn.LayerNorm(8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 10))
    images = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 10))
    return {"softmax": models.SoftmaxRegression(64, 10), "mlp": mlp, "conv": images}


@pytest.mark.parametrize("name", nets())
@pytest.mark.parametrize("examples", [7, 300])
def test_batched_evaluation_matches_single(name: str, examples: int):
    model = nets()[name]
    rows = torch.randn(19, sum(p.numel() for p in model.parameters()), generator=torch.Generator().manual_seed(0))
    loss = nn.functional.cross_entropy
    together = Evaluator(model, loss, DIGITS.test, batch_size=100, batched=True).of_each(rows, examples)
    some = Subset(DIGITS.test, [i * len(DIGITS.test) // examples for i in range(examples)])
    in_turn = [Evaluator(model, loss, some, batch_size=64)(row) for row in rows]
    assert len(together) == len(in_turn) == 19
    for one, other in zip(together, in_turn, strict=True):
        assert one == pytest.approx(other, rel=1e-6, abs=1e-6)


def test_promise_warning_as_error():
    with warnings.catch_warnings(), pytest.raises(PromiseWarning):
        warnings.simplefilter("error", PromiseWarning)
        Training(clients(), fedpriv.inexact_admm(), make_privacy(delta=1e-3), rounds=1)


def test_node_evaluation_subset_spans_classes():
    """The first examples may be easier: in a file sorted by class, predicting class 0 is right for all of them."""
    sorted_by_class = TensorDataset(torch.zeros(60, 2), torch.arange(3).repeat_interleave(20))
    model = nn.Linear(2, 3)
    knows_one = torch.cat([torch.zeros(6), torch.tensor([1.0, 0.0, 0.0])])
    each = Evaluator(model, nn.functional.cross_entropy, sorted_by_class).of_each(torch.stack([knows_one] * 2), 15)
    assert [found["test_accuracy"] for found in each] == pytest.approx([1 / 3, 1 / 3])
