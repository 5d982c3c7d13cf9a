"""`fedpriv topology`: what it says of a graph, and where it draws it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import DIGITS, SMALL, error_line, fedpriv


def test_topology_prints_graph_facts_and_draws(tmp_path: Path):
    """A ring of six with Metropolis weights: eigenvalues 1/3 + 2/3 cos(2 pi k / 6); a hexagon on paper."""
    picture = tmp_path / "ring.png"
    done = fedpriv("topology", "ring", "6", "mixing_steps=2", "--json", "--out", str(picture))
    facts = json.loads(done.stdout)
    assert (facts["nodes"], facts["links"], facts["diameter"], facts["mean_degree"]) == (6, 6, 3, 2)
    assert facts["spectral_gap"] == pytest.approx(1 / 3)
    assert facts["contraction"] == pytest.approx(4 / 9)
    assert facts["picture"] == str(picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    network = "network={topology: ring, mixing_steps: 2}"
    again = tmp_path / "again.png"
    planned = fedpriv(
        "plan",
        DIGITS,
        *SMALL,
        "strategy=decentralized_sgd",
        network,
        "data.partition.n_clients=6",
        "--json",
        "--out",
        str(again),
    )
    assert json.loads(planned.stdout)["network"] == {name: value for name, value in facts.items() if name != "picture"}
    assert again.read_bytes() == picture.read_bytes()
    (tmp_path / "links.txt").write_text("a b\nb c\nd e\n")
    assert "node 3 cannot be reached" in error_line("topology", "edge_list", "5", f"topology.file={tmp_path}/links.txt")


def test_topology_out_writes_picture(tmp_path: Path):
    picture = tmp_path / "ring.png"
    done = fedpriv("topology", "ring", "5", "--out", str(picture))
    assert done.exit_code == 0
    assert str(picture) in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    for wrong in (tmp_path, tmp_path / "ring.doc"):  # a folder would become a file beside it
        assert "use a name that ends in .png" in error_line("topology", "ring", "5", "--out", str(wrong))
