"""Two seeds: what everybody may know tells nothing of the secret one, and no noise serves two answers."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import networkx as nx
import pytest
import torch
from privacy_worlds import Listener, blank, clients_of, digits_of, record
from torch import Tensor, nn
from typer.testing import CliRunner

import fedpriv as fp
from fedpriv.cli import app
from fedpriv.models import SoftmaxRegression
from fedpriv.network.graph import Graph
from fedpriv.privacy.accounting.accountant import Accountant
from fedpriv.privacy.ledger import Ledger, Release
from fedpriv.randomness.streams import Randomness, new_secret
from fedpriv.storage.identity import digest
from fedpriv.strategies.fedavg import AddMeanUpdate

SIZES = (12, 9, 10, 8)
PRIVACY = fp.Privacy(noise_multiplier=5.0)
DOUBLE = fp.Compute(dtype="float64", device="cpu", backend="linear")


def messages_of_run(
    data=None, privacy: fp.Privacy = PRIVACY, *, model: nn.Module | None = None, **options
) -> list[Tensor]:
    """What a run's clients answered, round by round."""
    gradients: list[Tensor] = []
    settings = {"rounds": 2, "seed": 3, "secret_seed": 3, "compute": DOUBLE, **options}
    strategy = fp.Strategy(Listener(gradients), AddMeanUpdate())
    training = fp.Training(clients_of(data or blank(SIZES), model), strategy, privacy, **settings)
    gradients.clear()  # those of the plan
    for _ in training:
        pass
    return gradients


def share_noise(first: Tensor, second: Tensor) -> bool:
    """Whether one row is a multiple of the other, as two answers that share their noise are."""
    both = torch.stack([first[0, :60], second[0, :60]])
    return abs(float(torch.corrcoef(both)[0, 1])) > 0.7


def test_secret_128_bits_streams_stable() -> None:
    """Other numbers would change all figures that were published with a given seed."""
    drawn = [new_secret() for _ in range(64)]
    assert 2**120 < max(drawn) < 2**128
    assert len(set(drawn)) == 64
    randomness = Randomness(3, 2**127 + 5, attempt=1, run="a")
    assert randomness.stream("noise").words(1).tolist() == [4934747439536295921]
    assert randomness.stream("init").words(1).tolist() == [1437328402976132385]


def test_same_seeds_same_messages() -> None:
    first, again = messages_of_run(), messages_of_run()
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    network = fp.Star(len(SIZES), fp.PoissonCohort(0.9))
    assert all(map(torch.equal, messages_of_run(network=network), messages_of_run(network=network)))


@pytest.mark.parametrize(
    "changed",
    [
        {"privacy": replace(PRIVACY, noise_multiplier=10.0)},
        {"privacy": replace(PRIVACY, clip=fp.Clip(0.5))},
        {"privacy": replace(PRIVACY, delta=1e-6)},
        {"privacy": replace(PRIVACY, relation="add_remove")},
        {"privacy": replace(PRIVACY, schedule=fp.Custom(lambda k: 1.0 + k))},
        {"privacy": replace(PRIVACY, sampling=fp.Poisson(0.5))},
        {"rounds": 3},
        {"seed": 4},
        {"data": blank((12, 9, 10, 9))},
        {"compute": replace(DOUBLE, dtype="float32")},
        {"network": fp.Star(len(SIZES), fp.PoissonCohort(1.0))},
        {"network": fp.Star(len(SIZES), fp.FixedCohort(len(SIZES)))},
        {"model": SoftmaxRegression(64, 11)},
        {"settings": "another configuration"},
        {"secret_seed": 4},
    ],
    ids=lambda changed: " ".join(f"{name}" for name in changed),
)
def test_changed_setting_same_secret_fresh_noise(changed: dict) -> None:
    assert not share_noise(messages_of_run()[0].double(), messages_of_run(**changed)[0].double())


def test_two_multipliers_hide_gradient() -> None:
    """Of a1 = g + s1 z and a2 = g + s2 z with one z, g is a combination."""
    data = digits_of(SIZES)
    exact = messages_of_run(data, fp.Privacy(noise_multiplier=1e-9))[0]
    first, second = messages_of_run(data)[0], messages_of_run(data, replace(PRIVACY, noise_multiplier=10.0))[0]
    found = 2 * first - second
    assert float((found - exact).abs().max()) > 0.1


