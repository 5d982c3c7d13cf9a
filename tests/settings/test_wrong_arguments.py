"""One thing where another is meant, too few arguments or too many: the answer says what to write."""

from __future__ import annotations

import networkx
import numpy as np
import pandas as pd
import pytest
import torch
from error_texts import CNN, clients, dataset, error_of, run
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

import fedpriv
from fedpriv import DataError

SAID = {
    "fedavg": (
        lambda: run(strategy="fedavg"),
        "strategy = 'fedavg': must be created with fedpriv.fedavg(learning_rate=0.1)",
    ),
    "FedProx": (
        lambda: run(strategy="FedProx"),
        "must be created with fedpriv.fedprox(learning_rate=0.1, proximal_mu=0.1)",
    ),
    "none": (lambda: run(privacy="none"), 'must be created with fedpriv.Privacy(noise_on="none")'),
    "a device for compute": (lambda: run(compute="cuda:0"), "must be created with fedpriv.Compute()"),
    "cuda for compute": (lambda: run(compute="cuda"), 'must be created with fedpriv.Compute(device="cuda")'),
    "a patience": (lambda: run(stop=5), 'must be created with fedpriv.Stop("accuracy", patience=5)'),
    "a ring": (lambda: run(network="ring"), "must be created with fedpriv.Graph(networkx.cycle_graph(10))"),
    "outages of a star": (
        lambda: fedpriv.Star(5, outages=[]),
        "is unknown; leave it out (with a server, use network.cohort, or all clients take part",
    ),
    "torch's scheduler": (
        lambda: fedpriv.fedavg(torch.optim.lr_scheduler.StepLR(torch.optim.SGD(CNN.parameters(), lr=0.1), 3)),
        "is a learning-rate schedule of torch, which fedpriv cannot use: write fedpriv.Cosine(peak=0.1,",
    ),
    "no such one": (lambda: run(strategy="zzz"), "must be created with fedpriv.fedavg(learning_rate=0.1)"),
    "the function": (lambda: run(strategy=fedpriv.fedavg), "call it, e.g. fedpriv.fedavg(learning_rate=0.1)"),
    "torch SGD": (
        lambda: run(strategy=torch.optim.SGD(CNN.parameters(), lr=0.3, momentum=0.9)),
        "write fedpriv.fedavg(learning_rate=0.3, optimizer=fedpriv.Momentum(0.9))",
    ),
    "torch Adam": (
        lambda: fedpriv.fedavg(0.1, optimizer=torch.optim.Adam(CNN.parameters())),
        "strategy.optimizer = Adam",
    ),
    "a word for an optimizer": (
        lambda: fedpriv.fedavg(0.1, optimizer="adam"),
        "strategy.optimizer = 'adam': must be created with fedpriv.Adam()",
    ),
    "a mechanism for privacy": (
        lambda: run(privacy="gaussian"),
        "must be created with fedpriv.Privacy(epsilon=3.0, delta=1e-5, mechanism=fedpriv.Gaussian())",
    ),
    "a number for privacy": (lambda: run(privacy=2.0), "must be created with fedpriv.Privacy(epsilon=2.0)"),
    "no privacy": (lambda: run(privacy=None), 'fedpriv.Privacy(noise_on="none")'),
    "the class": (lambda: run(privacy=fedpriv.Privacy), "is a class: create an object with fedpriv.Privacy("),
    "a number for a clip": (
        lambda: fedpriv.Privacy(epsilon=1.0, clip=2.0),
        "must be created with fedpriv.Clip(bound=2.0)",
    ),
    "a word for a mechanism": (
        lambda: fedpriv.Privacy(epsilon=1.0, mechanism="laplace"),
        "privacy.mechanism = 'laplace': must be created with fedpriv.Laplace()",
    ),
    "a class for a mechanism": (
        lambda: fedpriv.Privacy(epsilon=1.0, mechanism=fedpriv.Laplace),
        "is a class: create an object with fedpriv.Laplace()",
    ),
    "a word for trust": (
        lambda: fedpriv.Privacy(epsilon=1.0, trust="central"),
        "must be created with fedpriv.Central()",
    ),
    "a word for batches": (
        lambda: fedpriv.Privacy(epsilon=1.0, sampling="fixed_size"),
        "must be created with fedpriv.FixedSize(size=10)",
    ),
    "a rate for batches": (lambda: fedpriv.Privacy(epsilon=1.0, sampling=0.1), "fedpriv.Poisson(rate=0.1)"),
    "a graph for a network": (
        lambda: run(network=networkx.cycle_graph(4)),
        "fedpriv.Graph(networkx.cycle_graph(10))",
    ),
    "gpu": (lambda: fedpriv.Compute(device="gpu"), "compute.device = 'gpu': write 'cuda'"),
    "gpu:1": (lambda: fedpriv.Compute(device="gpu:1"), "write 'cuda:1'"),
    "a torch device": (lambda: fedpriv.Compute(device=torch.device("cpu")), "write 'cpu'"),
    "a torch dtype": (lambda: fedpriv.Compute(dtype=torch.float64), "choose 'float32' or 'float64'"),
    "one client": (
        lambda: run(clients=clients()[0]),
        "clients = 'a Client': is one client, but must be a list of clients",
    ),
    "one model": (lambda: run(clients=CNN), "fedpriv.Client(model, loss, loader)"),
    "models": (
        lambda: run(clients=[CNN, CNN]),
        "clients[0] = 'a Linear': is not a client: a client has a model, a loss and data",
    ),
    "loaders": (
        lambda: run(clients=[clients()[0], DataLoader(dataset())]),
        "clients[1] = 'a DataLoader': is not a client: write fedpriv.Client(model, loss, loader)",
    ),
    "data sets": (lambda: run(clients=[dataset()]), "write fedpriv.make_clients(model, loss, datasets)"),
    "a generator": (lambda: run(clients=(client for client in clients())), "list(clients)"),
    "a dict": (lambda: run(clients=dict(enumerate(clients()))), "list(clients.values())"),
    "no clients": (lambda: run(clients=[]), "at least one client"),
    "one data set": (
        lambda: fedpriv.make_clients(CNN, nn.CrossEntropyLoss(), dataset()),
        "make_clients.datasets = 'a TensorDataset': is one data set: pass a list",
    ),
    "one loader": (
        lambda: fedpriv.make_clients(CNN, nn.CrossEntropyLoss(), DataLoader(dataset())),
        "make_clients.datasets = 'a DataLoader': is one loader: pass a list with one loader or data set per client",
    ),
    "tensors for a data set": (
        lambda: fedpriv.make_clients(CNN, nn.CrossEntropyLoss(), [(torch.ones(2, 4), torch.ones(2))]),
        "TensorDataset(inputs, targets)",
    ),
    "rows for a loader": (
        lambda: fedpriv.Client(CNN, nn.CrossEntropyLoss(), [1, 2]),
        "client.loader = 'a list': is not a data loader: write torch.utils.data.DataLoader(torch.utils.data.",
    ),
    "arrays of numpy for a data set": (
        lambda: fedpriv.make_clients(CNN, nn.CrossEntropyLoss(), [(np.ones((2, 4)), np.ones(2))]),
        "inputs=torch.from_numpy(X).float(), targets=torch.from_numpy(y)",
    ),
    "a table for clients": (
        lambda: run(clients=pd.DataFrame({"age": [1]})),
        "clients = 'a DataFrame': must be a list of clients",
    ),
    "sizes by name": (lambda: fedpriv.lazy_clients(CNN, nn.CrossEntropyLoss(), dataset, {"a": 3}), "entry i"),
    "a number for sizes": (lambda: fedpriv.lazy_clients(CNN, nn.CrossEntropyLoss(), dataset, 5), "count_examples"),
    "a unit of others": (lambda: fedpriv.Privacy(epsilon=1, unit="user"), "'user' in other libraries is 'client' here"),
    "a relation of others": (
        lambda: fedpriv.Privacy(epsilon=1, relation="add_or_remove_one"),
        "'add_or_remove_one' in other libraries is 'add_remove' here",
    ),
    "custom class as strategy": (lambda: run(strategy=Sink()), "fedpriv.Strategy(local_step, aggregator)"),
    "epsilons for results": (lambda: fedpriv.total([1.0]), "epsilons alone do not suffice"),
    "a class for a loss": (
        lambda: fedpriv.make_clients(CNN, nn.CrossEntropyLoss, [dataset()]),
        "is a class: pass an object of it, CrossEntropyLoss()",
    ),
    "a name for a loss": (lambda: fedpriv.make_clients(CNN, "cross_entropy", [dataset()]), "resolve_loss"),
    "a class for a model": (lambda: fedpriv.make_clients(nn.Linear, nn.MSELoss(), [dataset()]), "is a class"),
    "test loader with collate function": (
        lambda: run(test=DataLoader(dataset(), collate_fn=list)),
        "has its own collate_fn",
    ),
    "a loader of chosen test data": (
        lambda: run(test=DataLoader(dataset(), sampler=SubsetRandomSampler([0]))),
        "torch.utils.data.Subset(dataset, indices)",
    ),
    "tensors for test data": (lambda: run(test=(torch.ones(2, 4), torch.ones(2))), "TensorDataset(inputs, targets)"),
    "a folder for sinks": (lambda: run(sinks="runs/a"), "sinks=[fedpriv.sinks.TensorBoard('runs/a')]"),
    "one sink": (lambda: run(sinks=Sink()), "sinks=[sink]"),
    "a class for a sink": (lambda: run(sinks=[fedpriv.sinks.TensorBoard]), "TensorBoard('runs/a')"),
    "sink without close": (lambda: run(sinks=[HalfASink()]), "def close(self) -> None"),
    "a list of metrics": (lambda: run(metrics=["f1"]), "by name"),
}


