"""The copy of a model that checks use: whether it draws random numbers."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.clients.layout import Layout
from fedpriv.clients.population import Population
from fedpriv.oracle.traced_model import TracedModel


@pytest.mark.parametrize(("layer", "draws"), [(nn.Identity(), False), (nn.Dropout(0.5), True)])
def test_model_draws_whatever_was_drawn_before(layer, draws):
    model = nn.Sequential(nn.Linear(3, 4), layer)
    data = TensorDataset(torch.randn(5, 3), torch.zeros(5, dtype=torch.long))
    population = Population(fp.make_clients(model, nn.CrossEntropyLoss(), [data]))
    traced = TracedModel(population, Layout.of(model).row_of(model))
    torch.manual_seed(5)
    torch.rand(3)
    assert traced.draws(torch.randn(2, 3)) is draws