def test_visible_cohorts_hide_secret_seed() -> None:
    """The cohorts reveal the public seed, so noise must not depend on that seed alone."""
    network = fp.Star(len(SIZES), fp.PoissonCohort(0.5))
    gradients: list[Tensor] = []
    strategy = fp.Strategy(Listener(gradients), AddMeanUpdate())
    training = fp.Training(
        clients_of(blank(SIZES)), strategy, PRIVACY, rounds=20, seed=7, network=network, compute=DOUBLE
    )
    gradients.clear()
    list(training)
    visible = [record.clients for record in training.ledger.records]
    run = training._identity.randomness.run  # settings are no secret

    def cohorts(seed: int) -> list[tuple[int, ...] | None]:
        drawn = [network.participants(k, Randomness(seed)).tolist() for k in range(20)]
        return [None if len(clients) == len(SIZES) else tuple(clients) for clients in drawn]

    found = [seed for seed in range(100) if cohorts(seed) == visible]
    assert found == [7]
    noise = gradients[0][0] / gradients[0][0].std()
    for seed in range(100):
        for client in range(len(SIZES)):
            guess = Randomness(7, seed, 0, run).stream("noise", 0, 0, client).standard_normal(len(noise))
            assert abs(float(torch.corrcoef(torch.stack([noise, torch.from_numpy(guess)]))[0, 1])) < 0.3
    assert training._identity.randomness.secret_seed.bit_length() > 90


def test_public_and_secret_draws_separate_seeds() -> None:
    first, other_secret, other_public = Randomness(1, 2, run="a"), Randomness(1, 3, run="b"), Randomness(4, 2, run="a")
    for purpose in ("init", "cohort", "topology"):
        assert first.torch_seed(purpose) == other_secret.torch_seed(purpose) != other_public.torch_seed(purpose)
    for purpose in ("batch", "noise", "local", "secret_cohort"):
        assert first.torch_seed(purpose) == other_public.torch_seed(purpose) != other_secret.torch_seed(purpose)


def test_secret_seed_random_and_not_printed() -> None:
    assert len({Randomness(0).secret_seed for _ in range(50)}) == 50
    assert "12345" not in repr(Randomness(0, 12345))
    with pytest.raises(fp.ConfigError, match="128 random bits"):
        Randomness(0, -1)


def test_public_seed_repeats_non_private_run_only() -> None:
    def final(privacy: fp.Privacy) -> Tensor:
        clients = clients_of(digits_of(SIZES))
        return fp.train(clients, fp.fedavg(0.1), privacy, rounds=2, seed=5, compute=DOUBLE).params

    none = fp.Privacy(noise_on="none", sampling=fp.Poisson(0.5))
    assert torch.equal(final(none), final(none))
    assert not torch.equal(final(PRIVACY), final(PRIVACY))


def test_given_secret_seed_warns() -> None:
    options = {"rounds": 1, "compute": DOUBLE}
    with pytest.warns(UserWarning, match="anyone who knows the seed can subtract the noise"):
        fp.train(clients_of(digits_of(SIZES)), fp.fedavg(0.1), PRIVACY, secret_seed=1, **options)
    quiet = fp.Training(clients_of(digits_of(SIZES)), fp.fedavg(0.1), PRIVACY, seed=1, **options)
    assert not any("secret_seed" in warning for warning in quiet.warnings)


def test_given_secret_seed_not_written(tmp_path: Path) -> None:
    secret = 81_985_529_216_486_895
    config = Path(__file__).parents[1] / "run.yaml"
    options = ["rounds=2", f"secret_seed={secret}", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, ["train", str(config), *options])
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "anyone who knows the seed can subtract the noise" in said
    shown = [str(secret).encode(), f"{secret:x}".encode(), secret.to_bytes(16, "big"), secret.to_bytes(8, "little")]
    for file in (path for path in (tmp_path / "run").rglob("*") if path.is_file()):
        assert not any(text in file.read_bytes() for text in shown), file
    assert not any(text.decode() in done.output for text in shown[:2])


def interrupted_training(folder: Path, **options) -> fp.Training:
    """A run of six rounds that stopped after three, with a checkpoint of that round."""
    training = fp.Training(
        clients_of(digits_of(SIZES)), fp.fedavg(0.1), PRIVACY, rounds=6, folder=folder, compute=DOUBLE, **options
    )
    if not options.get("resume"):
        for report in training:
            if report.round == 3:
                training.save()
                break
    return training


def test_resumed_ledger_repeated_query_raises(tmp_path: Path) -> None:
    interrupted_training(tmp_path)
    oracle = interrupted_training(tmp_path, resume=True).oracle
    before = (tmp_path / "ledger.jsonl").read_bytes()
    oracle.begin_round(1, torch.arange(len(SIZES)))
    with pytest.raises(fp.PrivacyError, match="round 1, gradient: this query result was already released and recorded"):
        oracle.gradient(torch.ones(len(SIZES), 640, dtype=torch.float64))
    oracle.begin_round(1, torch.arange(2))
    with pytest.raises(fp.PrivacyError, match="the plan has no such query"):
        oracle.gradient(torch.ones(2, 640, dtype=torch.float64))
    assert (tmp_path / "ledger.jsonl").read_bytes() == before
    oracle.begin_round(3, torch.arange(len(SIZES)))
    oracle.gradient(torch.ones(len(SIZES), 640, dtype=torch.float64))


