"""Noise that hid one data set never hides another: a run goes on with the data it began with, or not at all."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import fedpriv as fp
from fedpriv.errors import DataError, FedprivError, PrivacyError

N_CLIENTS = 3


def datasets(
    change: Callable[[list[torch.Tensor], list[torch.Tensor]], None] | None = None, n: int = N_CLIENTS
) -> list[Dataset[Any]]:
    generator = torch.Generator().manual_seed(3)
    inputs = [torch.randn(8, 4, generator=generator) for _ in range(n)]
    labels = [torch.randint(2, (8,), generator=generator) for _ in range(n)]
    if change is not None:
        change(inputs, labels)
    return [TensorDataset(x, y) for x, y in zip(inputs, labels, strict=True)]


def another_label(_: list[torch.Tensor], labels: list[torch.Tensor]) -> None:
    labels[1][5] = 1 - labels[1][5]


def another_number(inputs: list[torch.Tensor], _: list[torch.Tensor]) -> None:
    inputs[2][0, 0] += 1e-6


def another_order(inputs: list[torch.Tensor], labels: list[torch.Tensor]) -> None:
    inputs[0], labels[0] = inputs[0].flip(0), labels[0].flip(0)


def clients_exchanged(inputs: list[torch.Tensor], labels: list[torch.Tensor]) -> None:
    inputs[0], inputs[1] = inputs[1], inputs[0]
    labels[0], labels[1] = labels[1], labels[0]


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(4, 2)


def training(data: Sequence[Dataset[Any]], **options: Any) -> fp.Training:
    clients = fp.make_clients(model(), torch.nn.CrossEntropyLoss(), data)
    return fp.Training(
        clients, fp.fedavg(0.5), fp.Privacy(epsilon=2), rounds=4, seed=1, **{"checkpoint_every": 1, **options}
    )


def stopped_after(rounds: int, folder: Path, data: Sequence[Dataset[Any]]) -> None:
    run = training(data, folder=folder)
    reports = iter(run)
    for _ in range(rounds):
        next(reports)
    reports.close()
    assert run.folder is not None
    run.folder.close()


def finished(run: fp.Training) -> fp.Result:
    for _ in run:
        pass
    result = run.result()
    if run.folder is not None:
        run.folder.close()
    return result


@pytest.mark.parametrize("rounds", [0, 2])
@pytest.mark.parametrize("fresh_noise", [False, True])
@pytest.mark.parametrize("change", [another_label, another_number, another_order, clients_exchanged])
def test_a_run_does_not_go_on_with_other_data(
    tmp_path: Path, change: Callable[..., None], rounds: int, fresh_noise: bool
) -> None:
    if rounds:
        stopped_after(rounds, tmp_path / "run", datasets())
    else:
        first = training(datasets(), folder=tmp_path / "run")
        assert first.folder is not None
        first.folder.close()
    with pytest.raises(DataError, match=r"client \d: its examples are not those that this run began with"):
        training(datasets(change), folder=tmp_path / "run", resume=True, fresh_noise=fresh_noise)


def test_with_the_data_that_it_began_with_it_does(tmp_path: Path) -> None:
    stopped_after(2, tmp_path / "run", datasets())
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    first = finished(training(datasets(), folder=tmp_path / "run", resume=True))
    second = finished(training(datasets(), folder=tmp_path / "copy", resume=True))
    assert torch.equal(first.params, second.params)


class RandomView(Dataset[Any]):
    """Examples that are other ones whenever they are read, as random transforms make them."""

    def __init__(self, data: Dataset[Any]) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        x, y = self.data[index]
        return x + torch.rand(()) + random.random(), y


def test_data_with_random_transforms_are_recognised(tmp_path: Path) -> None:
    stopped_after(2, tmp_path / "run", [RandomView(data) for data in datasets()])
    torch.manual_seed(99)
    random.seed(99)
    result = finished(training([RandomView(data) for data in datasets()], folder=tmp_path / "run", resume=True))
    assert result.rounds == 4
    stopped_after(2, tmp_path / "other", [RandomView(data) for data in datasets()])
    with pytest.raises(DataError, match="client 1"):
        training([RandomView(data) for data in datasets(another_label)], folder=tmp_path / "other", resume=True)


N_LAZY = 40  # of so many only some are looked at before a run


def lazily(data: Sequence[Dataset[Any]], folder: Path, *, resume: bool = False) -> fp.Training:
    clients = fp.lazy_clients(model(), torch.nn.CrossEntropyLoss(), lambda i: data[i], [8] * N_LAZY)
    return fp.Training(
        clients,
        fp.fedavg(0.5),
        fp.Privacy(epsilon=2, unit="client", at="message"),
        rounds=4,
        seed=1,
        folder=folder,
        resume=resume,
        checkpoint_every=1,
    )


def stopped_lazily(folder: Path, data: Sequence[Dataset[Any]]) -> None:
    run = lazily(data, folder)
    assert not run.population.is_in_memory
    reports = iter(run)
    next(reports)
    next(reports)  # the checkpoint of the first round is written
    reports.close()
    assert run.folder is not None
    run.folder.close()


@pytest.mark.parametrize("view", [lambda data: data, lambda data: RandomView(data)], ids=["fixed", "random views"])
def test_data_that_are_read_when_they_are_drawn_are_compared_then(tmp_path: Path, view: Callable[..., Any]) -> None:
    stopped_lazily(tmp_path / "run", [view(data) for data in datasets(n=N_LAZY)])
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    torch.manual_seed(99)
    random.seed(99)
    assert finished(lazily([view(data) for data in datasets(n=N_LAZY)], tmp_path / "run", resume=True)).rounds == 4
    changed = lazily([view(data) for data in datasets(another_label, N_LAZY)], tmp_path / "copy", resume=True)
    with pytest.raises(DataError, match=r"client \d+: its examples are not those"):
        next(iter(changed))


def test_the_checkpoint_tells_nothing_of_the_data_without_its_key(tmp_path: Path) -> None:
    """Equal examples of two runs have different digests."""
    digests = []
    for name in ("one", "two"):
        stopped_after(1, tmp_path / name, datasets())
        saved = torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)
        digests.append(saved["data"]["digests"])
    assert digests[0].shape == (N_CLIENTS, 16)
    assert not torch.equal(*digests)


def with_seed(data: Sequence[Dataset[Any]], secret_seed: int | None) -> fp.Result:
    return finished(training(data, secret_seed=secret_seed))


def test_results_of_one_noise_are_not_added_up() -> None:
    first = with_seed(datasets(), 5)
    second = with_seed(datasets(another_label), 5)
    assert not torch.equal(first.params, second.params)
    with pytest.raises(PrivacyError, match="drew the same noise"):
        fp.total([first, second])
    with pytest.raises(PrivacyError, match="drew the same noise"):
        fp.total([first, first])


def test_results_with_noise_of_their_own_are_added_up() -> None:
    both = fp.total([with_seed(datasets(), 5), with_seed(datasets(another_label), 6)])
    assert 2 < both.epsilon < 4


def sized_model(
    scale: float, code: str = "self.layer(x) * self.scale * self.of['a class'] * self.other.scale", **numbers: float
) -> torch.nn.Module:
    """A class whose code is edited between two runs, as in a notebook."""
    text = f"""
