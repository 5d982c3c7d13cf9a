"""Clients share what is frozen, which must be the same for all of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import networkx as nx
import pytest
import torch
from frozen_parts import clients, resnet

import fedpriv as fp
from fedpriv.clients.layout import Layout, collect_constants


def changed(name: str) -> list[fp.Client]:
    made = [fp.Client(resnet(), client.loss, client.loader) for client in clients()]
    model = made[2].model
    with torch.no_grad():
        collect_constants(model)[name].mul_(1 + 1e-6)
    return made


@pytest.mark.parametrize("name", ["body.1.conv.weight", "scale"])
def test_clients_differing_frozen_values_raise(name: str) -> None:
    with pytest.raises(fp.ConfigError, match=rf"^clients\[2\]\.model = '{name}': .*the first client"):
        fp.Training(changed(name), fp.fedavg(0.5), fp.Privacy(epsilon=3), rounds=1)


def test_clients_freezing_different_parts_raise() -> None:
    made = clients()
    made[1].model.body.requires_grad_(True)
    with pytest.raises(fp.ConfigError, match=r"^clients\[1\]\.model = 'ResNet': .*frozen"):
        fp.Training(made, fp.fedavg(0.5), fp.Privacy(epsilon=3), rounds=1)


def test_clients_share_frozen_tensors_only() -> None:
    """Clients given separate copies share them too, which frees memory; the user's model is left unchanged."""
    model = resnet()
    separate = [fp.Client(resnet(), client.loss, client.loader) for client in clients()]
    for made in (clients(model), separate):
        fp.Training(made, fp.fedavg(0.5), fp.Privacy(epsilon=3), rounds=1)
        fixed = [collect_constants(client.model) for client in made]
        assert all(tensor.data_ptr() == fixed[0][name].data_ptr() for one in fixed for name, tensor in one.items())
        assert len({client.model.head.weight.data_ptr() for client in made}) == len(made)
        mine = {tensor.data_ptr() for tensor in collect_constants(model).values()}
        assert not mine & {tensor.data_ptr() for tensor in fixed[0].values()}


def test_shared_trainable_part_copied_per_client() -> None:
    made = clients()
    for client in made:
        client.model.body.requires_grad_(True)
    graph = fp.Graph(nx.path_graph(3))
    result = fp.train(made, fp.decentralized_sgd(fp.StepSize(0.5)), fp.Privacy(epsilon=5), rounds=2, network=graph)
    for client, row in zip(made, result.node_params, strict=True):
        assert torch.equal(Layout.of(client.model).row_of(client.model), row)
    assert len({float(row.sum()) for row in result.node_params}) == 3


PEAK = """
import sys, torch
sys.path.insert(0, "benchmarks/speed")
import fedpriv as fp
from fedpriv.models import ResNet18, train_only
from memory import peak_megabytes
from torch.utils.data import TensorDataset
n = int(sys.argv[1])
torch.set_num_threads(1)
data = [TensorDataset(torch.rand(1, 3, 8, 8), torch.zeros(1, dtype=torch.long)) for _ in range(n)]
model = train_only(ResNet18((3, 8, 8), stem="cifar"), ["fc.*"])
before = peak_megabytes()
clients = fp.make_clients(model, torch.nn.CrossEntropyLoss(), data)
compute = fp.Compute(max_physical_batch_size=2)
training = fp.Training(clients, fp.scaffold(.5), fp.Privacy(epsilon=3), rounds=1, compute=compute, folder=sys.argv[2])
(report,) = training
training.result()
print(training.population.dim, report.metrics["bytes_sent"], before, peak_megabytes())
"""


@pytest.mark.slow
def test_hundred_clients_share_frozen_memory(tmp_path: Path) -> None:
    """A hundred bodies are 4.5 GB. Messages and checkpoints hold heads."""
    n, root = 100, Path(__file__).parents[2]
    words = [sys.executable, "-c", PEAK, str(n), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=root, check=True)
    dim, sent, before, after = (float(word) for word in done.stdout.split())
    assert dim == 5130
    assert sent == 2 * 2 * n * 5130 * 4  # a model and a control variate, up and down
    assert (tmp_path / "checkpoint.pt").stat().st_size < 4.1 * n * 5130 * 4
    # the clients' body, two that are tried out in double precision, of twice the size, and one of the result; the rest
    # is for code, heads and images
    assert after - before < 10 * 45
