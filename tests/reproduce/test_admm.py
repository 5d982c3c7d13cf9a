"""The experiments of inexact ADMM: iterates equal the library's, and each experiment finds a known number or order."""

import math

import admm
import admm_runs
import pytest
import torch
from admm import ADMM
from admm_runs import Federation, Lane, federation, simulate
from experiment import Bench
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.models import SoftmaxRegression
from fedpriv.papers.admm import published_output, published_rho

EXPERIMENTS = {one.name.removeprefix("admm-"): one for one in ADMM}


def blobs(agents=4, each=12, features=5, classes=3, dtype=torch.float64, preset="mnist") -> Federation:
    """Well separated classes, with pixels in [0, 1]."""
    draws = torch.Generator().manual_seed(0)
    y = torch.randint(classes, (agents * each + 60,), generator=draws)
    x = torch.rand(len(y), features, generator=draws, dtype=torch.float64) / 2
    x[torch.arange(len(y)), y] += 0.5
    train = federation(x[:-60].to(dtype), y[:-60], agents, x[-60:].to(dtype), y[-60:])
    return Federation(train.x, train.y, train.x_test, train.y_test, classes, preset)


@pytest.fixture
def small(monkeypatch):
    """Made-up data for each name."""
    sets = {"mnist": blobs(), "digits": blobs(), "femnist": blobs(preset="femnist")}
    monkeypatch.setattr(admm_runs, "_loaded", lambda name, writers: sets[name])
    for name, (rounds, parts) in {"mnist": (60, 2), "femnist": (60, 2)}.items():
        case = admm.Case(name, rounds, 2, parts, 4)
        monkeypatch.setattr(admm, name, lambda bench, default, case=case: case)


def library_w(data: Federation, strategy: fp.Strategy, rounds: int) -> torch.Tensor:
    """The w of the library's round `rounds`, [features, classes]."""
    parts = [TensorDataset(x, y) for x, y in zip(data.x, data.y, strict=True)]
    clients = fp.make_clients(SoftmaxRegression(data.x.shape[2], data.classes), nn.CrossEntropyLoss(), parts)
    compute = fp.Compute(dtype="float64", device="cpu")
    training = fp.Training(clients, strategy, fp.Privacy(noise_on="none"), rounds=rounds, compute=compute)
    received = [training.progress.received[0]] + [training.progress.received[0] for _ in training]
    return received[rounds - 1].view(data.classes, -1).T


@pytest.mark.parametrize(("method", "step"), [("ObjT", fp.Trust()), ("ObjP", fp.Prox(fp.Decay(1.0, 0.5)))])
def test_iterates_equal_library(method, step):
    """Two lanes at once, without noise; one is the library's run."""
    data, rounds = blobs(), 12
    strategy = fp.inexact_admm(step, published_rho("mnist", math.inf), weight_decay=1e-6)
    lanes = [Lane(a=1e9 if method == "ObjT" else 1.0), Lane(rho=1.0)]
    state = admm_runs._State(data, method, lanes, 0, 1)
    for t in range(1, rounds + 1):
        state.step(t)
    torch.testing.assert_close(state.w[:, 0], library_w(data, strategy, rounds), rtol=1e-9, atol=1e-12)
    assert not torch.allclose(state.w[:, 1], state.w[:, 0])


def test_objective_noise_scale_is_equation_20():
    data, lane = blobs(), Lane(0.5)
    state = admm_runs._State(data, "ObjT", [lane], 0, 1)
    state.step(1)
    features = data.x[0].clone()
    at_zero = features.abs().sum(1) * (2 * (1 - 1 / data.classes))  # sum_k |h_k - y_k| at w = 0
    scale = float(at_zero.max()) / data.y.numel() / 0.5
    drawn = torch.stack([state._drawn("laplace")[0] * scale for _ in range(2000)])
    assert float(drawn.abs().mean()) == pytest.approx(scale, rel=0.02)
    again = admm_runs._State(data, "ObjT", [lane], 0, 1)
    expected = again._drawn("laplace")[0] * scale
    torch.testing.assert_close(state.noise[0], expected)


def test_parts_of_examples_average_to_full_gradient():
    data = blobs(each=12)
    whole = admm_runs._State(data, "ObjP", [Lane()], 0, 1)._gradient(1)
    parts = admm_runs._State(data, "ObjP", [Lane()], 0, 3)
    torch.testing.assert_close(sum(parts._gradient(t) for t in (1, 2, 3)) / 3, whole)


@pytest.mark.parametrize("form", ["code", "deviation", "corrected"])
def test_output_forms_equal_library_schedules(form):
    """The library's run is on sums over all examples divided by their number: rho and 1/eta-hat over the agents."""
    recipe = published_output(0.5, 20, form=form, examples=6000, n_clients=10)
    step, rho, lane = recipe.strategy.local_step.step, recipe.strategy.local_step.rho, Lane(0.5, form=form)
    sizes = torch.tensor([6000.0], dtype=torch.float64)
    for t in (1, 20):
        pull = float(lane.inverse_eta(sizes, t))
        assert 1 / step.eta(t) == pytest.approx(pull / 10)
        assert rho(t) == pytest.approx(lane.penalty("mnist", t) / 10)
        # noise on the library's gradient, as noise on z
        on_z = recipe.published.deviation(t - 1) / 10 / (rho(t) + 1 / step.eta(t))
        assert on_z == pytest.approx(float(lane.deviation(sizes, lane.penalty("mnist", t), pull)))