class Other:
    def __init__(self, scale):
        self.scale = scale

class Scaled(nn.Module):
    def __init__(self, scale, factor=1.0, of_other=1.0):
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 2), scale
        self.of = {{"a class": torch.tensor(factor)}}
        self.other = Other(of_other)

    def forward(self, x):
        return {code}
"""
    names: dict[str, Any] = {"nn": torch.nn, "torch": torch, "__name__": "__main__"}
    exec(text, names)
    torch.manual_seed(0)
    made: torch.nn.Module = names["Scaled"](scale, **numbers)
    return made


CODE: dict[str, tuple[torch.nn.Module, torch.nn.Module]] = {
    "the same": (sized_model(1.0), torch.nn.CrossEntropyLoss()),
    "a setting of the loss": (sized_model(1.0), torch.nn.CrossEntropyLoss(label_smoothing=0.5)),
    "a number of a layer": (sized_model(0.5), torch.nn.CrossEntropyLoss()),
    "a tensor in a dictionary of a layer": (sized_model(1.0, factor=0.5), torch.nn.CrossEntropyLoss()),
    "an object of a layer": (sized_model(1.0, of_other=0.5), torch.nn.CrossEntropyLoss()),
    "code": (sized_model(1.0, "torch.tanh(self.layer(x)) * self.scale"), torch.nn.CrossEntropyLoss()),
}
DIFFERS = {
    "a setting of the loss": "the loss",
    "a number of a layer": "scale of a Scaled layer",
    "a tensor in a dictionary of a layer": "of of a Scaled layer",
    "an object of a layer": "other of a Scaled layer",
    "code": "the code of Scaled.forward; torch, which Scaled.forward reads",
}


def with_code(name: str, folder: Path, **options: Any) -> fp.Training:
    made, loss = CODE[name]
    clients = fp.make_clients(made, loss, datasets())
    privacy = fp.Privacy(noise_multiplier=1000.0)
    return fp.Training(clients, fp.fedavg(0.5), privacy, rounds=4, seed=1, folder=folder, checkpoint_every=1, **options)


@pytest.mark.parametrize("name", CODE)
def test_noise_of_a_run_hides_no_answers_of_other_code(tmp_path: Path, name: str) -> None:
    """A folder and its copy would go on with the same noise, and the difference of their models would have none."""
    stopped = with_code("the same", tmp_path / "run")
    for report in stopped:
        if report.round == 2:
            break
    stopped.save()
    assert stopped.folder is not None
    stopped.folder.close()
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    first = finished(with_code("the same", tmp_path / "run", resume=True))
    if name == "the same":
        assert torch.equal(finished(with_code(name, tmp_path / "copy", resume=True)).params, first.params)
        return
    with pytest.raises(FedprivError, match="another loss or model, or with other code of your own") as error:
        with_code(name, tmp_path / "copy", resume=True)
    assert f"what differs: {DIFFERS[name]})" in str(error.value)
    # with noise of its own it may go on
    other = finished(with_code(name, tmp_path / "copy", resume=True, fresh_noise=True))
    assert (other.params - first.params).norm() > first.params.norm() / 10