class Sink:
    def write(self, report: object) -> None: ...
    def close(self) -> None: ...


class HalfASink:
    def write(self, report: object) -> None: ...


@pytest.mark.parametrize("name", SAID)
def test_argument_of_wrong_type_shows_fix(name: str):
    typed, message = SAID[name]
    assert message in error_of(typed)


def test_loader_without_targets_raises():
    bare = DataLoader(TensorDataset(torch.ones(4, 4)))
    with pytest.raises(DataError, match=r"inputs without targets.*TensorDataset\(inputs, targets\)"):
        fedpriv.train(
            [fedpriv.Client(CNN, nn.CrossEntropyLoss(), bare)],
            fedpriv.fedavg(0.1),
            fedpriv.Privacy(epsilon=3.0),
            rounds=1,
        )


# --- too few, too many ------------------------------------------------------------------------------------------------


def test_missing_argument_shows_example():
    assert error_of(fedpriv.fedavg).startswith(
        "strategy.learning_rate = (not given): is required: Step size of the clients"
    )
    assert error_of(fedpriv.fedavg).endswith("e.g. fedpriv.fedavg(learning_rate=0.1)")
    assert (
        "Probability that an example joins the batch of a query, in (0, 1]; e.g. fedpriv.Poisson(rate=0.01)"
        in error_of(fedpriv.Poisson)
    )
    assert "rounds = (not given): is required: Number of rounds; e.g. fedpriv.train(" in error_of(
        lambda: fedpriv.train(clients(), fedpriv.fedavg(0.1), fedpriv.Privacy(epsilon=3.0))
    )
    assert "target epsilon" in error_of(fedpriv.Privacy)


