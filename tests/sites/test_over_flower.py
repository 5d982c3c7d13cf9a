"""Three organisations over Flower, with TLS, registered node keys and noise that cancels between pairs."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="pip install 'fedpriv[flower]' into an environment of its own")

from loopback import loopback, rounds_of, until

from fedpriv.clients.outline import Outline
from fedpriv.config import load_config, to_yaml
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.sites import Site, propose

NAMES = ("north", "east", "west")
DIGITS = "{name: digits, flat: true, partition: {kind: iid, n_clients: 3}}"


@pytest.mark.slow
def test_one_is_killed_and_restarted_and_one_ends_its_budget() -> None:
    with tempfile.TemporaryDirectory(prefix="fp") as made:  # sockets need short paths
        folder = Path(made)
        cards = []
        for number, name in enumerate(NAMES):
            limit = 2.4 if name == "west" else 4
            told = f"name: {name}\nclient: {number}\ndata: {DIGITS}\nbudget: {{epsilon: {limit}}}\n"
            (folder / f"{name}.yaml").write_text(told)
            site = Site.create(folder / name, folder / f"{name}.yaml")
            cards.append(site.card)
            site.close()
        server = folder / "server"
        server.mkdir(mode=0o700)
        config = load_config(
            Path(__file__).parents[1] / "run.yaml",
            [
                f"data={DIGITS}",
                "strategy={name: fedavg, learning_rate: 2.0}",
                "privacy.trust={pairwise: {colluders: 1, ratio: 1.0}}",
                "rounds=6",
            ],
        )
        plan = propose(config, cards, Outline((1,), (64,), 10))
        (server / "config.yaml").write_text(to_yaml(config))
        (server / "plan.yaml").write_text(plan.text)
        for name in NAMES:
            site = Site(folder / name)
            site.join(plan.text, plan.fingerprint)
            site.close()
        with loopback(folder) as flower:
            for name in NAMES:
                flower.register(folder / name)
                flower.site(folder / name)
            flower.federate(server)
            until(lambda: rounds_of(server), "there is no first round")
            flower.kill("east")
            until(lambda: any("east" in told["absent"] for told in rounds_of(server)), "nobody missed east")
            flower.site(folder / "east")
            until(lambda: (server / "result.json").exists() or flower.running["federation"].poll(), "no end")
            assert (server / "result.json").exists(), flower.said("federation") + flower.said("superlink")
        told, result = rounds_of(server), json.loads((server / "result.json").read_text())
        for one in told:
            print(one["round"], one["answered"], one["absent"], one["metrics"]["test_accuracy"])
        print(result)
        assert (result["ended"], len(told)) == ("rounds", 6)
        assert told[0]["answered"] == [*NAMES]
        assert [one["absent"].get("west") for one in told] == [None] * 4 + ["over_budget"] * 2
        assert result["metrics"]["test_accuracy"] > 0.7
        assert "X25519" in result["at_most"]
        assert "simulated" not in result["at_most"]
        assert torch.load(server / "model.pt", weights_only=True)
        for name in NAMES:
            ledger = LedgerFile.read(folder / name / "runs" / plan.hash / "ledger.jsonl")
            answered = [one["round"] - 1 for one in told if name in one["answered"]]
            assert {*answered} <= {record.round for record in ledger.records}
            assert ledger.altered is None
