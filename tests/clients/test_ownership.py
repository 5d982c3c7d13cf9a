"""Each example at one client, once, and not among the test data: else a private run is refused, or its owner told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from counting_calls import count_calls
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset
from typer.testing import CliRunner

import fedpriv as fp
from fedpriv.cli import app
from fedpriv.clients.examples import InMemory
from fedpriv.clients.ownership import DuplicateCounts, check_datasets
from fedpriv.data import load
from fedpriv.models import LogisticRegression, SoftmaxRegression, resolve_loss

PRIVATE, EXACT, OF_CLIENTS = fp.Privacy(epsilon=3), fp.Privacy(noise_on="none"), fp.Privacy(epsilon=3, unit="client")


def points(n: int, seed: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(n, 3, generator=generator), torch.randint(2, (n,), generator=generator))


def training(
    datasets: list[Dataset], privacy: fp.Privacy = PRIVATE, test: Dataset | None = None, folder: Path | None = None
) -> fp.Training:
    clients = fp.make_clients(SoftmaxRegression(3, 2), nn.CrossEntropyLoss(), datasets)
    return fp.Training(clients, fp.fedavg(1.0), privacy, rounds=2, test=test, folder=folder)


class Lazy(Dataset):
    """Not a table of tensors."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((3,), float(index)), index % 2


WHOLE, LAZY = points(12), Lazy(12)
SHUFFLED = Subset(WHOLE, [*range(11, -1, -1)])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (WHOLE, WHOLE),
        (Subset(WHOLE, range(7)), Subset(WHOLE, range(6, 12))),
        (Subset(SHUFFLED, [0, 1]), Subset(WHOLE, [11, 0])),
        (Subset(WHOLE, [-1, 0]), Subset(WHOLE, torch.tensor([11]))),
        (Subset(LAZY, [3]), Subset(Subset(LAZY, [2, 3]), [1])),
        (ConcatDataset([LAZY, WHOLE]), Subset(WHOLE, [4])),
        (Subset(ConcatDataset([LAZY, WHOLE]), [16]), Subset(WHOLE, [4])),
        (TensorDataset(*WHOLE[:6]), TensorDataset(*WHOLE[5:])),
    ],
)
def test_example_at_two_clients_raises(first: Dataset, second: Dataset) -> None:
    for privacy in (PRIVATE, OF_CLIENTS):
        with pytest.raises(fp.PrivacyError, match=r"examples belong to two clients \(the first to 0 and 1\)"):
            training([first, second], privacy)
    training([first, second], EXACT)


def test_repeated_example_sample_unit_raises() -> None:
    twice = Subset(WHOLE, [1, 2, 1])
    with pytest.raises(
        fp.PrivacyError, match=r"client 1 has an example twice \(1 repeated example in all\).*unit: client"
    ):
        training([points(5, 1), twice])
    training([points(5, 1), twice], OF_CLIENTS)


def test_distinct_examples_pass() -> None:
    x = torch.zeros(1, 3).expand(4, 3)
    for datasets in (
        [Subset(WHOLE, range(6)), Subset(WHOLE, range(6, 12)), Subset(LAZY, range(6)), Subset(LAZY, range(6, 12))],
        [points(5), points(5)],
        [TensorDataset(x, torch.arange(4) % 2), TensorDataset(x, torch.arange(4) % 2)],
        [TensorDataset(*WHOLE[:6]), TensorDataset(*WHOLE[6:])],
    ):
        training(datasets, test=points(4, 9))


@pytest.mark.parametrize(
    "test",
    [WHOLE, Subset(WHOLE, [3]), ConcatDataset([points(4, 5), Subset(SHUFFLED, [8])]), TensorDataset(*WHOLE[2:4])],
)
def test_training_examples_in_test_data_raise(test: Dataset) -> None:
    clients: list[Dataset] = [Subset(WHOLE, range(6)), points(5, 1)]
    with pytest.raises(fp.PrivacyError, match=r"test examples are also training examples \(the first of client 0\)"):
        training(clients, test=test)
    training(clients, EXACT, test=test)


def test_copied_training_data_as_test_data_raise() -> None:
    x, y = WHOLE.tensors
    copy = TensorDataset(x.flip(0), y.flip(0))
    clients: list[Dataset] = [Subset(WHOLE, range(6)), Subset(WHOLE, range(6, 12))]
    with pytest.raises(fp.PrivacyError, match="the 12 test examples are copies of the training examples"):
        training(clients, test=copy)
    y = y.clone()
    y[0] = 1 - y[0]
    training(clients, test=TensorDataset(x.clone(), y))


@pytest.mark.parametrize(("tested", "warned"), [(53, False), (54, True), (60, True), (66, True), (67, False)])
def test_similar_test_size_warns_of_copies(tested: int, warned: bool) -> None:
    """Only the sizes are compared: a test set of 59 copied rows out of 60 gives the exact test loss."""
    x, y = points(67).tensors
    clients: list[Dataset] = [TensorDataset(x[:30], y[:30]), TensorDataset(x[30:60], y[30:60])]
    for rows in (x, points(67, 3).tensors[0]):
        run = training(clients, test=TensorDataset(rows[:tested].clone(), 1 - y[:tested]))
        found = [text for text in run.warnings if "If the test examples are copies of training examples" in text]
        assert len(found) == warned
        if warned:
            assert f"as many test examples ({tested}) as training examples (60)" in found[0]
    assert training(clients, EXACT, test=TensorDataset(x[:tested].clone(), 1 - y[:tested])).warnings == []


