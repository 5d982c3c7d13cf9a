"""Clients with names: results and what is shown of them say the names, and nothing more than without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

import fedpriv as fp
from fedpriv import data
from fedpriv.cli import app
from fedpriv.config import build, load_config
from fedpriv.reports import picture
from fedpriv.reports.report import Run

NAMES = ["north", "south", "west $x$ [red]"]


def examples(n: int, seed: int) -> TensorDataset:
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x[:, 0] + 0.5 * seed > 0).long())


def training(names: list[str] | None = NAMES, **options: Any) -> fp.Training:
    torch.manual_seed(0)
    clients = fp.make_clients(nn.Linear(4, 2), nn.CrossEntropyLoss(), [examples(20, seed) for seed in range(3)])
    settings = {"rounds": 3, "seed": 0, "secret_seed": 1, "client_tests": [examples(9, seed) for seed in (5, 6, 7)]}
    privacy = options.pop("privacy", fp.Privacy(epsilon=5))
    return fp.Training(clients, fp.fedavg(0.5), privacy, client_names=names, **{**settings, **options})


def test_result_metrics_keyed_by_client_name():
    run = training()
    list(run)
    result = run.result()
    facts = result.to_json()
    assert facts["client_names"] == NAMES
    for name, seed in zip(NAMES, (5, 6, 7), strict=True):
        x, y = examples(9, seed).tensors
        right = float((result.model(x).argmax(1) == y).double().mean())
        assert facts["client_tests"][name]["test_accuracy"] == pytest.approx(right)
    assert min(of["test_accuracy"] for of in facts["client_tests"].values()) == facts["client_test_accuracy"]["min"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "b"], "client_names = 2: must have one name for each of the 3 clients"),
        (["a", "b", "a"], "client_names = 'a': is the name of several clients"),
        (["a", " ", "c"], r"client_names\[1\] = ' ': must be text"),
        (["a", 1, "c"], r"client_names\[1\] = 1: must be text"),
    ],
)
def test_invalid_client_names_raise(names: list[str], message: str):
    with pytest.raises(fp.ConfigError, match=message):
        training(names)


def test_client_names_reveal_no_cohort():
    """All clients are named, independently of the cohort; everything else equals a run without names."""
    privacy = fp.Privacy(epsilon=5, unit="client", noise_on="message", trust=fp.Central(cohort_rate=0.3))
    found: dict[int, dict[str, Any]] = {}
    for secret in range(4):
        named, bare = training(privacy=privacy, secret_seed=secret), training(None, privacy=privacy, secret_seed=secret)
        reports = [[report.metrics for report in run] for run in (named, bare)]
        assert reports[0] == reports[1]
        found[secret], other = named.result().to_json(), bare.result().to_json()
        assert {name for name in found[secret] if name not in other} == {"client_names", "client_tests"}
        assert found[secret]["client_names"] == [*found[secret]["client_tests"]] == NAMES
    assert len({facts["params_l2"] for facts in found.values()}) == 4, "else all had one cohort"


def test_client_names_may_change_on_resume(tmp_path: Path):
    whole = training()
    list(whole)
    half = training(["a", "b", "c"], folder=tmp_path, checkpoint_every=1)
    next(iter(half))
    half.folder.close()
    again = training(folder=tmp_path, resume=True)
    list(again)
    assert torch.equal(again.result().params, whole.result().params)


def trained(folder: Path, source: str, **log: Any) -> tuple[dict[str, Any], str]:
    """The result of a configuration whose data are these, and what `fedpriv show` prints of it."""
    (folder / "run.yaml").write_text(f"""
