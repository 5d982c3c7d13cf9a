"""What stands beside an epsilon, and that a run has only one: on the terminal, in its files, and read back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forging import lines_of, rewrite
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

import fedpriv as fp
from fedpriv.cli import app
from fedpriv.config import build, forecast, load_config
from fedpriv.models import SoftmaxRegression
from fedpriv.oracle.dry_run import RecordingAnswerer
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.ledger_file import read_ledger
from fedpriv.reports import comparison, sinks
from fedpriv.reports.report import Run
from fedpriv.runs.estimators import PrivateLogisticRegression
from fedpriv.runs.results import RoundReport
from fedpriv.strategies.base import Aggregator, Network

CONFIG = Path(__file__).parents[1] / "run.yaml"
SMALL = ["data.partition.n_clients=3", "rounds=20", "log.tensorboard=false", "log.evaluate_every=20"]


def clients(n_clients: int = 3, declared: Sequence[int | None] = (None, None, None)) -> list[fp.Client]:
    draw = torch.Generator().manual_seed(0)
    data = [TensorDataset(torch.rand(40, 4, generator=draw), torch.arange(40) % 2) for _ in range(n_clients)]
    made = fp.make_clients(SoftmaxRegression(4, 2), nn.CrossEntropyLoss(), data)
    return [
        fp.Client(client.model, client.loss, client.loader, public_size=size)
        for client, size in zip(made, declared, strict=False)
    ]


def relation(privacy: fp.Privacy, owners: list[fp.Client]) -> str:
    return fp.train(owners, fp.fedavg(0.5), privacy, rounds=2).spent.relation


def test_sizes_that_were_not_declared_stand_in_the_relation() -> None:
    """A true size tells whether there is one example more; a declared one does not, even where it is the true one."""
    added = fp.Privacy(epsilon=1, delta=1e-3, relation="add_remove")
    assert relation(added, clients()) == "add_remove(sizes public)"
    assert relation(added, clients(declared=(40, 40, None))) == "add_remove(sizes public)"
    assert relation(added, clients(declared=(40, 40, 40))) == relation(added, clients(declared=(50, 40, 30)))
    assert relation(added, clients(declared=(50, 40, 30))) == "add_remove"
    assert relation(replace(added, relation="replace_one"), clients()) == "replace_one"
    whole = replace(added, unit="client", delta=1e-2)
    assert relation(whole, clients(declared=(50, 40, 30))) == "add_remove(sizes public)", "so many clients there are"
    assert relation(replace(whole, relation="replace_one"), clients()) == "replace_one(sizes public)"
    assert relation(replace(whole, relation="replace_one"), clients(declared=(50, 40, 30))) == "replace_one"


@pytest.mark.parametrize(("fraction", "said"), [("", "replace_one(within group)"), (", fraction: 0.1", "replace_one")])
def test_counts_that_are_public_stand_in_the_relation(fraction: str, said: str) -> None:
    counted = f"problem.constraints=[{{name: class_loss_at_most, label: 1, bound: 0.3{fraction}}}]"
    strategy = "strategy={name: private_al, beta: 2}"
    config = load_config(CONFIG, [*SMALL, "rounds=6", counted, strategy, "privacy.statistics.public_counts=true"])
    training = build(config)
    list(training)
    assert f"relation={said}, trust" in str(training.result().spent)
    assert forecast(config).spent.relation == said == account(training.ledger.records, 3, 1e-5).relation


def test_ledgers_of_different_neighbours_do_not_add_up() -> None:
    plain = fp.Privacy(noise_multiplier=10.0, delta=1e-3, relation="add_remove")
    runs = [
        fp.Training(clients(declared=sizes), fp.fedavg(0.5), plain, rounds=1) for sizes in ((1, 1, 1), (1, 1, None))
    ]
    records = [record for run in runs for record in run.plan.records]
    with pytest.raises(fp.PrivacyError, match="sizes public"):
        account(records, 3, 1e-3)


def test_an_exact_gap_to_the_optimum_stands_beside_the_epsilon(tmp_path: Path) -> None:
    done = cli("train", str(CONFIG), *SMALL, "log.optimum=0.1", "--out", str(tmp_path))
    assert "gap to it, computed on the training data without noise" in done.stderr.split("round 1/")[0]
    assert "; not covered: the optimality gap, exact)" in done.stdout
    assert json.loads((tmp_path / "result.json").read_text())["not_covered"] == ["the optimality gap, exact"]
    shown = cli("show", str(tmp_path)).stdout
    assert "not covered: the optimality gap, exact" in shown
    plain = fp.train(clients(), fp.fedavg(0.5), fp.Privacy(epsilon=1, delta=1e-3), rounds=1)
    assert "not covered" not in str(plain.spent)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, ("the set of labels, read from y",)),
        ({"classes": [0, 1]}, ()),
        ({"classes": [0, 1], "random_state": 7}, ("whoever guesses random_state",)),
        ({"classes": [0, 1], "random_state": 2**127 + 5}, ()),
    ],
    ids=["labels", "nothing", "small seed", "long seed"],
)
def test_what_an_estimator_tells_besides_stands_beside_its_epsilon(given: dict[str, Any], said: tuple[str]) -> None:
    rows = np.random.default_rng(0).uniform(-1, 1, (200, 2))
    model = PrivateLogisticRegression(epsilon=1, delta=1e-3, max_iter=3, **given).fit(rows, rows[:, 0] > 0)
    assert model.spent_.not_covered == said
    assert ("; not covered: " + ", ".join(said) + ")" in str(model.spent_)) == bool(said)


def cli(*words: str, code: int = 0):
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == code, done.stderr
    return done


# --- no clock where draws are secret ---------------------------------------------------------------------------------


def test_nothing_that_is_written_tells_how_long_a_round_took(tmp_path: Path) -> None:
    """The time of a round tells how many examples were drawn in secret."""
    assert "seconds" not in {field.name for field in fields(RoundReport)}
    board = sinks.TensorBoard(tmp_path)
    training = fp.Training(
        clients(), fp.fedavg(0.5), fp.Privacy(epsilon=1, delta=1e-3, sampling=fp.Poisson(0.3)), rounds=5
    )
    for report in training:
        board.write(report)
    board.text("privacy", str(training.spent()), 5)
    board.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    tags = events.Tags()
    times = {event.wall_time for tag in tags["scalars"] for event in events.Scalars(tag)}
    times |= {event.wall_time for tag in tags["tensors"] for event in events.Tensors(tag)}
    assert tags["scalars"] and tags["tensors"]
    assert len(times) == 1


@pytest.mark.parametrize(
    ("privacy", "coarse"),
    [
        (fp.Privacy(epsilon=1, delta=1e-3, sampling=fp.Poisson(0.3)), True),
        (fp.Privacy(epsilon=1, delta=1e-2, unit="client", trust=fp.Central(0.5)), True),
        (fp.Privacy(epsilon=1, delta=1e-3), False),
        (fp.Privacy(at="none", sampling=fp.Poisson(0.3)), False),
    ],
    ids=["secret batches", "secret cohorts", "nothing secret", "no promise"],
)
def test_the_time_of_a_run_with_secret_draws_has_one_digit(privacy: fp.Privacy, coarse: bool) -> None:
    training = fp.Training(clients(), fp.fedavg(0.5), privacy, rounds=2)
    list(training)
    training._seconds = 137.25
    assert training.result().seconds == (100.0 if coarse else 137.25)


# --- an epsilon for every round --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "privacy",
    [
        fp.Privacy(epsilon=3, delta=1e-3, sampling=fp.Poisson(0.3)),
        fp.Privacy(epsilon=3, delta=1e-3, sampling=fp.FixedSize(5)),
        fp.Privacy(noise_multiplier=8.0, delta=1e-3, mechanism=fp.Laplace(), clip=fp.Clip(1.0, "l1")),
        fp.Privacy(epsilon=3, delta=1e-3, schedule=fp.Geometric(1.2)),
    ],
    ids=["poisson", "fixed size", "laplace", "gaussian"],
)
@pytest.mark.parametrize("rounds", [3, 16])
def test_a_round_shows_a_bound_that_is_tight_enough_to_read(privacy: fp.Privacy, rounds: int) -> None:
    """Never below the tight bound of what was released (its last bits aside), never above the target."""
    training = fp.Training(clients(), fp.fedavg(0.5), privacy, rounds=rounds)
    shown, true = list[float](), list[float]()
    for report in training:
        shown.append(report.epsilon)
        true.append(account(training.ledger.records, 3, 1e-3).epsilon)
    assert len(shown) == rounds
    assert shown == sorted(shown)
    assert shown[-1] <= min(privacy.epsilon or 100.0, 1.001 * true[-1])
    for value, truth in zip(shown, true, strict=True):
        assert truth <= value * (1 + 1e-9)
        assert value <= 1.001 * truth or (rounds > 3 and value <= truth + true[-1] / 8)


@pytest.mark.parametrize("target", [None, 50.0])
def test_what_a_strategy_asks_beyond_its_dry_run_is_refused(target: float | None) -> None:
    """With and without a target: a run is held to its plan."""

    @dataclass(frozen=True)
    class AsksAgain:
        inner: object

        def __getattr__(self, name: str) -> object:
            return getattr(self.inner, name)

        def __call__(self, received: Tensor, state: Any, oracle: fp.Oracle) -> tuple[Tensor, Any]:
            if not isinstance(oracle.answerer, RecordingAnswerer):  # pyright: ignore
                oracle.gradient(received)
            return self.inner(received, state, oracle)  # pyright: ignore

    plain = fp.fedavg(0.5)
    training = fp.Training(
        clients(),
        replace(plain, local_step=AsksAgain(plain.local_step)),  # pyright: ignore
        fp.Privacy(epsilon=target, noise_multiplier=2.0, delta=1e-3, sampling=fp.Poisson(0.3)),
        rounds=4,
    )
    with pytest.raises(fp.PrivacyError, match="round 0, gradient: the plan has no such answer"):
        list(training)
    assert len(training.ledger.records) == 1


# --- one run, one epsilon --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stopping:
    inner: Any
    k: int = 0
    done: bool = False


@dataclass(frozen=True)
class StopsAt:
    """An aggregator that says that it is done after so many rounds."""

    inner: Aggregator[Any]
    rounds: int
    receives = ("update",)
    sends = ("model",)
    is_sum = True

    def init(self, params: Tensor) -> tuple[Tensor, Stopping]:
        received, state = self.inner.init(params)
        return received, Stopping(state)

    def __call__(self, message: Tensor, network: Network, state: Stopping) -> tuple[Tensor, Stopping]:
        received, own = self.inner(message, network, state.inner)
        return received, Stopping(own, state.k + 1, state.k + 1 >= self.rounds)


def stops_at_four() -> fp.Strategy:
    plain = fp.fedavg(0.5)
    return replace(plain, aggregator=StopsAt(plain.aggregator, 4))


def test_a_run_that_ends_itself_has_one_epsilon_everywhere(tmp_path: Path) -> None:
    """It was .8226 on the terminal and 2.0 in result.json, and "the next would overspend"."""
    overrides = [*SMALL, f"strategy={{name: '{__name__}:stops_at_four'}}", "privacy.epsilon=2"]
    done = cli("train", str(CONFIG), "--allow-plugins", *overrides, "--out", str(tmp_path))
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["rounds"], result["planned_rounds"], result["ended"]) == (4, 20, "strategy")
    assert result["epsilon"] == pytest.approx(2, rel=1e-4)
    shown, found = cli("show", str(tmp_path)).stdout, Run.read(tmp_path)
    for text in (done.stdout, shown):
        assert "epsilon=2 (delta=1e-5" in text
        assert "4 of 20: the strategy said that it was done; the whole plan is charged" in text
        assert "overspend" not in text
    assert json.loads(cli("show", str(tmp_path), "--json").stdout)["epsilon"] == result["epsilon"]
    assert found.spent.epsilon == result["epsilon"] == found.metrics[-1]["epsilon"]
    assert "  4 of 20 " in comparison.table([found, found])[1]
    training = fp.Training(clients(), stops_at_four(), fp.Privacy(epsilon=2, delta=1e-3), rounds=20)
    list(training)
    price = training.population.clients[0].outcome_of
    assert price == str(training.result().spent)
    assert "4 rounds (of 20: the strategy said that it was done" in str(training.result())


def test_why_a_run_ended() -> None:
    def ended(privacy: fp.Privacy, strategy: fp.Strategy, leave: int = 0) -> str:
        training = fp.Training(clients(), strategy, privacy, rounds=20)
        for report in training:
            if report.round == leave:
                break
        return training.result().ended

    target = fp.Privacy(epsilon=2, delta=1e-3)
    assert ended(target, fp.fedavg(0.5)) == "rounds"
    assert ended(target, fp.fedavg(0.5), leave=5) == "left"
    assert ended(replace(target, noise_multiplier=1.0), fp.fedavg(0.5)) == "budget"
    assert ended(target, stops_at_four()) == ended(fp.Privacy(at="none"), stops_at_four()) == "strategy"


# --- files that do not belong together -------------------------------------------------------------------------------


@pytest.mark.parametrize("finished", [True, False])
def test_a_ledger_that_was_cut_is_said_to_be_incomplete(finished: bool, tmp_path: Path) -> None:
    cli("train", str(CONFIG), *SMALL, "--out", str(tmp_path / "run"))
    run = tmp_path / "run"
    whole = json.loads((run / "result.json").read_text())["epsilon"]
    if not finished:
        (run / "result.json").unlink()
    ledger = run / "ledger.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    assert len(lines) == 21
    ledger.write_text("".join(lines[:6]))
    assert account(read_ledger(ledger), 3, 1e-5).epsilon < 0.6 * whole
    text = cli("show", str(run), code=1).stdout
    assert "unknown: the run is incomplete" in text
    assert "ledger.jsonl holds 5 records but" in text
    assert "epsilon=" not in text
    facts = json.loads(cli("show", str(run), "--json", code=1).stdout)
    assert "holds 5 records but" in facts["findings"][0]
    assert (facts["integrity"], facts["epsilon"], facts.get("per_client_epsilon")) == ("incomplete", None, None)
    two = cli("show", str(run), str(run), code=1).stdout
    assert two.count(" incomplete ") == two.count("is incomplete: ") == 2
    assert "together" not in two


def test_a_whole_ledger_is_not_said_to_be_incomplete_and_one_of_another_run_is_altered(tmp_path: Path) -> None:
    cli("train", str(CONFIG), *SMALL, "--out", str(tmp_path))
    facts = json.loads(cli("show", str(tmp_path), "--json").stdout)
    result = json.loads((tmp_path / "result.json").read_text())
    assert (facts["integrity"], facts["findings"], facts["sealed"]) == ("sound", [], None)
    assert facts["epsilon"] == result["epsilon"]
    ledger = tmp_path / "ledger.jsonl"
    rewrite(ledger, [*lines_of(ledger), lines_of(ledger)[-1]])
    assert Run.read(tmp_path).integrity == "altered"
    assert "21 records and result.json counts 20" in Run.read(tmp_path).privacy
