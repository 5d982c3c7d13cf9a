"""Data sets of the library `datasets`: from its files in a configuration, and as rows with names in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedpriv as fp
from fedpriv import data
from fedpriv.config import build, load_config
from fedpriv.data import RowDataset
from fedpriv.errors import ConfigError, DataError
from fedpriv.models import SoftmaxRegression

datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install fedpriv[hf]")
Saved = Callable[[Any, Path], str]

TABLE = {"label": "outcome", "numbers": {"age": (0, 100)}, "categories": {"smoker": ["no", "yes"]}}
PATIENTS = {
    "hospital": ["south", "north", "north", "west"],
    "age": [25, 130, None, -3],
    "smoker": ["yes", "no", None, "no"],
    "outcome": ["ill", "well", "well", "well"],
}


def patients(rows: dict[str, list[Any]] = PATIENTS) -> Any:
    test = {"hospital": ["west", "south"], "age": [50, 75], "smoker": ["no", "yes"], "outcome": ["well", "ill"]}
    return datasets.DatasetDict(train=datasets.Dataset.from_dict(rows), test=datasets.Dataset.from_dict(test))


def to_disk(found: Any, folder: Path) -> dict[str, str]:
    found.save_to_disk(str(folder))
    return {"path": str(folder)}


def to_files(kind: str) -> Callable[[Any, Path], dict[str, str]]:
    def save(found: Any, folder: Path) -> dict[str, str]:
        folder.mkdir()
        for name, part in found.items():
            half = len(part) // 2
            for number, places in enumerate((range(half), range(half, len(part)))):
                getattr(part.select(places), f"to_{kind.rstrip('l')}")(str(folder / f"{name}-{number}.{kind}"))
        return {"path": str(folder), "train": f"train-*.{kind}", "test": f"test-*.{kind}"}

    return save


SAVED = {"save_to_disk": to_disk, **{kind: to_files(kind) for kind in ("parquet", "csv", "json", "jsonl")}}
NOTHING = {"categories": {}, "numbers": {}, "missing": {}, "indicators": []}
RULES = {"missing": {"age": 40}, "indicators": ["smoker"]}


@pytest.mark.parametrize("saved", SAVED)
def test_hf_rows_match_hand_encoding(saved: str, tmp_path: Path):
    where = SAVED[saved](patients(), tmp_path / "data")
    split = data.load("hf", **where, **TABLE, **RULES, classes=["well", "ill"], client="hospital")
    # age, no, yes, smoker missing, the constant
    assert split.train[:][0].tolist() == pytest.approx(
        np.array([[-0.5, 0, 1, 0, 1], [1, 1, 0, 0, 1], [-0.2, 0, 0, 1, 1], [-1, 1, 0, 0, 1]])
    )
    assert split.train[:][1].tolist() == [1, 0, 0, 0]
    assert split.test[:][1].tolist() == [0, 1]
    assert split.n_classes == 2
    assert split.writers is not None and split.test_writers is not None
    assert [split.writer_names[number] for number in split.writers.tolist()] == PATIENTS["hospital"]
    assert [split.writer_names[number] for number in split.test_writers.tolist()] == ["west", "south"]


def test_hf_table_matches_csv(tmp_path: Path):
    where = to_disk(patients(), tmp_path / "data")
    for name, part in patients().items():
        part.to_csv(str(tmp_path / f"{name}.csv"))
    options = {**TABLE, **RULES, "classes": ["well", "ill"], "client": "hospital"}
    ours = data.load("csv", train=str(tmp_path / "train.csv"), test=str(tmp_path / "test.csv"), **options)
    theirs = data.load("hf", **where, **options)
    for one, other in ((ours.train, theirs.train), (ours.test, theirs.test)):
        assert all(map(torch.equal, one[:], other[:]))
    assert torch.equal(ours.writers, theirs.writers)


def images(n: int = 6) -> Any:
    draw = np.random.default_rng(0)
    made = {"image": [draw.integers(0, 256, (8, 8), np.uint8) for _ in range(n)], "label": [k % 3 for k in range(n)]}
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])}
    found = datasets.Dataset.from_dict(made, features=datasets.Features(kinds))
    return datasets.DatasetDict(train=found, test=found.select([0, 1])), np.stack(made["image"])


@pytest.mark.parametrize("saved", ["save_to_disk", "parquet"])
def test_hf_images_with_named_labels(saved: str, tmp_path: Path):
    found, pixels = images()
    where = SAVED[saved](found, tmp_path / "data")
    split = data.load("hf", **where, input="image", label="label")
    torch.testing.assert_close(split.train[:][0], torch.from_numpy(pixels).float().unsqueeze(1) / 255)
    assert split.train[:][1].tolist() == [0, 1, 2, 0, 1, 2]
    assert split.n_classes == 3
    turned = data.load("hf", **where, input="image", label="label", classes=["c", "b", "a"], transforms=["unit"])
    assert turned.train[:][1].tolist() == [2, 1, 0, 2, 1, 0]
    assert turned.train[0][0].norm() == pytest.approx(1)
    assert data.load("hf", **where, input="image", label="label", flat=True).train[0][0].shape == (64,)


def test_hf_arrays_and_numeric_targets_scaled(tmp_path: Path):
    rows = {"x": [[[0.0, 8.0], [16.0, 99.0]], [[4.0, 4.0], [4.0, -1.0]]], "y": [10.0, 30]}
    found = datasets.DatasetDict({name: datasets.Dataset.from_dict(rows) for name in ("train", "test")})
    where = to_disk(found, tmp_path / "data")
    split = data.load("hf", **where, input="x", label="y", numbers={"x": (0, 16), "y": (0, 40)})
    assert split.train[0][0].tolist() == [[-1, 0], [1, 1]]
    assert split.train[:][1].tolist() == [-0.5, 0.5]
    assert (split.n_classes, split.target_scale) == (None, 20)
    with pytest.raises(ConfigError, match=r"data\.numbers\.x = \[16, 16\]: must be \[low, high\]"):
        data.load("hf", **where, input="x", label="y", numbers={"x": (16, 16), "y": (0, 40)})
    plain = data.load("hf", **where, input="x", label="y", numbers={"y": (0, 40)})
    assert plain.train[0][0].tolist() == rows["x"][0]


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"path": "absent"}, DataError, "has no readable data 'train': name a split written by save_to_disk"),
        ({"train": "trains"}, DataError, "has no readable data 'trains'"),
        ({"label": "outcom"}, ConfigError, "did you mean 'outcome'"),
        ({"client": "clinic"}, ConfigError, "data = 'clinic': is not a column of"),
        (
            {"input": "age"},
            ConfigError,
            "data.input = 'age': is the whole input, so no other column can be a feature: remove smoker, age",
        ),
        ({"input": "hospital", **NOTHING}, DataError, "row 0: column hospital cannot be converted to a tensor"),
        ({"classes": None}, ConfigError, "data.classes = None: is required: list the values of outcome"),
        ({"classes": ["well"]}, DataError, "train, row 0: outcome = 'ill' is not one of well"),
        ({"missing": {}}, DataError, r"train, row 2: age = '' .* set missing.age to a public value"),
    ],
)
def test_hf_unusable_option_raises(changed: dict[str, Any], error: type, message: str, tmp_path: Path):
    where = to_disk(patients(), tmp_path / "data")
    options = {**where, **TABLE, **RULES, "classes": ["well", "ill"], **changed}
    with pytest.raises(error, match=message):
        data.load("hf", **options)


def test_hf_invalid_rows_and_files_raise(tmp_path: Path):
    found, _ = images()
    where = to_disk(found, tmp_path / "images")
    with pytest.raises(ConfigError, match=r"data\.numbers\.image = .*images, whose values are already in \[0, 1\]"):
        data.load("hf", **where, input="image", label="label", numbers={"image": (0, 255)})
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "train.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match=r"train\.parquet cannot be read"):
        data.load("hf", path=str(tmp_path / "files"), train="train.parquet", test="test.parquet", **TABLE)
    no_client = {**PATIENTS, "hospital": ["south", None, "north", "west"]}
    where = to_disk(patients(no_client), tmp_path / "no_client")
    with pytest.raises(DataError, match="row 1 has no value in column hospital: name a client"):
        data.load("hf", **where, **TABLE, **RULES, classes=["well", "ill"], client="hospital")
    where = to_disk(patients({**PATIENTS, "age": [[1, 2], [3], [4], [5]]}), tmp_path / "ragged")
    with pytest.raises(DataError, match=r"column age has values of different shapes, e.g. \[\(1,\), \(2,\)\]"):
        data.load("hf", **where, input="age", label="outcome", classes=["well", "ill"])


def test_hf_load_leaves_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Client rows are not copied into the home folder of the user who reads them."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    where = to_files("csv")(patients(), tmp_path / "data")
    data.load("hf", **where, **TABLE, **RULES, classes=["well", "ill"])
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(("partition", "sizes"), [("by_writer", [8, 8, 8]), ("iid, n_clients: 4", [6] * 4)])
def test_hf_config_trains(partition: str, sizes: list[int], tmp_path: Path):
    rows = {name: value * 6 for name, value in PATIENTS.items()}
    rows |= {"hospital": [f"h{k % 3}" for k in range(24)], "age": list(range(24))}
    to_disk(patients(rows), tmp_path / "patients")
    (tmp_path / "run.yaml").write_text(f"""
