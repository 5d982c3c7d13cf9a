"""Each word of a configuration has one meaning, and no text keeps the parser busy for long."""

from __future__ import annotations

from pathlib import Path

import pytest
from counting_calls import count_calls

from fedpriv.config import load_config
from fedpriv.errors import ConfigError
from fedpriv.storage.strict_yaml import DEEPEST, read

RUN = Path(__file__).parents[1] / "run.yaml"


def test_yaml_values_parsed():
    text = "{a: 1e-5, b: 3, c: -0.5, d: .inf, e: true, f: ~, g: [x, 'yes', '020'], h: 2020-01-01, i: {1: .5}}"
    assert read(text, "text") == {
        "a": 1e-5,
        "b": 3,
        "c": -0.5,
        "d": float("inf"),
        "e": True,
        "f": None,
        "g": ["x", "yes", "020"],
        "h": "2020-01-01",
        "i": {1: 0.5},
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epsilon: 3\nepsilon: 300", r"epsilon is given twice: keep one of them \(line 2, column 1\)"),
        ("a: {b: 1, b: 1}", "b is given twice"),
        *(
            (f"seed: {word}", f"{word} is a truth value in some versions of YAML")
            for word in ("yes", "No", "on", "OFF")
        ),
        *((f"a: {number}", "plain decimal") for number in ("020", "-007", "1:20", "12:30:45", "1_000", "0x1F", "0b1")),
        ("a: 0o17", "plain decimal"),
        ("a: .nan", "is not a number"),
        ("a: 1e999", "too large"),
        ("a: " + "9" * 5000, "5000 digits"),
        ("a: &x [1]\nb: *x", "aliases"),
        ("a: !!int 020", "tags are not allowed"),
        ("!!python/object/apply:os.system [ls]", "tags are not allowed"),
        ("? [1, 2]\n: 3", "a key must be a word"),
        ('a: "\\0"', "not allowed in text"),
        ('a: "\\uD800"', "not allowed in text"),
        ("a: 1\n---\na: 2", "is not YAML: .*another document"),
        ("a: [", "is not YAML"),
    ],
)
def test_ambiguous_yaml_raises_in_one_line(text: str, message: str):
    with pytest.raises(ConfigError, match=message) as caught:
        read(text, "text")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 30))


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        "[" * 3000,
        "{a: " * 3000,
        "- " * 3000,
        "? " * 3000,
        "a: " + "x" * 10**7,
        "a: [" + "1," * 40_000 + "]",
        "- a\n" * 24_000,
        "".join(f"a{i}:\n" for i in range(12_000)),
    ],
    ids=lambda text: text[:8],
)
def test_huge_yaml_raises_quickly(text: str):
    def refuse() -> None:
        with pytest.raises(ConfigError):
            read(text, "text")

    assert count_calls(refuse) < 5 * 10**6


def test_deepest_allowed_yaml_parsed():
    text = "[" * DEEPEST + "]" * DEEPEST
    assert str(read(text, "text")) == text


@pytest.mark.parametrize(
    "override",
    [
        "rounds=true",
        "rounds=3.0",
        "rounds=1e9",
        "rounds=1000000000",
        "rounds='3'",
        "seed=true",
        "privacy.epsilon=true",
        "privacy.epsilon='3'",
        "privacy.fsync=1",
        "strategy.rho.scale=true",
        "strategy={name: fedavg, learning_rate: 1, local_steps: true}",
        "strategy={name: fedavg, learning_rate: 1, adaptive_clip: {share: '0.1'}}",
        "network.outages=[{node: true}]",
        "data.flat=1",
        "compute.device=3",
        "compute.threads=100000",
        "problem.constraints=[{name: loss_at_most, bound: true}]",
    ],
)
def test_wrong_value_type_raises(override: str):
    with pytest.raises(ConfigError, match=override.split("=")[0].split(".")[-1]):
        load_config(RUN, [override])


def test_long_value_truncated_in_error():
    with pytest.raises(ConfigError) as caught:
        load_config(RUN, [f"model={'x' * 50_000}"])
    assert len(str(caught.value)) < 1000
    with pytest.raises(ConfigError) as caught:
        load_config(RUN, [".".join("a" * 5000) + "=1"])
    assert len(str(caught.value)) < 1000


def test_error_shows_any_value():
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert "too large to show" in str(ConfigError("seed", 10**5000, "give less"))
    assert "seed = " in str(ConfigError("seed", deep, "give less"))
