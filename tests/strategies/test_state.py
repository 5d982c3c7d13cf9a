"""What strategies keep is typed; one place stores it, restores it and takes rows of it."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from strategy_fingerprints import OF_STRATEGIES
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.config import load_config
from fedpriv.errors import ConfigError, FedprivError
from fedpriv.models import SoftmaxRegression
from fedpriv.network.rounds import TrainState, initial_state
from fedpriv.strategies.base import Strategy
from fedpriv.strategies.state import flatten_with_names, scatter_rows, select_rows, unflatten_like

BARE = Path(__file__).parents[1] / "run.yaml"


def strategy_of(options: str) -> Strategy:
    privacy = ["privacy={epsilon_bar: .5}"] if "variant: published" in options else []
    return load_config(BARE, [f"strategy={{{options}}}", *privacy]).recipe().strategy


def dataclasses_in(state: Any) -> list[Any]:
    inside = [getattr(state, field.name) for field in fields(state)] if is_dataclass(state) else []
    return ([state] if is_dataclass(state) else []) + [one for part in inside for one in dataclasses_in(part)]


@pytest.mark.parametrize("options", OF_STRATEGIES)
def test_strategy_state_fields_documented(options: str) -> None:
    start = initial_state(strategy_of(options), torch.rand(3, 4))
    for state in (start.local, start.server, start.output):
        assert state is None or isinstance(state, Tensor) or is_dataclass(state), "no string keys"
        for part in dataclasses_in(state):
            assert type(part).__dataclass_params__.frozen
            for field in fields(part):
                entry = re.search(rf"^ +{field.name}: (.+(?:\n {{12,}}.+)*)", type(part).__doc__ or "", re.M)
                assert entry, f"{type(part).__name__}.{field.name} is not documented"
                if isinstance(getattr(part, field.name), Tensor):
                    assert "[" in entry[1] or "rows" in entry[1], f"{type(part).__name__}.{field.name} has no shape"


@pytest.mark.parametrize("options", OF_STRATEGIES)
def test_strategy_state_round_trips(options: str) -> None:
    start, content = initial_state(strategy_of(options), torch.rand(3, 4)), io.BytesIO()
    torch.save(start.stored(), content)
    content.seek(0)
    read = torch.load(content, weights_only=True)
    again = initial_state(strategy_of(options), torch.zeros(3, 1)).restored(read)
    assert isinstance(again, TrainState)
    for name in ("local", "server", "output"):
        before, after = getattr(start, name), getattr(again, name)
        assert type(before) is type(after)
        assert flatten_with_names(before).keys() == flatten_with_names(after).keys()
        for one, other in zip(flatten_with_names(before).values(), flatten_with_names(after).values(), strict=True):
            assert type(one) is type(other)
            assert torch.equal(torch.as_tensor(one).nan_to_num(7), torch.as_tensor(other).nan_to_num(7))


@dataclass(frozen=True)
class Inner:
    rows: Tensor
    t: int
    done: bool = False


@dataclass(frozen=True)
class Outer:
    inner: Inner
    scale: Tensor
    pair: tuple[Tensor, float]
    plain: dict[str, Tensor]
    nothing: Tensor | None = None


def outer(n: int, start: float = 0.0, t: int = 3) -> Outer:
    rows = torch.arange(n * 2.0).view(n, 2) + start
    return Outer(Inner(rows, t), torch.tensor(start), (rows.clone(), start), {"a": rows[:, :1]})


def test_select_and_scatter_rows_of_nested_state() -> None:
    cohort, state = torch.tensor([0, 2]), outer(4)
    taken = select_rows(state, cohort)
    for rows in (taken.inner.rows, taken.pair[0]):
        assert torch.equal(rows, torch.tensor([[0.0, 1.0], [4.0, 5.0]]))
    assert torch.equal(taken.plain["a"], torch.tensor([[0.0], [4.0]]))
    assert (taken.inner.t, taken.inner.done, taken.nothing) == (3, False, None)
    back = scatter_rows(state, cohort, outer(2, 10.0, t=4))
    for rows in (back.inner.rows, back.pair[0]):
        assert torch.equal(rows, torch.tensor([[10.0, 11.0], [2.0, 3.0], [12.0, 13.0], [6.0, 7.0]]))
    assert (back.inner.t, float(back.scale), back.pair[1]) == (4, 10.0, 10.0), "what is public is the newest"
    assert torch.equal(state.inner.rows, outer(4).inner.rows), "the old state is as it was"


def test_flatten_with_names_and_unknown_names_raise() -> None:
    parts = flatten_with_names(outer(2))
    assert [*parts] == ["inner.rows", "inner.t", "inner.done", "scale", "pair.0", "pair.1", "plain.a"]
    as_tensors = {name: torch.as_tensor(part) for name, part in parts.items()}
    again = unflatten_like(outer(5), as_tensors)
    assert (again.inner.t, type(again.inner.t), again.inner.done) == (3, int, False)
    assert again.inner.rows.shape == (2, 2)
    with pytest.raises(KeyError, match=r"inner\.t, velocity"):
        unflatten_like(outer(2), {name: part for name, part in parts.items() if name != "inner.t"} | {"velocity": 1.0})
    with pytest.raises(ConfigError, match="must be None, or tensors and numbers"):
        flatten_with_names({"names": ["a"]})


# --- checkpoints of an earlier version, whose states were dicts of tensors --------------------------------------------


def training_in(folder: Path, strategy: Strategy, resume: bool = False) -> fp.Training:
    x, y = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 2
    clients = fp.make_clients(
        SoftmaxRegression(4, 2), nn.CrossEntropyLoss(), [TensorDataset(x[:6], y[:6]), TensorDataset(x[6:], y[6:])]
    )
    options = {"rounds": 6, "seed": 0, "folder": folder, "checkpoint_every": 2, "resume": resume}
    return fp.Training(clients, strategy, fp.Privacy(noise_on="none"), **options)


def stopped_by_an_earlier_version(folder: Path, strategy: Strategy) -> None:
    training = training_in(folder, strategy)
    for report in training:
        if report.round == 3:
            break
    assert training.folder is not None
    training.folder.close()
    payload = torch.load(folder / "checkpoint.pt", weights_only=True)
    for name in ("local", "server", "output"):
        kept = payload["progress"][name].items()
        payload["progress"][name] = {key.replace("optimizer", "velocity"): torch.as_tensor(part) for key, part in kept}
    torch.save(payload, folder / "checkpoint.pt")


@pytest.mark.parametrize("strategy", [fp.inexact_admm(average=1.0), fp.fedavg(0.5), fp.gradient_tracking()], ids=str)
def test_checkpoint_of_earlier_version_resumes(strategy: Strategy, tmp_path: Path) -> None:
    whole = training_in(tmp_path / "whole", strategy)
    list(whole)
    stopped_by_an_earlier_version(tmp_path / "run", strategy)
    again = training_in(tmp_path / "run", strategy, resume=True)
    assert again.progress.round == 3
    list(again)
    assert torch.equal(again.result().params, whole.result().params)


def test_checkpoint_of_other_state_raises(tmp_path: Path) -> None:
    strategy = fp.fedavg(0.5, server_momentum=0.5)
    stopped_by_an_earlier_version(tmp_path, strategy)
    files = tmp_path / "ledger.jsonl", tmp_path / "checkpoint.pt"
    before = [path.read_bytes() for path in files]
    with pytest.raises(FedprivError, match="or was written by another version; resume with its own config"):
        training_in(tmp_path, strategy, resume=True)
    assert [path.read_bytes() for path in files] == before


# --- what others read of it ------------------------------------------------------------------------------------------


def test_monitor_unknown_number_raises() -> None:
    with pytest.raises(ConfigError, match=r"strategy\.monitor.*'loss'.*must be a number in the server's state, Served"):
        initial_state(replace(fp.fedavg(0.5), monitor=("loss",)), torch.zeros(2, 3))


@dataclass(frozen=True)
class Counted:
    t: int
    done: bool


@dataclass(frozen=True)
class StopsAtTwo:
    """Says that it is done, below another aggregator."""

    receives = ("update",)
    sends = ("model",)
    is_sum = True

    def init(self, params: Tensor) -> tuple[Tensor, Counted]:
        return params, Counted(0, done=False)

    def __call__(self, message: Tensor, network: fp.strategies.base.Network, state: Counted) -> tuple[Tensor, Counted]:
        return network.mean(message), Counted(state.t + 1, state.t == 1)


def test_adaptive_clipping_forwards_done(tmp_path: Path) -> None:
    clipped = fp.adaptive_clipping(replace(fp.fedavg(0.5), aggregator=StopsAtTwo()))
    x, y = torch.rand(8, 4), torch.arange(8) % 2
    clients = fp.make_clients(SoftmaxRegression(4, 2), nn.CrossEntropyLoss(), [TensorDataset(x, y)])
    privacy = fp.Privacy(noise_multiplier=1.0, noise_on="message", unit="client", clip=fp.Clip(1.0))
    training = fp.Training(clients, clipped, privacy, rounds=5)
    assert len(list(training)) == 2
    assert training.result().ended == "strategy"
