"""Settings of noise that cancels between pairs: what is refused, what YAML says, and what they reach."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pair_runs import PRIVACY, training_of

import fedpriv as fp
from fedpriv.config import build, load_config
from fedpriv.privacy.pairwise import Links, Pairwise, RandomRegular, Topology

# --- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"mechanism": fp.Laplace(), "clip": fp.Clip(1.0, "l1")}, "privacy.mechanism"),
        ({"trust": Pairwise(4, 3.0)}, "privacy.trust.pairwise.colluders"),
        ({"trust": Pairwise(1, 3.0, Topology())}, "privacy.trust.pairwise.secrets"),
        ({"trust": Pairwise(1, 3.0, RandomRegular(9))}, "privacy.trust.pairwise.secrets.random_regular.degree"),
        ({"trust": Pairwise(1, 3.0, Links(((0, 7),)))}, "privacy.trust.pairwise.secrets"),
    ],
    ids=str,
)
def test_pairwise_unsupported_settings_raise(changes: dict[str, object], field: str) -> None:
    with pytest.raises(fp.ConfigError) as caught:
        training_of(replace(PRIVACY, **changes))  # pyright: ignore[reportArgumentType]
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("written", "trust"),
    [
        ("{pairwise: {colluders: 1, ratio: 3}}", Pairwise(1, 3.0)),
        ("{pairwise: {colluders: 0, ratio: 1, secrets: topology}}", Pairwise(0, 1.0, Topology())),
        (
            "{pairwise: {colluders: 2, ratio: 1, secrets: {random_regular: {degree: 4}}}}",
            Pairwise(2, 1.0, RandomRegular(4)),
        ),
    ],
)
def test_pairwise_trust_from_configuration(written: str, trust: Pairwise) -> None:
    run = Path(__file__).parents[1] / "run.yaml"
    config = load_config(run, [f"privacy.trust={written}"])
    assert config.privacy.trust == trust
    again = config.model_dump(mode="json")["privacy"]["trust"]
    assert load_config(run, [f"privacy.trust={json.dumps(again)}"]).privacy.trust == trust


@pytest.mark.parametrize(
    ("written", "field"),
    [
        ("{pairwise: {colluders: -1, ratio: 3}}", "colluders"),
        ("{pairwise: {colluders: 1}}", "ratio"),
        ("{pairwise: {colluders: 1, ratio: 3, secret: complete}}", "secret"),
        ("{pairwise: {colluders: 1, ratio: 3, secrets: {random_regular: {degree: 0}}}}", "degree"),
        ("{pairwise: {colluders: 1, ratio: 3, secrets: ring}}", "secrets"),
    ],
)
def test_pairwise_invalid_setting_named_in_error(written: str, field: str) -> None:
    with pytest.raises(fp.ConfigError) as caught:
        load_config(Path(__file__).parents[1] / "run.yaml", [f"privacy.trust={written}"])
    assert field in caught.value.field.split(".")


# --- what it reaches ---------------------------------------------------------------------------------------------


def reached(name: str, *overrides: str) -> float:
    """Test accuracy of a shipped configuration."""
    file = Path(__file__).parents[2] / "configs" / f"{name}.yaml"
    training = build(load_config(file, [*overrides, "log.evaluate_every=1000"]))
    list(training)
    return training.result().test_accuracy or 0.0


def test_digits_pairwise_more_accurate_than_local() -> None:
    assert reached("digits_pairwise") >= 0.78
    assert reached("digits_pairwise", "privacy.trust=local") <= 0.7


@pytest.mark.slow
def test_mnist_pairwise_more_accurate_than_local(data_root: Path) -> None:
    place = f"data.root={data_root / 'mnist'}"
    assert reached("mnist_softmax_pairwise", place) >= 0.903
    assert reached("mnist_softmax_pairwise", place, "privacy.trust=local") <= 0.87