data:
  name: hf
  path: {tmp_path / "patients"}
  label: outcome
  classes: [well, ill]
  numbers: {{age: [0, 100]}}
  client: hospital
  partition: {{kind: {partition}}}
model: logistic_regression
loss: logistic
strategy: {{name: fedavg, learning_rate: 1}}
privacy: {{epsilon: 8}}
rounds: 1
""")
    training = build(load_config(tmp_path / "run.yaml"))
    assert training.population.shard.sizes.tolist() == sizes
    assert [report.round for report in training] == [1]


# --- rows with names, in Python


class Partitioner:
    """As those of flwr-datasets."""

    def __init__(self, dataset: Any, parts: int) -> None:
        self.dataset, self.num_partitions = dataset, parts

    def load_partition(self, partition_id: int) -> Any:
        return self.dataset.shard(num_shards=self.num_partitions, index=partition_id)


def points(n: int = 40) -> Any:
    draw = np.random.default_rng(1)
    x = draw.normal(size=(n, 3)).astype(np.float32)
    return datasets.Dataset.from_dict({"x": x.tolist(), "y": (x[:, 0] > 0).astype(int).tolist()})


def trained(clients: Sequence[fp.Client]) -> fp.Result:
    return fp.train(clients, fp.fedavg(0.5), fp.Privacy(epsilon=5), rounds=2, seed=0, secret_seed=1)


def test_lazy_and_listed_partitions_train_equally():
    torch.manual_seed(0)
    partitioner, model, loss = Partitioner(points(), 4), SoftmaxRegression(3, 2), nn.CrossEntropyLoss()

    def load(client: int) -> RowDataset:
        return RowDataset(partitioner.load_partition(client), inputs="x", target="y")

    sizes = fp.count_examples(load, 4)
    assert list(sizes) == [10] * 4
    lazy = trained(fp.lazy_clients(model, loss, load, sizes))
    listed = trained(fp.make_clients(model, loss, [load(client) for client in range(4)]))
    assert torch.equal(lazy.params, listed.params)
    as_tensors = RowDataset(points().with_format("torch"), inputs="x", target="y")
    assert torch.equal(as_tensors[3][0], RowDataset(points(), inputs="x", target="y")[3][0])


def test_row_dataset_passes_columns_by_name():
    class ByName(nn.Linear):
        def forward(self, x: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
            return super().forward(x + more)

    rows = [{"x": [1.0, float(k)], "more": np.ones(2, np.float32), "y": k % 2} for k in range(8)]
    owned = [RowDataset(rows[:4], ["x", "more"], "y"), RowDataset(rows[4:], ("x", "more"), "y")]
    inputs, target = owned[1][1]
    assert {name: value.tolist() for name, value in inputs.items()} == {"x": [1, 5], "more": [1, 1]}
    assert target.tolist() == 1
    assert trained(fp.make_clients(ByName(2, 2), nn.CrossEntropyLoss(), owned)).rounds == 2


def test_row_dataset_invalid_rows_raise():
    rows = [{"x": [1.0], "y": 0}]
    with pytest.raises(ConfigError, match="column = 'z': is not a column of the rows; choose one of x, y"):
        RowDataset(rows, "z", "y")
    with pytest.raises(DataError, match="empty"):
        RowDataset([], "x", "y")
    with pytest.raises(DataError, match="row 0 is a tuple: rows must be mappings from column names"):
        RowDataset([(1, 2)], "x", "y")
    with pytest.raises(DataError, match="row 0: column x cannot be converted to a tensor"):
        RowDataset([{"x": "words", "y": 0}], "x", "y")[0]
    from PIL import Image

    with pytest.raises(DataError, match="mode RGBA, but only L and RGB can be used: cast the column"):
        RowDataset([{"x": Image.new("RGBA", (2, 2)), "y": 0}], "x", "y")[0]
    read, _ = RowDataset([{"x": Image.new("RGB", (5, 4), (255, 0, 51)), "y": 0}], "x", "y")[0]
    assert read.shape == (3, 4, 5)
    assert read[:, 0, 0].tolist() == pytest.approx([1, 0, 0.2])
