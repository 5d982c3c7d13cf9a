"""`fedpriv.fit` for users of Opacus, compared with Opacus and plain torch."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from error_texts import error_of
from torch import nn, optim
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import fedpriv

DELTA = 1e-5
EPOCHS = 3


def data(n: int = 400) -> TensorDataset:
    x = torch.randn(n, 6, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x[:, 0] + x[:, 1] > 0).long())


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


def fit(module: nn.Module, optimizer: optim.Optimizer, **options: Any) -> fedpriv.Result:
    usual: dict[str, Any] = {"epochs": EPOCHS, "epsilon": 2.0, "seed": 1, "secret_seed": 2}
    loader = DataLoader(data(), batch_size=64, shuffle=True)
    return fedpriv.fit(module, loader, nn.CrossEntropyLoss(), optimizer, **{**usual, **options})


def test_fit_noise_and_epsilon_match_opacus(capsys: pytest.CaptureFixture[str]):
    """Compares the noise multiplier of Opacus' engine, and its accountant's epsilon for our noise."""
    opacus = pytest.importorskip("opacus")
    loader = DataLoader(data(), batch_size=64, shuffle=True)
    theirs = model()
    engine = opacus.PrivacyEngine(accountant="prv")
    _, their_optimizer, their_loader = engine.make_private_with_epsilon(
        module=theirs,
        optimizer=optim.SGD(theirs.parameters(), lr=0.5),
        data_loader=loader,
        target_epsilon=2.0,
        target_delta=DELTA,
        epochs=EPOCHS,
        max_grad_norm=1.0,
    )
    ours = model()
    result = fit(ours, optim.SGD(ours.parameters(), lr=0.5))

    assert result.rounds == EPOCHS * len(their_loader) == 21
    assert result.noise_multiplier == pytest.approx(their_optimizer.noise_multiplier, rel=0.01)
    state = fedpriv.to_opacus(result.charged)
    assert state["history"] == [(result.noise_multiplier, 1 / len(their_loader), 21)]
    accountant = opacus.accountants.create_accountant("prv")
    accountant.load_state_dict(state)
    lower, estimate, upper = accountant._get_dprv(1e-3, DELTA / 1000).compute_epsilon(DELTA, DELTA / 1000, 1e-3)
    assert lower <= result.spent.epsilon  # ours is a bound of what theirs encloses
    assert result.spent.epsilon == pytest.approx(upper, rel=0.01)
    with capsys.disabled():
        print(
            f"\nnoise multiplier: fedpriv {result.noise_multiplier:.4f}, "
            f"opacus {their_optimizer.noise_multiplier:.4f}; epsilon of fedpriv's noise: fedpriv "
            f"{result.spent.epsilon:.4f}, opacus {estimate:.4f} (at most {upper:.4f})"
        )


def test_given_noise_multiplier_epsilon_matches_opacus():
    accountants = pytest.importorskip("opacus.accountants")
    ours = model()
    result = fit(ours, optim.SGD(ours.parameters(), lr=0.5), epsilon=None, noise_multiplier=1.1)
    theirs = accountants.create_accountant("prv")
    theirs.history = [(1.1, 1 / 7, 21)]
    assert result.spent.epsilon == pytest.approx(theirs.get_epsilon(DELTA, eps_error=1e-3), rel=0.01)
    rdp = accountants.create_accountant("rdp")
    rdp.history = theirs.history
    assert result.spent.epsilon < rdp.get_epsilon(DELTA)


OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "sgd": lambda p: optim.SGD(p, 0.1),
    "momentum": lambda p: optim.SGD(p, 0.1, momentum=0.9),
    "nesterov and decay": lambda p: optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "sgd with decay": lambda p: optim.SGD(p, 0.1, weight_decay=0.2),
    "adam": lambda p: optim.Adam(p, 0.01, (0.8, 0.95), 1e-6),
    "adam with decay": lambda p: optim.Adam(p, 0.01, weight_decay=0.3),
    "adamw": lambda p: optim.AdamW(p, 0.01, weight_decay=0.3),
    "sgd without decay of biases": lambda p: optim.SGD(without_decay_of_biases(p), 0.1, momentum=0.9),
    "adam without decay of biases": lambda p: optim.Adam(without_decay_of_biases(p), 0.01),
    "adamw without decay of biases": lambda p: optim.AdamW(without_decay_of_biases(p), 0.01),
}
if "decoupled_weight_decay" in inspect.signature(optim.Adam).parameters:  # of torch 2.7 and later
    OPTIMIZERS["adam with decoupled decay"] = lambda p: optim.Adam(
        p, 0.01, weight_decay=0.3, decoupled_weight_decay=True
    )


def without_decay_of_biases(parameters: Any) -> list[dict[str, Any]]:
    every = [*parameters]
    return [
        {"params": [p for p in every if p.ndim < 2], "weight_decay": 0.0},
        {"params": [p for p in every if p.ndim > 1], "weight_decay": 0.3},
    ]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_steps_match_torch(name: str):
    """Full batches, negligible noise and a clip norm that never clips: plain torch computes the same model."""
    ours, theirs = model().double(), model().double()
    x, y = data(60).tensors
    loader = DataLoader(TensorDataset(x.double(), y), batch_size=60)
    fedpriv.fit(
        ours,
        loader,
        nn.CrossEntropyLoss(),
        OPTIMIZERS[name](ours.parameters()),
        epochs=12,
        noise_multiplier=1e-12,
        max_grad_norm=1e3,
        compute=fedpriv.Compute(dtype="float64"),
    )
    plain = OPTIMIZERS[name](theirs.parameters())
    for _ in range(12):
        plain.zero_grad()
        nn.functional.cross_entropy(theirs(x.double()), y).backward()
        plain.step()
    before = nn.utils.parameters_to_vector(model().double().parameters())
    after = nn.utils.parameters_to_vector(theirs.parameters())
    torch.testing.assert_close(nn.utils.parameters_to_vector(ours.parameters()), after, rtol=1e-5, atol=1e-6)
    assert (after - before).norm() > 0.05


def test_fit_trains_model_in_place():
    ours = model()
    before = copy.deepcopy(ours.state_dict())
    result = fit(ours, optim.SGD(ours.parameters(), lr=0.5))
    assert all(
        torch.equal(a, b) for a, b in zip(ours.state_dict().values(), result.model.state_dict().values(), strict=True)
    )
    assert not torch.equal(before["0.weight"], ours.state_dict()["0.weight"])


def test_single_batch_loader_full_sampling():
    ours = model()
    loader = DataLoader(data(), batch_size=400)
    optimizer = optim.SGD(ours.parameters(), lr=0.5)
    result = fedpriv.fit(ours, loader, nn.CrossEntropyLoss(), optimizer, epochs=2, epsilon=1.0)
    assert {record.sampling for record in result.charged} == {"full"}


def test_replace_one_needs_more_noise():
    ours, other = model(), model()
    weaker = fit(ours, optim.SGD(ours.parameters(), lr=0.5))
    stronger = fit(other, optim.SGD(other.parameters(), lr=0.5), relation="replace_one")
    assert stronger.noise_multiplier is not None and weaker.noise_multiplier is not None
    # its multiplier is over twice the clip norm
    assert 2 * stronger.noise_multiplier > 1.4 * weaker.noise_multiplier


def test_fit_charges_lifetime_budget(tmp_path: Any):
    path = tmp_path / "b.jsonl"
    budget = fedpriv.Budget.create(path, epsilon=2.5, delta=DELTA, relation="add_remove", invariants="sizes public")
    ours = model()
    fit(ours, optim.SGD(ours.parameters(), lr=0.5), budget=path, secret_seed=None)
    assert budget.balance().spent.epsilon == pytest.approx(2.0, rel=0.01)
    other = model()
    with pytest.raises(fedpriv.BudgetExhausted):
        fit(other, optim.SGD(other.parameters(), lr=0.5), budget=path, secret_seed=None)


REFUSED: dict[str, tuple[Callable[[nn.Module], optim.Optimizer], str]] = {
    "another rule": (lambda m: optim.RMSprop(m.parameters()), "RMSprop.*no counterpart.*SGD, Adam or AdamW"),
    "a subclass": (lambda m: type("Mine", (optim.SGD,), {})(m.parameters(), lr=0.1), "Mine.*no counterpart"),
    "dampening": (lambda m: optim.SGD(m.parameters(), 0.1, momentum=0.9, dampening=0.5), "dampening.*set dampening=0"),
    "ascent": (lambda m: optim.SGD(m.parameters(), 0.1, maximize=True), "maximize.*set maximize=False"),
    "amsgrad": (lambda m: optim.Adam(m.parameters(), amsgrad=True), "amsgrad.*set amsgrad=False"),
    "groups": (
        lambda m: optim.SGD([{"params": [*m[0].parameters()], "lr": 1.0}, {"params": [*m[2].parameters()]}], 0.1),
        "optimizer.lr.*differs between parameter groups",
    ),
    "a part": (lambda m: optim.SGD(m[0].parameters(), 0.1), "does not train model.2.weight"),
    "another model": (
        lambda m: optim.SGD([*m.parameters(), *nn.Linear(2, 2).parameters()], 0.1),
        "parameters that the model does not have",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_optimizer_raises_with_reason(name: str):
    make, reason = REFUSED[name]
    ours = model()
    with pytest.raises(fedpriv.ConfigError, match=reason):
        fit(ours, make(ours))


def test_used_optimizer_raises():
    ours = model()
    optimizer = optim.Adam(ours.parameters())
    ours(data().tensors[0]).sum().backward()
    optimizer.step()
    with pytest.raises(fedpriv.ConfigError, match="create a new optimizer"):
        fit(ours, optimizer)


def test_optimizer_with_scheduler_raises():
    ours = model()
    optimizer = optim.SGD(ours.parameters(), lr=0.1)
    optim.lr_scheduler.StepLR(optimizer, 1)
    with pytest.raises(fedpriv.ConfigError, match="has a scheduler"):
        fit(ours, optimizer)


def test_second_fit_of_trained_model_raises():
    """The privacy cost of the first fit would be missing."""
    ours = model()
    first = fit(ours, optim.SGD(ours.parameters(), lr=0.1))
    with pytest.raises(fedpriv.ConfigError, match=r"epsilon=2 .*earlier fit"):
        fit(ours, optim.SGD(ours.parameters(), lr=0.1), secret_seed=3)
    later = copy.deepcopy(ours)
    second = fit(later, optim.SGD(later.parameters(), lr=0.1), secret_seed=3)
    assert fedpriv.total([first, second]).epsilon > 2.5


def test_fit_of_wrapped_trained_model_raises():
    """A new head on a trained body, also if the body is frozen."""
    body = model()
    fit(body, optim.SGD(body.parameters(), lr=0.1))
    around = nn.Sequential(body, nn.Linear(2, 2))
    with pytest.raises(fedpriv.ConfigError, match=r"epsilon=2 .*earlier fit"):
        fit(around, optim.SGD(around.parameters(), lr=0.1), secret_seed=3)
    body.requires_grad_(False)
    with pytest.raises(fedpriv.ConfigError, match=r"epsilon=2 .*earlier fit"):
        fit(around, optim.SGD(around[1].parameters(), lr=0.1), secret_seed=3)


def test_reset_model_fits_again():
    ours = model()
    before = copy.deepcopy(ours.state_dict())
    fit(ours, optim.SGD(ours.parameters(), lr=0.1))
    ours.load_state_dict(before)
    assert fit(ours, optim.SGD(ours.parameters(), lr=0.1), secret_seed=3).rounds == 21


class EverySecond(Sampler[int]):
    """Leaves every second example out."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(0, 400, 2))

    def __len__(self) -> int:
        return 200


