"""Names of other libraries on `fedpriv` and on a result: each is answered with something that exists."""

from __future__ import annotations

import inspect
import re

import pytest
import torch
from error_texts import CNN, clients, dataset, run
from torch import nn
from torch.utils.data import DataLoader

import fedpriv
from fedpriv.config import STRATEGIES
from fedpriv.settings.translations import read_entries


@pytest.mark.parametrize("name", read_entries("fedpriv"))
def test_foreign_name_suggests_existing_names(name: str):
    with pytest.raises(AttributeError, match=f"fedpriv has no {name}: write ") as caught:
        getattr(fedpriv, name)
    assert caught.value.name == name
    for call, words in re.findall(r"fedpriv\.([\w.]+)(?:\(([^()]*))?", read_entries("fedpriv")[name]):
        thing = fedpriv
        for part in call.strip(".").split("."):
            thing = getattr(thing, part)
        for word in re.findall(r"(\w+)=", words):
            assert word in inspect.signature(thing).parameters, (call, word)


def test_unknown_name_raises_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        fedpriv.no_such_name  # noqa: B018
    assert not hasattr(fedpriv, "__wrapped__")


def test_foreign_result_attribute_suggests_existing():
    result = run(test=dataset())
    for word, write in read_entries("result").items():
        with pytest.raises(AttributeError, match="a result has no "):
            getattr(result, word)
        for path in re.findall(r"result\.([\w.]+)", write):
            thing = result
            for part in path.strip(".").split("."):
                thing = getattr(thing, part)
    assert not hasattr(result, "no_such_name")


def test_loader_or_data_set_same_run():
    """Both give the same run, bit for bit."""
    data = dataset()
    results = list[fedpriv.Result]()
    for test in (data, DataLoader(data, batch_size=3, shuffle=True)):
        torch.manual_seed(0)
        results.append(run(clients=clients(), test=test, secret_seed=1, seed=1))
    one, other = results
    assert torch.equal(one.params, other.params) and one.test_loss == other.test_loss
    loss = nn.CrossEntropyLoss()
    sources = (data, DataLoader(data))
    for by_data, by_loader in (
        [fedpriv.Client(CNN, loss, source) for source in sources],
        fedpriv.make_clients(CNN, loss, sources),
    ):
        assert len(by_data) == len(by_loader) and torch.equal(by_data.examples()[0], by_loader.examples()[0])


def test_make_clients_uses_loader_collate():
    def doubled(examples: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = zip(*examples, strict=True)
        return 2 * torch.stack(inputs), torch.stack(targets)

    (client,) = fedpriv.make_clients(CNN, nn.CrossEntropyLoss(), [DataLoader(dataset(), collate_fn=doubled)])
    (plain,) = fedpriv.make_clients(CNN, nn.CrossEntropyLoss(), [dataset()])
    assert torch.equal(client.examples()[0], 2 * plain.examples()[0])


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_every_strategy_name_has_python_function(name: str):
    assert hasattr(fedpriv, name) or name in read_entries("fedpriv")


def test_list_of_pairs_accepted_as_data_set():
    """As in torch's loaders, any object with a length and an index is accepted."""
    pairs = [dataset()[index] for index in range(3)]
    (client,) = fedpriv.make_clients(CNN, nn.CrossEntropyLoss(), [pairs])
    assert len(client) == 3