def test_nominal_epsilon_of_corrected_baseline():
    """Each round has noise multiplier sqrt(2 ln(1.25/delta)) / epsilon; 20 rounds are one of multiplier / sqrt(20)."""
    multiplier = math.sqrt(2 * math.log(1.25 / 1e-6)) / 0.5
    expected = admm.gaussian_epsilon(math.sqrt(20) / multiplier)
    lane = Lane(0.5, form="corrected", bound=3.0)
    assert admm.nominal("OutP", lane, "mnist", 20) == pytest.approx(expected)
    assert admm.nominal("OutP", Lane(0.5), "mnist", 20) < expected, "the public code adds more"


def found_by(name, tmp_path):
    bench = Bench("quick", tmp_path)
    found = EXPERIMENTS[name].run(bench)
    bench.finish(EXPERIMENTS[name], found)
    assert (tmp_path / "picture.png").stat().st_size > 5000
    return found, {row.setting: row for row in found.rows}


def test_epsilon_true_infinite_and_error_falls(small, tmp_path):
    found, rows = found_by("epsilon", tmp_path)
    assert rows["MNIST, ObjT, epsilon 5"].ours <= rows["MNIST, ObjT, epsilon 0.05"].ours
    assert rows["MNIST, ObjT, no noise"].ours < 10, "the classes are separated"
    assert rows["MNIST, ObjT, epsilon 0.05"].paper == 12.80
    assert all(math.isinf(row.true) for row in found.rows if row.stated)


def test_cuts_orders_named(small, tmp_path):
    found, rows = found_by("cuts", tmp_path)
    assert len(rows) == 2 * 3 * 2 and "ObjT" in found.verdict


def test_curves_noise_falls_with_epsilon(small, tmp_path):
    _, rows = found_by("curves", tmp_path)
    loud, quiet = (float(rows[f"MNIST, ObjT, epsilon {e}"].remark.split()[1][:-1]) for e in ("0.05", "1"))
    assert loud / quiet == pytest.approx(20, rel=0.3)


def test_long_runs_both_data(small, tmp_path):
    found, rows = found_by("long", tmp_path)
    assert [row.paper for row in found.rows if "MNIST" in row.setting] == [15.64, 37.98]
    assert len(rows) == 4


def test_rho_covers_grid(small, tmp_path):
    found, _ = found_by("rho", tmp_path)
    assert len(found.rows) == 2 * 5 * 2


def test_radius_that_never_binds_has_no_effect(small, tmp_path):
    """A radius of 100 never binds, so that 1000 gives the same run."""
    _, rows = found_by("radius", tmp_path)
    name = next(iter(rows)).split(", ObjT")[0]
    assert rows[f"{name}, ObjT, a = 100, epsilon 1"].ours == rows[f"{name}, ObjT, a = 1000, epsilon 1"].ours


def test_baseline_valid_bound_has_finite_epsilon(small, tmp_path):
    found, rows = found_by("baseline", tmp_path)
    finite = [row for row in found.rows if row.true is not None and math.isfinite(row.true)]
    assert {row.setting.split("bound ")[1].split(",")[0] for row in finite} == {"11.3", "39.6"}
    assert rows["digits, OutP, corrected, epsilon 1"].ours <= rows["digits, OutP, code, epsilon 1"].ours


def test_published_radius_moves_at_most_its_sum():
    """Radii 1/t^2 sum to less than pi^2/6."""
    data = blobs()
    lanes = [Lane(rho=1e-4, power=2.0), Lane(rho=1e-4)]
    frozen, free = (one["last"][0] for one in simulate(data, "ObjT", lanes, 200, 0, [200]))
    assert frozen < math.pi**2 / 6 < free


def test_library_error_of_one_round():
    assert admm.library_error("digits_iadmm.yaml", ["rounds=1"], 0) == pytest.approx(19.2, abs=6)


def test_beyond_nominal_epsilon_of_published_run(monkeypatch, tmp_path):
    """One Laplace round of epsilon costs about epsilon; more rounds leave less for each."""
    assert admm.epsilon_bar(1.0, 1) == pytest.approx(1, rel=1e-3)
    monkeypatch.setattr(admm, "library_error", lambda config, overrides, seed: 5.0 if "iadmm" in config else 30.0)
    _, rows = found_by("beyond", tmp_path)
    assert rows["fedpriv, deskewed, whole run 1"].true == 1
    published = rows["ObjT as published, whole run 3"]
    assert math.isinf(published.true)
    bar = float(published.stated.split()[0])
    assert admm.claims.inexact_admm(bar, 5, 1e-5).tight_total == pytest.approx(3, rel=0.01)