CHOOSING: dict[str, Callable[[], DataLoader[Any]]] = {
    "a subset": lambda: DataLoader(data(), batch_size=64, sampler=SubsetRandomSampler(range(0, 400, 2))),
    "a custom sampler": lambda: DataLoader(data(), batch_size=64, sampler=EverySecond()),
    "a batch sampler": lambda: DataLoader(data(), batch_sampler=BatchSampler(EverySecond(), 64, drop_last=False)),
    "weights of zero": lambda: DataLoader(
        data(), batch_size=64, sampler=WeightedRandomSampler([0.0, 1.0] * 200, num_samples=400)
    ),
    "one process of two": lambda: DataLoader(
        data(), batch_size=64, sampler=DistributedSampler(data(), num_replicas=2, rank=0)
    ),
}


@pytest.mark.parametrize("name", CHOOSING)
def test_sampler_with_excluded_examples_raises(name: str):
    """Otherwise the excluded examples (no consent, test data) would be trained on."""
    ours = model()
    with pytest.raises(fedpriv.DataError, match=r"draws from only 200 examples.*Subset"):
        fedpriv.fit(
            ours, CHOOSING[name](), nn.CrossEntropyLoss(), optim.SGD(ours.parameters(), 0.1), epochs=1, epsilon=1.0
        )