def test_keyword_argument_by_position_raises():
    three = clients(), fedpriv.fedavg(0.1), fedpriv.Privacy(epsilon=3.0)
    assert (
        "must be given by name, e.g. rounds=...; only clients, strategy, privacy can be given by position"
        in error_of(lambda: fedpriv.train(*three, 10))
    )


def test_surplus_argument_raises():
    assert (
        "is one argument too many: leave it out; fedpriv.Poisson accepts rate, e.g. fedpriv.Poisson(rate=0.01)"
        in error_of(lambda: fedpriv.Poisson(0.1, 10))
    )


def test_repeated_argument_raises():
    assert "is given twice" in error_of(lambda: fedpriv.fedavg(0.1, learning_rate=0.2))


NUMBERS_AS_TEXT = {
    "epsilon": lambda: fedpriv.Privacy(epsilon="3"),
    "delta": lambda: fedpriv.Privacy(epsilon=3.0, delta=" 1e-5"),
    "noise multiplier": lambda: fedpriv.Privacy(noise_multiplier="1.1"),
    "learning rate": lambda: fedpriv.fedavg("0.1"),
    "rounds": lambda: run(rounds="5"),
}


@pytest.mark.parametrize("name", NUMBERS_AS_TEXT)
def test_number_as_text_shows_number(name: str):
    assert "is text: write the number" in error_of(NUMBERS_AS_TEXT[name])


def test_error_of_privacy_shows_no_yaml():
    for values in ({"epsilon": 0}, {"epsilon": -1.0}, {"epsilon": 1.0, "delta": 0.0}):
        message = error_of(lambda values=values: fedpriv.Privacy(**values))
        assert "at: " not in message and "mechanism: " not in message
