"""Names of other libraries on `fedpriv` and on a result: each is answered with something that exists."""

from __future__ import annotations

import inspect
import re

import pytest
import torch
from answers import CNN, clients, dataset, run
from torch import nn
from torch.utils.data import DataLoader

import fedpriv
from fedpriv.config import STRATEGIES
from fedpriv.settings.translations import read_entries


@pytest.mark.parametrize("name", read_entries("fedpriv"))
def test_a_name_of_another_library_is_answered_with_names_that_exist(name: str):
    with pytest.raises(AttributeError, match=f"fedpriv has no {name}: write ") as caught:
        getattr(fedpriv, name)
    assert caught.value.name == name
    for call, words in re.findall(r"fedpriv\.([\w.]+)(?:\(([^()]*))?", read_entries("fedpriv")[name]):
        thing = fedpriv
        for part in call.strip(".").split("."):
            thing = getattr(thing, part)
        for word in re.findall(r"(\w+)=", words):
            assert word in inspect.signature(thing).parameters, (call, word)


def test_an_unknown_name_is_an_attribute_error_as_ever():
    with pytest.raises(AttributeError, match="no_such_name"):
        fedpriv.no_such_name  # noqa: B018
    assert not hasattr(fedpriv, "__wrapped__")


def test_words_for_a_result_name_what_it_has():
    result = run(test=dataset())
    for word, write in read_entries("result").items():
        with pytest.raises(AttributeError, match="a result has no "):
            getattr(result, word)
        for path in re.findall(r"result\.([\w.]+)", write):
            thing = result
            for part in path.strip(".").split("."):
                thing = getattr(thing, part)
    assert not hasattr(result, "no_such_name")


def test_loaders_of_test_data_and_data_sets_of_clients_are_taken_as_they_are():
    """They make the same run, number for number."""
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


def test_a_loader_given_to_make_clients_collates_its_own_way():
    def doubled(examples: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = zip(*examples, strict=True)
        return 2 * torch.stack(inputs), torch.stack(targets)

    (client,) = fedpriv.make_clients(CNN, nn.CrossEntropyLoss(), [DataLoader(dataset(), collate_fn=doubled)])
    (plain,) = fedpriv.make_clients(CNN, nn.CrossEntropyLoss(), [dataset()])
    assert torch.equal(client.examples()[0], 2 * plain.examples()[0])


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_a_strategy_of_configurations_is_a_function_or_says_which_one_it_is(name: str):
    assert hasattr(fedpriv, name) or name in read_entries("fedpriv")


def test_whatever_has_a_length_and_an_index_is_a_data_set():
    """A list of pairs, for one: torch's loaders take it too."""
    pairs = [dataset()[index] for index in range(3)]
    (client,) = fedpriv.make_clients(CNN, nn.CrossEntropyLoss(), [pairs])
    assert len(client) == 3