def fitted(loader: DataLoader[Any], epochs: int = 2) -> fedpriv.Result:
    ours = model()
    optimizer = optim.SGD(ours.parameters(), 0.1)
    return fedpriv.fit(ours, loader, nn.CrossEntropyLoss(), optimizer, epochs=epochs, noise_multiplier=2.0)


def test_weighted_sampler_warning_names_weights():
    loader = DataLoader(data(), batch_size=64, sampler=WeightedRandomSampler([1.0, 3.0] * 200, num_samples=400))
    with pytest.warns(fedpriv.errors.PromiseWarning, match="are ignored.*sampler=WeightedRandomSampler") as warned:
        fitted(loader)
    (text,) = [str(warning.message) for warning in warned if "are ignored" in str(warning.message)]
    assert "The sampler's weights are ignored too" in text
    assert "CrossEntropyLoss(weight=w)" in text


BATCHES: dict[str, tuple[Callable[[], DataLoader[Any]], int, float]] = {
    "whole epochs": (lambda: DataLoader(data(), 50, shuffle=True), 8, 50),
    "a smaller last batch": (lambda: DataLoader(data(), 64), 7, 400 / 7),
    "no last batch": (lambda: DataLoader(data(), 64, drop_last=True), 6, 64),
    "one batch of some": (lambda: DataLoader(data(), 300, drop_last=True), 1, 300),
    "128 drawn": (lambda: DataLoader(data(), 16, sampler=RandomSampler(data(), num_samples=128)), 8, 16),
    "fewer drawn than a batch": (lambda: DataLoader(data(), 64, sampler=RandomSampler(data(), num_samples=10)), 1, 10),
    "more drawn than examples": (
        lambda: DataLoader(data(), 50, sampler=RandomSampler(data(), replacement=True, num_samples=1000)),
        20,
        50,
    ),
    "a weighted sampler": (lambda: DataLoader(data(), 16, sampler=WeightedRandomSampler([1.0] * 400, 128)), 8, 16),
    "a batch sampler": (
        lambda: DataLoader(data(), batch_sampler=BatchSampler(RandomSampler(data(), num_samples=128), 32, False)),
        4,
        32,
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BATCHES)
def test_fit_batch_size_matches_loader(name: str):
    """A loader drew 128 of 20 000 examples an epoch in 8 batches of 16; fit once used 2 500 examples a step."""
    make, steps, batch = BATCHES[name]
    result = fitted(make())
    assert result.rounds == 2 * steps
    (rate,) = {record.rate for record in result.charged}
    assert rate == pytest.approx(batch / 400)
    assert result.gradient_evaluations == pytest.approx(2 * steps * batch)


class Buckets(Sampler[list[int]]):
    """Batches of sizes that the sampler does not declare."""

    def __iter__(self) -> Iterator[list[int]]:
        yield from ([*range(8)], [*range(8, 400)])

    def __len__(self) -> int:
        return 2


def test_batch_sampler_of_unknown_batches_raises():
    with pytest.raises(
        fedpriv.ConfigError,
        match=r"loader.batch_sampler = 'Buckets': the size of its batches is unknown: set batch_size",
    ):
        fitted(DataLoader(data(), batch_sampler=Buckets()))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(data(10))


class StreamWithLength(Stream):
    def __len__(self) -> int:
        return 10


STREAMS: dict[str, Callable[[], object]] = {
    "client": lambda: fedpriv.Client(model(), nn.CrossEntropyLoss(), DataLoader(StreamWithLength())),
    "datasets": lambda: fedpriv.make_clients(model(), nn.CrossEntropyLoss(), [StreamWithLength()]),
    "client 1": lambda: fedpriv.count_examples(lambda i: StreamWithLength() if i else data(10), 2),
    "client 0": lambda: fedpriv.train(
        fedpriv.lazy_clients(model(), nn.CrossEntropyLoss(), lambda _: StreamWithLength(), [10]),
        fedpriv.fedavg(0.1),
        fedpriv.Privacy(epsilon=1),
        rounds=1,
    ),
    "test": lambda: fitted_with(test=DataLoader(StreamWithLength())),
    r"client_tests\[0\]": lambda: fedpriv.train(
        fedpriv.make_clients(model(), nn.CrossEntropyLoss(), [data()]),
        fedpriv.fedavg(0.1),
        fedpriv.Privacy(epsilon=1),
        rounds=1,
        client_tests=[StreamWithLength()],
    ),
}


def fitted_with(**options: Any) -> fedpriv.Result:
    ours = model()
    return fit(ours, optim.SGD(ours.parameters(), 0.1), **options)


@pytest.mark.parametrize("name", STREAMS)
def test_stream_with_length_raises(name: str):
    with pytest.raises(fedpriv.FedprivError, match=f"{name}.*stream.*ollect"):
        STREAMS[name]()


def test_opacus_argument_error_suggests_fit_argument():
    ours = model()
    loader = DataLoader(data(), batch_size=64)
    words = {
        "target_epsilon": "write epsilon=3",
        "target_delta": "write delta=3",
        "clip": "write max_grad_norm=3",
        "max_norm": "write max_grad_norm=3",
        "sigma": "write noise_multiplier=3",
        "batch_size": "DataLoader(dataset, batch_size=3)",
        "lr": "torch.optim.SGD(model.parameters(), lr=3)",
        "num_epochs": "write epochs=3",
        "rounds": "write epochs",
    }
    for word, write in words.items():
        arguments: dict[str, Any] = {word: 3}
        said = error_of(
            lambda arguments=arguments: fedpriv.fit(
                ours, loader, nn.CrossEntropyLoss(), optim.SGD(ours.parameters(), lr=0.1), **arguments
            )
        )
        assert write in said, said


def test_batch_norm_raises_with_fix():
    ours = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    with pytest.raises(fedpriv.ConfigError, match="fix_model"):
        fit(ours, optim.SGD(ours.parameters(), lr=0.1))


def test_loader_without_length_or_batch_raises():
    ours = model()
    optimizer = optim.SGD(ours.parameters(), lr=0.1)
    with pytest.raises(fedpriv.ConfigError, match=r"loader\.batch_size = 64: the loader returns no batch"):
        loader = DataLoader(data(10), batch_size=64, drop_last=True)
        fedpriv.fit(ours, loader, nn.CrossEntropyLoss(), optimizer, epochs=1, epsilon=1.0)

    class Endless(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(10))

    for loader in (DataLoader(Stream()), DataLoader(StreamWithLength(), batch_size=5)):
        with pytest.raises(
            fedpriv.ConfigError, match=r"is a streaming data set.*collect the examples into a TensorDataset"
        ):
            fedpriv.fit(ours, loader, nn.CrossEntropyLoss(), optimizer, epochs=1, epsilon=1.0)
    with pytest.raises(fedpriv.ConfigError, match="add __len__ to the data set and the sampler"):
        fitted(DataLoader(data(10), sampler=Endless()))
    assert not math.isnan(sum(p.sum().item() for p in ours.parameters()))