def test_ledger_repeated_release_raises() -> None:
    ledger = Ledger(Accountant(4, 1e-5))
    ledger.open(Release(record(0, clients=(0, 1)), torch.zeros(2, 3)))
    for again in (record(0, clients=(2, 3)), record(0, clients=(0, 1)), record(0)):
        with pytest.raises(fp.PrivacyError, match="was already released and recorded"):
            ledger.open(Release(again, torch.zeros(2, 3)))
    assert len(ledger.records) == 1
    ledger.open(Release(record(0, index=1), torch.zeros(4, 3)))
    ledger.open(Release(record(0, attempt=1), torch.zeros(4, 3)))
    exact = replace(record(0), mechanism="none", non_private="exact")
    for _ in range(2):
        ledger.open(Release(exact, torch.zeros(4, 3)))


def test_ledger_secret_cohort_second_release_raises() -> None:
    ledger = Ledger(Accountant(4, 1e-5))
    drawn = replace(record(0), unit="client", sampling="poisson", rate=0.5)
    ledger.open(Release(drawn, torch.zeros(4, 3)))
    with pytest.raises(fp.PrivacyError, match="was already released and recorded"):
        ledger.open(Release(replace(drawn, index=1), torch.zeros(4, 3)))


def test_checkpoint_of_earlier_version_raises(tmp_path: Path) -> None:
    interrupted_training(tmp_path)
    path = tmp_path / "checkpoint.pt"
    payload = torch.load(path)
    del payload["epochs"]
    torch.save(payload, path)
    with pytest.raises(fp.FedprivError, match="earlier version of fedpriv"):
        interrupted_training(tmp_path, resume=True)


@pytest.mark.parametrize("changed", [{"seed": 5}, {"network": fp.Star(4, fp.PoissonCohort(0.5))}])
def test_resume_with_changed_settings_raises(tmp_path: Path, changed: dict) -> None:
    interrupted_training(tmp_path)
    with pytest.raises(fp.FedprivError, match="other settings"):
        interrupted_training(tmp_path, resume=True, **changed)


def make_closure(value: object):
    def function(k: int) -> object:
        return value, k

    return function


def test_digest_equal_iff_settings_equal() -> None:
    def made() -> list[object]:
        return [
            *(1, 1.0, True, "1", None, b"1", (1,), [1], {"a": 1}, {1}, [[1], []], [[], [1]]),
            *(torch.ones(2), torch.ones(2, 1), torch.ones(2).double(), torch.zeros(2), torch.ones(2).numpy()),
            *(
                make_closure(1),
                make_closure(2),
                partial(make_closure, 1),
                partial(make_closure, 2),
                len,
                Path("a"),
                int,
            ),
            *(lambda k: k + 1, nn.ReLU(), nn.Tanh(), nn.Dropout(0.1), nn.Dropout(0.2)),
            *(fp.fedavg(0.1), fp.fedavg(0.2), fp.fedavg(0.1, local_steps=2), fp.inexact_admm(), fp.Star(3), fp.Star(4)),
            *(Graph(nx.cycle_graph(4)), Graph(nx.path_graph(4)), Graph(nx.cycle_graph(4), mixing_steps=2)),
        ]

    digests = [digest(value) for value in made()]
    assert len(set(digests)) == len(digests)
    assert digests == [digest(value) for value in made()]
    round_and_round: list[object] = [1]
    round_and_round.append(round_and_round)
    assert digest(round_and_round) != digest([1])


def test_digest_unchanged_by_network_use() -> None:
    graph = Graph(nx.cycle_graph(4))
    before = digest(graph)
    graph.participants(0, Randomness(0))
    graph.mix(torch.ones(4, 2))
    assert graph.spectral_gap and graph.facts()
    assert digest(graph) == before


def test_digest_stable_across_processes() -> None:
    program = (
        "import fedpriv as fp, networkx as nx; from torch import nn;"
        "from fedpriv.storage.identity import digest; from fedpriv.network.graph import Graph;"
        "print(digest(fp.private_al(3), fp.Privacy(epsilon=1), Graph(nx.cycle_graph(5)), {'a', 'b'}, nn.ReLU()))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, check=True, text=True, env={**os.environ, **seed}
        ).stdout
        for seed in ({"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2"})
    }
    assert len(found) == 1