def test_server_data_as_test_data_pass() -> None:
    test = points(6, 3)
    make = (LogisticRegression(3), resolve_loss("logistic"))
    gap = fp.GroupLossGap(-1, 0.1, fraction=0.5)
    clients = fp.make_clients(*make, [WHOLE], fp.Problem(constraints=(gap,)))
    clients += fp.make_clients(*make, [test], fp.Problem(None, (gap,)))
    fp.Training(clients, fp.private_al(beta=0.5, max_multiplier=0.5), PRIVATE, rounds=2, test=test)


def test_ownership_check_reads_no_example() -> None:
    class Unread(Lazy):
        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            raise AssertionError(index)

    whole, n = Unread(200_000), 2000
    order = torch.randperm(len(whole)).tolist()
    shares = [Subset(whole, order[i::n]) for i in range(n)]
    assert count_calls(lambda: check_datasets(shares, None, PRIVATE)) < len(whole)


def test_duplicate_contents_counted(tmp_path: Path) -> None:
    x = torch.tensor([[1.0, 0, 0], [1, 0, 0], [2, 0, 0], [3, 0, 0], [4, 0, 0]])
    y = torch.tensor([0, 0, 0, 0, 0])
    first = TensorDataset(x, y)
    second = TensorDataset(torch.tensor([[2.0, 0, 0], [3, 0, 0], [9, 0, 0]]), torch.tensor([0, 1, 0]))
    test = TensorDataset(torch.tensor([[4.0, 0, 0], [8, 0, 0]]), torch.tensor([0, 0]))
    run = training([first, second], test=test, folder=tmp_path)
    # two ones at the first client, a two at each; the threes differ in their class
    assert run.count_duplicates() == DuplicateCounts(examples=4, apart=2, tested=1)
    assert training([points(5), points(5, 1)]).count_duplicates() == DuplicateCounts(0, 0, 0)


def test_duplicates_reported_on_terminal_only(tmp_path: Path) -> None:
    header, row = "a,b,who,label\n", "{},{},{},{}\n"
    rows = [row.format(i / 40, (7 * i % 40) / 40, "xy"[i % 2], i % 2) for i in range(40)]
    (tmp_path / "train.csv").write_text(header + "".join([*rows, rows[0], rows[0].replace("x", "y")]))
    (tmp_path / "test.csv").write_text(header + "".join([rows[5], row.format(0.9, 0.91, "x", 1)]))
    config = {
        "data": {
            "name": "csv",
            "train": str(tmp_path / "train.csv"),
            "test": str(tmp_path / "test.csv"),
            "label": "label",
            "classes": [0, 1],
            "numbers": {"a": [0, 1], "b": [0, 1]},
            "client": "who",
            "partition": {"kind": "by_writer"},
        },
        "model": "logistic_regression",
        "strategy": {"name": "fedavg", "learning_rate": 1.0},
        "privacy": {"epsilon": 3, "delta": 1e-3},
        "rounds": 2,
    }
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    folder = tmp_path / "run"
    found = CliRunner().invoke(app, ["train", str(tmp_path / "run.yaml"), "loss=logistic", "--out", str(folder)])
    assert found.exit_code == 0, found.output
    message = " ".join(found.stderr.split())
    assert (
        "3 training examples have the same content as another training example (3 of them as an example of another"
        in message
    )
    assert "1 training examples have the same content as a test example" in message
    written = [path for path in folder.rglob("*") if path.is_file()]
    assert len(written) > 4
    assert not [path for path in written if b"in content" in path.read_bytes() or b"epeats" in path.read_bytes()]


def test_duplicates_of_many_images_counted_in_batches() -> None:
    x = torch.rand(60_000, 784)
    run = training([points(5)])
    client = fp.make_clients(torch.nn.Linear(784, 2), torch.nn.CrossEntropyLoss(), [TensorDataset(x, x[:, 0].long())])
    run.population.examples = InMemory(client, x.device, x.dtype)
    counts: list[DuplicateCounts] = []
    assert count_calls(lambda: counts.append(run.count_duplicates())) < 10 * len(x)
    assert counts == [DuplicateCounts(0, 0, 0)]


@pytest.mark.parametrize("name", ["breast_cancer", "monks"])
def test_bundled_tables_private_run_needs_held_out(data_root: Path, name: str) -> None:
    """The default protocol passes; the protocol of the paper, which tests on the training rows, raises."""

    def run(privacy: fp.Privacy, **options: object) -> fp.Training:
        split = load(name, **options)
        model = LogisticRegression(split.train[0][0].numel())
        clients = fp.make_clients(model, resolve_loss("logistic"), [split.train])
        return fp.Training(clients, fp.fedavg(1.0), privacy, rounds=2, test=split.test)

    run(PRIVATE)
    run(EXACT, protocol="paper")
    with pytest.raises(fp.PrivacyError, match=r"can be used only in runs without privacy.*data.protocol to held_out"):
        run(PRIVATE, protocol="paper")


def test_jointly_scaled_rows_in_private_run_raise() -> None:
    train = load("breast_cancer", variant="diagnostic", protocol="paper").train
    clients = fp.make_clients(LogisticRegression(31), resolve_loss("logistic"), [Subset(train, range(100))])
    with pytest.raises(fp.PrivacyError, match="can be used only in runs without privacy"):
        fp.train(clients, fp.fedavg(1.0), PRIVATE, rounds=1)
