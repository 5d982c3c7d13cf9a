"""As-published decentralised methods: what their noise is, and what it would cost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedpriv.algorithms.tracking import TwoVariableTracking
from fedpriv.config import build, forecast, load_config
from fedpriv.errors import ConfigError
from fedpriv.papers import claims
from fedpriv.papers.claims import TrackingNoise
from fedpriv.privacy.clipping import ROUNDING
from fedpriv.privacy.schedules import Geometric
from fedpriv.strategies.schedules import StepSize

NOISE = TrackingNoise(epsilon_bar=0.5, gamma=0.3, q1=0.9, q2=0.95, gap=2.0)
RUN = """
data: {name: digits, flat: true, partition: {kind: iid, n_clients: 6}}
model: softmax
strategy: {name: STRATEGY, variant: published}
privacy: {epsilon_bar: 0.8}
network: {topology: complete}
rounds: 4
seed: 0
"""


def config(tmp_path: Path, strategy: str, *overrides: str):
    path = tmp_path / "run.yaml"
    path.write_text(RUN.replace("STRATEGY", strategy))
    return load_config(path, overrides)


class ScriptedOracle:
    """Answers with the next of a list, whatever the point."""

    n_clients = 1

    def __init__(self, answers: list[float]) -> None:
        self.answers = answers

    def gradient(self, params: torch.Tensor) -> torch.Tensor:
        return torch.full_like(params, self.answers.pop(0))


def test_two_variable_tracking_cost_equals_l1_gap() -> None:
    """Two neighbours receive the same broadcasts; the privacy cost is the l1 gap of their messages over the noise."""
    rounds, step = 6, TwoVariableTracking(StepSize(NOISE.gamma, ratio=NOISE.q1))
    generator = torch.Generator().manual_seed(0)
    heard = torch.randn(rounds, 1, 2, generator=generator, dtype=torch.float64)
    signs = [(-1.0) ** k for k in range(rounds)]  # the worst pair: both answers that enter y move apart

    def messages(gap: float) -> torch.Tensor:
        state, oracle = (
            step.init(torch.zeros(1, 1, dtype=torch.float64)),
            ScriptedOracle([gap * sign for sign in signs]),
        )
        said = []
        for received in heard:
            message, state = step(received, state, oracle)
            said.append(message)
        return torch.stack(said).flatten(1)

    moved = (messages(NOISE.gap / 2) - messages(-NOISE.gap / 2)).abs().sum(1).numpy()
    nu = (
        NOISE.gamma * NOISE.gap * NOISE.q2 / (NOISE.epsilon_bar * (NOISE.q2 - NOISE.q1)) * NOISE.q2 ** np.arange(rounds)
    )
    for k in range(1, rounds + 1):
        claim = claims.two_variable_tracking("PP-DOAGT", NOISE, k, 0.0)
        assert claim.basic_total == pytest.approx(float((moved / nu)[:k].sum()), rel=1e-12)


def test_tracking_paper_table_3_claims() -> None:
    """3 delta alpha_k over nu_k adds up to 3 epsilon; 2 delta over nu_k has no finite total."""
    assert claims.two_variable_tracking("PP-DOAGT", NOISE, 3000).stated_epsilon == pytest.approx(3 * NOISE.epsilon_bar)
    short, long = (claims.two_variable_tracking("Diff-TV-AB", NOISE, k).stated_epsilon for k in (100, 200))
    assert long > 100 * short
    for method in ("PP-DOAGT", "Diff-TV-AB"):
        claim = claims.two_variable_tracking(method, NOISE, 100)
        assert claim.tight_total > claims.gradient_tracking(NOISE, 100).tight_total
        assert claim.scope == "these rounds, as a lower bound"


def test_tracking_costs_epsilon_over_q2() -> None:
    """Noise nu_{k+1} hides a gap of delta alpha_k."""
    claim = claims.gradient_tracking(NOISE, 2000, 0.0)
    assert claim.basic_total == pytest.approx(NOISE.epsilon_bar / NOISE.q2, abs=1e-12)
    assert claim.tight_total == pytest.approx(NOISE.epsilon_bar / NOISE.q2, abs=1e-12)
    assert f"= {NOISE.epsilon_bar / NOISE.q2:.6g}" in claim.why_not
    short = claims.gradient_tracking(NOISE, 30)
    assert short.tight_total <= short.basic_total < claim.basic_total
    on_gradients = NOISE.on_gradients * (NOISE.q2 / NOISE.q1) ** np.arange(7)
    assert NOISE.scales(8)[1:] / NOISE.steps(7) == pytest.approx(on_gradients)


@pytest.mark.parametrize(("q1", "q2"), [(0.9, 0.9), (0.95, 0.9), (0.9, 1.0), (0.0, 0.5)])
def test_tracking_ratios_without_total_raise(q1: float, q2: float) -> None:
    with pytest.raises(ConfigError, match=r"q1 < q2 < 1|a number in \(0, 1\)"):
        TrackingNoise(1.0, 0.1, q1, q2)


@pytest.mark.parametrize(
    ("strategy", "wide"), [("gradient_tracking", False), ("dpop", False), ("pp_doagt", True), ("diff_tv_ab", True)]
)
def test_published_noise_scale_equals_equation_5(tmp_path: Path, strategy: str, wide: bool) -> None:
    """Runs with and without noise: the first messages differ by Laplace noise of the stated scale."""
    beta = "strategy.beta=0" if strategy == "gradient_tracking" else "strategy.gamma=0.1"
    settings = ["strategy.gamma=0.1", beta, "strategy.gap=3.0", "network.mixing_steps=1"]

    def sent(epsilon: str) -> torch.Tensor:
        run = build(config(tmp_path, strategy, *settings, f"privacy.epsilon_bar={epsilon}"))
        network = run.network
        heard: list[torch.Tensor] = []
        network.mix, mix = lambda rows: heard.append(rows) or mix(rows), network.mix  # pyright: ignore
        next(iter(run))
        assert run.ledger.records[0].non_private
        assert run.ledger.records[0].query == ("message" if wide else "gradient")
        assert len(run.ledger.records) == 1
        return heard[0].double()

    noise = (sent("0.8") - sent(".inf")).abs()
    paper = TrackingNoise(0.8, 0.1, 0.97, 0.99, 3.0)
    # 6 nodes of 640 numbers each: the mean of |noise| is within 1.6 % (one standard deviation) of the scale
    for part in noise.chunk(2, dim=1) if wide else [noise]:
        assert float(part.mean()) == pytest.approx(paper.scales(2)[0 if wide else 1], rel=0.06)


@pytest.mark.parametrize("strategy", ["gradient_tracking", "dpop", "pp_doagt", "diff_tv_ab"])
def test_plan_has_claimed_and_true_epsilon(tmp_path: Path, strategy: str) -> None:
    found = forecast(config(tmp_path, strategy, "rounds=20"))
    assert found.spent.epsilon == float("inf")
    assert any("assumed" in reason for reason in found.spent.non_private)
    assert found.claim is not None
    assert found.claim.basic_total >= found.claim.tight_total > 0
    assert "delta" in found.warnings[0]
    assert found.releases == 20
    exact = forecast(config(tmp_path, strategy, "rounds=20", "privacy.epsilon_bar=.inf"))
    assert exact.claim is None


def test_dual_averaging_claim_epsilon_of_all_views(tmp_path: Path) -> None:
    """Its setting: n = 20, q = 20 000, iota = .1, T = 6e5, epsilon = .2; prices of algorithms.md within 2 %."""
    claim = claims.dual_averaging_published(0.2, 600_000, 20_000, 0.1)
    prices = [price for _, price in claim.views]
    assert prices == pytest.approx([298, 28.1, 270, 18.6], rel=0.02)
    assert claim.stated_epsilon == 0.2
    assert claim.tight_total == prices[0]
    assert claim.basic_total > claim.tight_total
    assert "requires T >= 2e+09, where T = 600000" in claim.why_not
    assert "a node active in 60000 rounds, the mean" in claim.why_not
    options = "strategy={name: dual_averaging, variant: published, examples: 50, gamma: 1}"
    edges = "network.activity={name: random_edges, count: 1}"
    one = "privacy.sampling={fixed_size: {size: 1}}"
    run = build(config(tmp_path, "dpop", options, edges, one))
    assert run.plan.privacy.published is not None
    deviation = claims.dual_averaging_noise(0.8, 4, 50, 1 / 3)
    assert run.plan.privacy.published.scale == pytest.approx(deviation)
    reports = list(run)
    assert reports[-1].epsilon == float("inf")
    assert "not private" in str(run.result().spent)


def test_one_record_privacy_cost_without_replacement(tmp_path: Path) -> None:
    """One answer about one of m records: delta(log(1 + q (e^eps - 1))) = q delta_Gauss(eps), q = 1/m, gap 2C."""
    from scipy.stats import norm

    sampled = ["strategy={name: dual_averaging, gamma: 1}", "network.activity={name: random_edges, count: 1}"]
    privacy = "privacy={noise_multiplier: 0.5, delta: 1e-4, sampling: {fixed_size: {size: 1}}}"
    found = forecast(config(tmp_path, "dpop", *sampled, privacy, "rounds=1", "data.partition.n_clients=3"))
    assert found.examples == (479, 479)
    rate, ratio, epsilon = 1 / found.examples[0], 1 / 0.5, found.spent.epsilon
    inner = np.log1p(np.expm1(epsilon) / rate)
    delta = rate * (norm.cdf(ratio / 2 - inner / ratio) - np.exp(inner) * norm.cdf(-ratio / 2 - inner / ratio))
    assert 0.97e-4 < delta <= 1e-4
    assert found.if_activity_hidden is not None
    assert found.if_activity_hidden < epsilon
    assert found.formula is not None  # sigma = 1 (and a little for rounding) for L = 1, T = 1, iota = 2/3
    assert found.formula.stated_epsilon == pytest.approx(np.sqrt(32 * np.log(200)) * 2 / 3 / 479 / (1 + ROUNDING))
    assert "exactly one example" in found.batches


@pytest.mark.parametrize("schedule", ["uniform", "{geometric: {ratio: 0.97}}"])
@pytest.mark.parametrize("epsilon", [0.1, 3.0])
def test_laplace_tracking_spends_pure_epsilon(tmp_path: Path, schedule: str, epsilon: float) -> None:
    sound = "strategy={name: gradient_tracking, step_size: {scale: 0.1}}"
    privacy = f"privacy={{epsilon: {epsilon}, delta: 0, mechanism: laplace, unit: client, schedule: {schedule}}}"
    run = build(config(tmp_path, "dpop", sound, privacy, "rounds=120"))
    assert len(list(run)) == 120, "the filter lets every round pass"
    result = run.result()
    assert result.spent.epsilon == pytest.approx(epsilon, abs=1e-12, rel=0)
    assert result.spent.epsilon <= epsilon


def test_dpop_schedule_ratio_is_q1_over_q2(tmp_path: Path) -> None:
    sound = config(tmp_path, "dpop", "strategy={name: dpop, q1: 0.9, q2: 0.95}", "privacy={epsilon: 1}")
    assert sound.promise().schedule == Geometric(0.9 / 0.95)


def test_dual_averaging_claim_has_delta_of_proof() -> None:
    """1 - (1 - epsilon) (1 - iota delta_0 / q)^T: a half for epsilon = 1/2, and 1 from epsilon = 1 on."""
    half, more = (claims.dual_averaging_published(epsilon, 4, 50, 1 / 3).why_not for epsilon in (0.5, 2.0))
    assert "so its delta is 0.5, and" in half
    assert "so its delta is 1, and" in more


def test_mean_active_rounds_rounded_up() -> None:
    """A third of four rounds is priced as two rounds of a node that is always active, at the same noise."""
    third = claims.dual_averaging(0.8, 4, 240, 1 / 3)
    two = claims.dual_averaging(0.8 * 2**0.5 * 1.5, 2, 240, 1.0)
    assert two.noise == pytest.approx(third.noise, rel=1e-12)
    assert third.messages == pytest.approx(two.messages, rel=1e-9)


@pytest.mark.parametrize("field", ["epsilon", "rounds", "examples", "active_fraction"])
def test_dual_averaging_claim_not_positive_raises(field: str) -> None:
    given = {"epsilon": 1.0, "rounds": 4, "examples": 50, "active_fraction": 0.5}
    with pytest.raises(ConfigError, match=rf"{field} = 0"):
        claims.dual_averaging(**{**given, field: 0})


@pytest.mark.parametrize("field", ["epsilon_bar", "gamma", "gap"])
def test_tracking_noise_not_positive_raises(field: str) -> None:
    with pytest.raises(ConfigError, match=rf"strategy\.{field} = 0.0: must be a positive"):
        TrackingNoise(**{"epsilon_bar": 1.0, "gamma": 0.1, "q1": 0.9, "q2": 0.95, "gap": 1.0, field: 0.0})


def test_equal_shares_infinite_horizon_raises() -> None:
    with pytest.raises(ConfigError, match="ratio below 1"):
        Geometric(1.0).noise_multiplier(1.0)
    assert Geometric(1.0).noise_multiplier(0.5, 10) == 20
    assert Geometric(0.5).noise_multiplier(0.5) == 4
