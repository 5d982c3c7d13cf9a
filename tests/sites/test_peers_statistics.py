"""Statistics on a graph that links every two sites, without a server."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from peers_in_memory import Peers, Wire
from statistics_sites import ASKED, PAIRWISE, SIZES, asked, join, make_sites, plan_of, table

from fedpriv.config.statistics import join_sections
from fedpriv.sites.peers.running import write_result

COMPLETE = "\nnetwork: {topology: complete}\n"


def peers(folder: Path, trust: str = PAIRWISE) -> Peers:
    sites = make_sites(folder)
    config = asked(ASKED + COMPLETE, trust=yaml.safe_load(trust))
    plan = plan_of(sites, config)
    join([*sites.values()], plan)
    return Peers(folder, config, plan, sites, Wire())  # pyright: ignore[reportArgumentType] - of statistics


@pytest.mark.parametrize("trust", ["local", PAIRWISE])
def test_every_site_has_the_same_answers(trust: str, tmp_path: Path) -> None:
    found = peers(tmp_path, trust)
    for number in range(4):
        found.start(number)
    found.run()
    descriptions = [found.nodes[number].describe() for number in range(4)]
    assert all(each is not None for each in descriptions)
    models = np.stack([found.nodes[number].model.double().numpy() for number in range(4)])
    np.testing.assert_allclose(models, models[[0] * 4], rtol=1e-5, atol=1e-6)
    joined = join_sections(asked().statistics)
    vectors = np.concatenate([joined.vectors(table(k, n)) for k, n in enumerate(SIZES)])
    exact = joined.clip.rows(torch.from_numpy(vectors))[0].mean(0).numpy()
    first = descriptions[0]
    assert first is not None
    assert 0.4 < np.square(-models[0] - exact).mean() / first.deviation**2 < 1.7
    node = found.nodes[2]
    write_result(node, "little")
    assert json.loads((node.folder / "statistics.json").read_text())["epsilon"] <= 0.2
    assert not (node.folder / "model.pt").exists()
    for number in range(4):
        assert len(found.ledger(number)) == 1
    found.close()


def test_killed_site_repeats_its_row_and_is_charged_once(tmp_path: Path) -> None:
    found = peers(tmp_path)
    for number in range(4):
        found.start(number)
    runs = found.folder / "north" / "runs" / found.proposal.hash / "ledger.jsonl"
    found.run(until=lambda: runs.exists() and len(found.ledger(0)) == 1)
    found.kill(0)
    found.start(0)
    found.run()
    assert all(node.describe() is not None for node in found.nodes.values())
    assert len(found.ledger(0)) == 1
    found.close()


def test_missing_site_leaves_no_answers(tmp_path: Path) -> None:
    """A command waits for it; a node that does not has released its row, and gives no answers without the other's."""
    found = peers(tmp_path)
    for number in range(3):
        found.start(number)
    found.run()
    assert [found.nodes[number].ended for number in range(3)] == ["finished"] * 3
    assert all(node.describe() is None for node in found.nodes.values())
    write_result(found.nodes[0], "little")
    assert not (found.nodes[0].folder / "statistics.json").exists()
    found.close()