data: {source}
model: softmax
strategy: {{name: fedavg, learning_rate: 1}}
privacy: {{epsilon: 20}}
rounds: 2
log: {json.dumps({"tensorboard": False, **log})}
""")
    done = CliRunner().invoke(app, ["train", str(folder / "run.yaml"), "--out", str(folder / "run")])
    assert done.exit_code == 0, done.output
    shown = CliRunner().invoke(app, ["show", str(folder / "run")])
    assert shown.exit_code == 0, shown.output
    return json.loads((folder / "run" / "result.json").read_text()), " ".join(shown.stdout.split())


def test_csv_files_name_clients(tmp_path: Path):
    (tmp_path / "sites").mkdir()
    rows = "".join(f"{age},{'ill' if age > 50 else 'well'}\n" for age in range(0, 100, 5))
    for name in ("west", "north", "n-east"):
        (tmp_path / "sites" / f"{name}.csv").write_text("age,outcome\n" + rows)
    (tmp_path / "test.csv").write_text("age,outcome\n1,well\n99,ill\n")
    columns = "label: outcome, classes: [well, ill], numbers: {age: [0, 100]}"
    where = f"train: '{tmp_path / 'sites'}', test: '{tmp_path / 'test.csv'}'"
    result, shown = trained(tmp_path, f"{{name: csv, {where}, {columns}, partition: {{kind: by_writer}}}}")
    assert result["client_names"] == ["n-east", "north", "west"]
    assert "clients 3: n-east, north, west" in shown


def test_csv_folder_names_become_writer_names(tmp_path: Path):
    for name in "ba":
        (tmp_path / name).mkdir()
        (tmp_path / name / "data.csv").write_text(f"age,outcome\n{ord(name)},ill\n")
    (tmp_path / "test.csv").write_text("age,outcome\n1,ill\n")
    options = {"label": "outcome", "classes": ["well", "ill"], "numbers": {"age": (0, 100)}}
    split = data.load("csv", train=str(tmp_path / "*" / "data.csv"), test=str(tmp_path / "test.csv"), **options)
    assert split.writer_names == {0: "a/data", 1: "b/data"}


def femnist(folder: Path) -> str:
    """LEAF's files of three writers."""
    draw = np.random.default_rng(0)
    for part, n in (("train", 12), ("test", 6)):
        (folder / part).mkdir()
        users = {f"f0{k}_$1$": {"x": draw.random((n, 784)).tolist(), "y": [k] * n} for k in (2, 0, 1)}
        content = {"users": [*users], "num_samples": [n] * 3, "user_data": users}
        (folder / part / "all.json").write_text(json.dumps(content))
    return f"{{name: femnist, root: '{folder}', flat: true, partition: {{kind: by_writer, n_clients: null}}}}"


def test_femnist_writers_name_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    result, shown = trained(tmp_path, femnist(tmp_path), client_tests=True)
    names = ["f00_$1$", "f01_$1$", "f02_$1$"]
    assert result["client_names"] == names
    worst = min(names, key=lambda name: result["client_tests"][name]["test_accuracy"])
    assert f"is of {worst}" in shown
    drawn: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *a, **b: (drawn.append(figure), save(figure, *a, **b)))
    picture.draw(Run.read(tmp_path / "run"), tmp_path / "picture.png")
    label = drawn[0].axes[0].get_legend_handles_labels()[1][-1]
    assert label == f"the worst client, at the end {worst}".replace("$", r"\$")


def test_clients_of_several_writers_have_no_names(tmp_path: Path):
    (tmp_path / "femnist").mkdir()
    whole = femnist(tmp_path / "femnist")
    for changed in ("kind: by_writer, n_clients: 2", "kind: iid, n_clients: 3"):
        source = whole.replace("kind: by_writer, n_clients: null", changed)
        (tmp_path / "run.yaml").write_text(
            f"data: {source}\nmodel: softmax\nstrategy: fedavg\nprivacy: {{epsilon: 20}}\nrounds: 1\n".replace(
                "strategy: fedavg", "strategy: {name: fedavg, learning_rate: 1}"
            )
        )
        run = build(load_config(tmp_path / "run.yaml"))
        list(run)
        assert "client_names" not in run.result().to_json()


def test_worst_constraint_estimate_names_client():
    from fedpriv.reports.report import _worst_estimate

    facts = {"constraint_confidence": {"half_width": [[0.1], [0.1]]}, "constraint_estimates": [[0.5], [0.2]]}
    assert "of 2 noisy ones; the constraint holds if <= 0" in _worst_estimate(facts)
    assert "of 2 noisy ones, at north; the constraint holds if <= 0" in _worst_estimate(
        {**facts, "client_names": ["north", "south"]}
    )
