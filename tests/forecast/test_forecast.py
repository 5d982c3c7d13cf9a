"""What a configuration's run will cost, before it starts."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import fedpriv
from fedpriv.config import Config, build, forecast, load_config
from fedpriv.privacy.clipping import ROUNDING

DIGITS = Path(__file__).parents[1] / "run.yaml"
PUBLISHED = ["strategy={name: iadmm_trust, variant: published}", "privacy={epsilon_bar: 0.05}"]


def digits(*overrides: str) -> Config:
    return load_config(DIGITS, overrides)


def test_forecast_without_data():
    """The MNIST files are missing, but the sizes are known."""
    config = digits("data={name: mnist, root: /nowhere, partition: {kind: iid, n_clients: 9}}")
    found = forecast(config)
    assert found.examples == (6666, 6667)
    assert (found.parameters, found.releases) == (7840, 30)
    assert found.bytes_per_round == 2 * 9 * 7840 * 4
    assert 2.99 < found.spent.epsilon <= 3
    assert 0 < found.first_round.epsilon < 1
    assert found.warnings == ()
    trained = build(digits())
    assert forecast(digits()).noise_multiplier == trained.plan.privacy.noise_multiplier
    assert forecast(digits("data.partition={kind: dirichlet, n_clients: 4}")).n_clients == 4


@pytest.mark.parametrize("transforms", ["[]", "[scattering]", "[edges, unit]", "[bandpass]"])
@pytest.mark.parametrize("flat", ["true", "false"])
def test_forecast_parameters_with_transforms(transforms: str, flat: str):
    config = digits(f"data.transforms={transforms}", f"data.flat={flat}")
    assert forecast(config).parameters == len(build(config).result().params)


def test_forecast_transforms_on_small_images_raise():
    with pytest.raises(fedpriv.ConfigError, match=r"^data\.transforms = 'edges': needs at least 4 pixels per side"):
        forecast(digits("data={name: mnist, transforms: [edges, edges, edges], partition: {kind: iid, n_clients: 9}}"))


def test_forecast_warns_of_early_stop():
    found = forecast(digits("privacy.noise_multiplier=2"))
    assert found.spent.epsilon > 3
    assert "noise_multiplier=2 is too small for epsilon=3" in found.warnings[0]
    assert forecast(digits("privacy.noise_multiplier=20")).warnings == ()


def test_forecast_notes_client_smaller_than_batch():
    assert "all examples of a client that has fewer" in forecast(digits("privacy.sampling.fixed_size.size=144")).batches
    assert (
        "all examples of a client that has fewer"
        not in forecast(digits("privacy.sampling.fixed_size.size=143")).batches
    )


def test_forecast_warnings():
    assert "delta=0.001 is not below 1/1437" in forecast(digits("privacy.delta=1e-3")).warnings[0]
    many = forecast(digits("privacy={epsilon: 3, mechanism: laplace}"))
    assert "would need 24% less noise" in many.warnings[0]
    assert forecast(digits("privacy={epsilon: 3, mechanism: laplace}", "rounds=2")).warnings == ()
    assert "has no privacy guarantee" in forecast(digits("privacy.noise_on=none")).warnings[0]
    assert "computed on the training data without noise" in forecast(digits("log.optimum=0.1")).warnings[0]
    assert (
        forecast(digits("log.optimum=0.1", "privacy.noise_on=none")).warnings
        == forecast(digits("privacy.noise_on=none")).warnings
    )
    timed = forecast(digits("rounds=3"), timed=True)
    assert timed.seconds_per_round > 0
    assert timed.rows()["gradients"] == timed.backend == "linear"


def test_forecast_published_variant_states_claim_totals():
    found = forecast(digits(*PUBLISHED, "rounds=200", "data.partition.n_clients=2"))
    assert found.claim is not None
    assert (found.claim.stated_epsilon, found.claim.basic_total) == (0.05, 10)
    assert 2 < found.claim.tight_total < 4
    assert math.isinf(found.spent.epsilon)
    assert found.to_json()["spent"]["epsilon"] == "inf"
    assert any("epsilon of 0.05 is for one round" in warning for warning in found.warnings)
    assert any("depends on the private data" in warning for warning in found.warnings)


def test_forecast_states_epsilon_by_paper_formula():
    rate, rounds = 1 / 71, 1000
    noise = fedpriv.papers.claims.dual_averaging_noise(0.8, rounds, 71, 0.1)
    graph = "network={topology: {name: complete}, activity: {name: random_edges, count: 1}}"
    lines = ["strategy={name: dual_averaging}", "data.partition={kind: iid, n_clients: 20}", graph, f"rounds={rounds}"]
    private = f"privacy={{noise_multiplier: {noise / 2}, sampling: {{poisson: {{rate: {rate}}}}}}}"
    found = forecast(digits(*lines, private))
    assert found.formula is not None
    # the noise of a run covers rounding, too
    assert found.formula.stated_epsilon == pytest.approx(0.8 / (1 + ROUNDING))
    assert found.spent.epsilon > 3 * 0.8
    assert forecast(digits(*lines, private.replace(str(rate), "0.1"))).formula is None
    assert forecast(digits(private.replace(str(rate), "0.1"))).formula is None


def test_forecast_warns_of_unproven_steps() -> None:
    folder = Path(__file__).parents[2] / "configs"
    warnings = [
        forecast(load_config(folder / f"{name}.yaml")).warnings
        for name in ("digits_tracking", "digits_tracking_published")
    ]
    assert [
        any("proof of convergence needs a ratio of at most" in warning for warning in each) for each in warnings
    ] == [
        False,
        True,
    ]
