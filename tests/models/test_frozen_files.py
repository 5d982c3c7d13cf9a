"""Saved models hold frozen parts, and a run with them goes on as if it had not stopped."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import pytest
import torch
from frozen_parts import ResNet, assert_frozen_as, clients, resnet
from torch import nn

import fedpriv as fp
from fedpriv.clients.layout import Layout


def test_saved_models_include_frozen_parts(tmp_path: Path) -> None:
    made = clients()
    graph = fp.Graph(nx.cycle_graph(3))
    result = fp.train(made, fp.decentralized_sgd(fp.StepSize(0.5)), fp.Privacy(epsilon=5), rounds=2, network=graph)
    result.save(tmp_path, nodes=True)
    one, start = resnet(), resnet()
    one.load_state_dict(torch.load(tmp_path / "model.pt"))
    torch.testing.assert_close(Layout.of(one).row_of(one), result.params)
    assert_frozen_as(one, start)
    for state, row in zip(torch.load(tmp_path / "node_models.pt"), result.node_params, strict=True):
        one.load_state_dict(state)
        assert torch.equal(Layout.of(one).row_of(one), row)
        assert_frozen_as(one, start)


def run_in(folder: Path, model: nn.Module, *, rounds: int, resume: bool) -> fp.Training:
    """Train until `rounds` of six are done."""
    training = fp.Training(
        clients(model),
        fp.scaffold(0.5),
        fp.Privacy(epsilon=5),
        rounds=6,
        seed=7,
        secret_seed=7,
        folder=folder,
        checkpoint_every=2,
        resume=resume,
    )
    for report in training:
        if report.round == rounds:
            break
    return training


def test_frozen_resumed_run_equals_unbroken(tmp_path: Path) -> None:
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole = run_in(tmp_path / "whole", resnet(), rounds=6, resume=False).result()
    run_in(tmp_path / "parts", resnet(), rounds=3, resume=False)
    resumed = run_in(tmp_path / "parts", resnet(), rounds=6, resume=True).result()
    assert torch.equal(resumed.params, whole.params)
    assert_frozen_as(resumed.model, resnet())


def test_resume_with_other_frozen_values_raises(tmp_path: Path) -> None:
    run_in(tmp_path, resnet(), rounds=3, resume=False)
    torch.manual_seed(1)
    with pytest.raises(fp.FedprivError, match="other frozen parameters"):
        run_in(tmp_path, ResNet(), rounds=6, resume=True)
