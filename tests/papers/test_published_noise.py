"""Noise as papers publish it has the papers' scale, and is recorded as not private."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import fedpriv as fp
from fedpriv.papers.published import Published
from fedpriv.privacy.mechanisms import add_noise
from fedpriv.privacy.record import Record
from fedpriv.randomness.streams import Randomness

DIM = 40_000
RECORD = Record(3, "gradient", 0, "none", 0.0, "sample", "replace_one", non_private="as published")
FACTORS, NORMS = (0.5, 2.0), (3.0, 7.0)


def noise_of(published: Published, record: Record = RECORD) -> tuple[torch.Tensor, list[int], Record]:
    """What is added to two rows, how often norms were asked for, and the record."""
    asked: list[int] = []

    def norms() -> tuple[float, ...]:
        asked.append(1)
        return NORMS

    rows = torch.arange(2.0, dtype=torch.float64).unsqueeze(1).expand(2, DIM)
    scales = published.scales(record, FACTORS, norms)
    if scales is None:
        return torch.zeros_like(rows), asked, record
    made = add_noise(rows, scales, published.noise_mechanism, record, Randomness(0, 5), [0, 1])
    return made._value - rows, asked, made.record


@pytest.mark.parametrize(
    ("published", "scales"),
    [
        # eq 20 of Ryu and Kim: the largest l1 norm over epsilon, times the public factor
        (Published(2.0), [0.5 * 3 / 2, 2.0 * 7 / 2]),
        # sqrt(2 ln(1.25 / delta)) over epsilon, times twice the bound
        (
            Published(2.0, mechanism="gaussian", delta_bar=0.5, gradient_bound=1.5),
            [factor * 3 * math.sqrt(2 * math.log(2.5)) / 2 for factor in FACTORS],
        ),
        (Published(2.0, scale=0.7, growth=1.1), [0.7 * 1.1**3] * 2),
        (Published(2.0, mechanism="gaussian", scale=0.7, growth=0.9), [0.7 * 0.9**3] * 2),
    ],
    ids=["laplace", "gaussian", "scale of a laplace", "scale of a gaussian"],
)
def test_published_noise_scale_equals_paper(published: Published, scales: list[float]) -> None:
    noise, asked, record = noise_of(published)
    spread = noise.abs().mean(1) if published.mechanism == "laplace" else noise.square().mean(1).sqrt()
    assert spread.tolist() == pytest.approx(scales, rel=0.02)
    kurtosis = (noise**4).mean(1) / noise.square().mean(1) ** 2
    assert kurtosis.tolist() == pytest.approx([6.0 if published.mechanism == "laplace" else 3.0] * 2, rel=0.25)
    assert bool(asked) == (published.scale is None and published.mechanism == "laplace")
    assert record.non_private == "as published"


def test_published_exact_queries_have_no_noise() -> None:
    exact = replace(RECORD, query="full_gradient")
    for published, record in ((Published(math.inf), RECORD), (Published(1.0, exact_queries=("full_gradient",)), exact)):
        noise, asked, _ = noise_of(published, record)
        assert (float(noise.abs().max()), asked) == (0.0, [])
    assert float(noise_of(Published(1.0, exact_queries=("full_gradient",)))[0].abs().max()) > 0


def test_published_noise_reason_not_private() -> None:
    assert "measured on the client's own data" in Published(1.0).why_not
    assert "assumed, not enforced" in Published(1.0, mechanism="gaussian").why_not
    assert Published(1.0, scale=2.0, flaw="half is missing").why_not == "as published: half is missing"
    assert Published(math.inf, scale=2.0).why_not == "exact query results, no noise"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epsilon_bar", 0.0),
        ("mechanism", "cauchy"),
        ("noise_on", "server"),
        ("delta_bar", 0.0),
        ("delta_bar", 1.0),
        ("gradient_bound", 0.0),
        ("gradient_bound", math.inf),
        ("growth", -1.0),
        ("growth", math.nan),
    ],
)
def test_published_invalid_setting_raises(field: str, value: object) -> None:
    with pytest.raises(fp.ConfigError, match=f"privacy.published.{field}"):
        Published(**{"epsilon_bar": 1.0, field: value})


def test_published_message_noise_without_scale_raises() -> None:
    with pytest.raises(fp.ConfigError, match=r"privacy\.published\.scale"):
        Published(1.0, noise_on="message")
    assert (
        Published(1.0, noise_on="message", scale=1.0).noise_on
        == Published(math.inf, noise_on="message").noise_on
        == "message"
    )
