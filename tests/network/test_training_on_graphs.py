"""Private runs on graphs: prices, measures, backends, resumption."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.config import build, forecast, load_config
from fedpriv.data import Split
from fedpriv.models import SoftmaxRegression
from fedpriv.network import topology
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.strategies.base import Strategy
from fedpriv.strategies.proximal import L2

STRATEGIES = [
    fp.gradient_tracking(fp.StepSize(0.5)),
    fp.gradient_tracking_pair(fp.StepSize(0.1)),
    fp.decentralized_sgd(fp.StepSize(0.5), average=1.0),
    fp.dual_averaging(L2(0.1), active_fraction=0.5),
]
NAMES = [strategy.name for strategy in STRATEGIES]


def training(strategy: Strategy, network: fp.Graph | fp.Star, *, backend: str = "auto", rounds: int = 6) -> fp.Training:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(48, 4, generator=generator, dtype=torch.float64)
    y = (x[:, 0] > 0).long()
    data = [TensorDataset(x[i::6], y[i::6]) for i in range(6)]
    clients = fp.make_clients(SoftmaxRegression(4, 2), torch.nn.functional.cross_entropy, data)
    privacy = fp.Privacy(epsilon=5, sampling=fp.Poisson(0.5))
    compute = fp.Compute(backend=backend, dtype="float64", device="cpu")
    unseen = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    test = TensorDataset(unseen, (unseen[:, 0] > 0).long())
    return fp.Training(
        clients,
        strategy,
        privacy,
        rounds=rounds,
        network=network,
        compute=compute,
        test=test,
        evaluate_every=3,
        seed=0,
        secret_seed=0,
    )


@pytest.mark.parametrize("strategy", STRATEGIES, ids=NAMES)
def test_graph_run_charges_active_rounds(strategy: Strategy) -> None:
    outages = [fp.Outage(1, 2, 4), *(fp.Outage(i, 4, 5) for i in range(6))]
    network = fp.Graph(topology.ring(6), activity=fp.RandomNodes(0.6), outages=outages)
    run = training(strategy, network)
    reports = list(run)
    result = run.result()
    assert torch.isfinite(result.params).all()
    assert result.spent.epsilon <= 5
    assert reports[2].metrics["consensus_distance"] > 0
    measures = result.measures
    assert measures["node_test_accuracy"]["min"] <= measures["node_test_accuracy"]["mean"]
    assert 0 < measures["spectral_gap"] < 1
    assert json.loads(json.dumps(result.to_json()))["bytes_sent"] == measures["bytes_sent"]
    active = [set(r.clients if r.clients is not None else range(6)) for r in run.ledger.records]
    uses = [sum(i in clients for clients in active) for i in range(6)]
    assert uses[1] == min(uses[1], 3)
    # whoever was active less often pays less: participation is priced as it happened
    order = sorted(range(6), key=lambda i: uses[i])
    paid = [result.spent.per_client[i] for i in order]
    assert paid == sorted(paid)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=NAMES)
def test_backends_agree_on_private_graph_run(strategy: Strategy) -> None:
    found = []
    for backend in ("loop", "vmap", "ghost", "linear"):
        run = training(strategy, fp.Graph(topology.erdos_renyi(6, 0.6, 2), mixing_steps=2), backend=backend, rounds=3)
        for _ in run:
            pass
        found.append(run.progress.models)
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-9)
    torch.testing.assert_close(found[0], found[2], rtol=0, atol=1e-9)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=NAMES)
def test_star_run_has_no_node_metrics(strategy: Strategy) -> None:
    run = training(strategy, fp.Star(6), rounds=3)
    for _ in run:
        pass
    assert run.result().measures.keys() == {"bytes_sent", "spectral_gap", "backend"}


def test_graph_run_counts_bytes() -> None:
    """A ring of six sends twelve rows a round, of eight numbers of eight bytes; pairs are twice as long."""
    for strategy, factor in ((STRATEGIES[0], 1), (STRATEGIES[1], 2)):
        run = training(strategy, fp.Graph(topology.ring(6), mixing_steps=3), rounds=2)
        for _ in run:
            pass
        assert run.result().measures["bytes_sent"] == 2 * 3 * 12 * 8 * 8 * factor


CONFIG = """
data: {name: digits, flat: true, partition: {kind: iid, n_clients: 6}}
model: softmax
strategy: {name: dual_averaging, regularizer: {l2: {lam: 0.01}}, gamma: 5.0}
privacy: {epsilon: 3, sampling: {poisson: {rate: 0.2}}}
network: {topology: complete, activity: {name: random_edges, count: 1}}
rounds: 6
seed: 0
secret_seed: 0
log: {checkpoint_every: 2}
"""


def test_configured_run_plans_and_resumes(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG)
    config = load_config(path)
    found = forecast(config)
    assert found.network is not None
    assert found.network.active_fraction == pytest.approx(1 / 3)
    assert found.if_activity_hidden is not None
    assert found.bytes_per_round == 2 * 640 * 4
    assert config.recipe().strategy.local_step.dual_map.active_fraction == pytest.approx(1 / 3)
    (tmp_path / "a").mkdir()
    whole = build(config, tmp_path / "a")
    whole.save()
    for _ in whole:
        pass
    (tmp_path / "b").mkdir()
    first = build(config, tmp_path / "b")
    first.save()
    for report in first:
        if report.round == 3:
            break
    second = build(config, tmp_path / "b", resume=True)
    for _ in second:
        pass
    assert torch.equal(whole.progress.models, second.progress.models)
    assert whole.result().measures == second.result().measures
    records = [LedgerFile.read(tmp_path / name / "ledger.jsonl").records for name in ("a", "b")]
    assert records[0] == records[1]


def written() -> Split:
    """Six writers of eight examples each."""
    x, y = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2
    train, test = TensorDataset(x[:48], y[:48]), TensorDataset(x[48:], y[48:])
    return Split(train, test, n_classes=2, writers=torch.arange(48) // 8, description="made up")


@pytest.mark.usefixtures("allow_plugins")
def test_by_writer_clients_active_fraction(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG)
    config = load_config(path, [f"data={{name: '{__name__}:written', partition: {{kind: by_writer}}}}"])
    assert build(config).strategy.local_step.dual_map.active_fraction == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("network.topology=rng", "did you mean 'ring'"),
        ("network.activity={name: random_edges, count: 99}", "only 15 links"),
        ("network.topology={name: erdos_renyi, p: 0.01}", "cannot be reached"),
        ("network.cohort={fixed: 2}", "but this one is a graph: use network.activity"),
        ("network.topology=star", "use network.cohort"),
        ("network.topology=hypercube", "power of two"),
        ("network.mixing_steps=0", "mixing_steps"),
        ("network.outages=[{node: 6}]", "must be a node of the graph, from 0 to 5"),
        ("network.outages=[{node: 1, start: 5, stop: 2}]", "network.outages.stop = 2: must be after start, 5"),
        ("network={topology: ring, activity: one_peer_exponential, mixing: max_degree}", "sets its own mixing weights"),
        (
            "network={topology: star, outages: [{node: 1}]}",
            "network.outages = .*: is for graphs, but this network has a server .*: use network\\.cohort",
        ),
    ],
)
def test_invalid_network_raises_with_fix(tmp_path: Path, change: str, message: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG)
    with pytest.raises(fp.ConfigError, match=message):
        forecast(load_config(path, [change]))


def test_server_strategy_on_graph_raises_before_data(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG)
    with pytest.raises(fp.ConfigError, match="needs a server"):
        build(load_config(path, ["strategy=fedavg", "strategy={name: fedavg, learning_rate: 1}"]))
