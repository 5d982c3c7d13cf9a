"""A configuration's fingerprint names its noise: a change of it is a change of format, and is meant."""
# ruff: noqa: E501 - a setting is one line

from __future__ import annotations

from pathlib import Path

import pytest
from strategy_fingerprints import OF_STRATEGIES

from fedpriv.config import fingerprint, load_config
from fedpriv.config.strategies import STRATEGIES

ROOT = Path(__file__).parents[2]
SHIPPED = {
    "a9a_dual_averaging": "68597e9842be248e",
    "adult_fairness": "b98d6ed0948be6c6",
    "adult_fairness_private": "3ec94618c9cac9ba",
    "cifar10_patches_sums": "2c83ebf0b21f4d90",
    "cifar10_scattering_sums": "2404d5452197a607",
    "covertype_dual_averaging": "9394ae5c3eafe90d",
    "covertype_svrg": "b5c05eaf6d00e315",
    "covertype_svrg_published": "6a756a9ef53ddbbd",
    "digits_dual_averaging_published": "26584d800e341fe3",
    "digits_iadmm": "6f92e2e6354f5f20",
    "digits_pairwise": "cc95b7cebf66ed1c",
    "digits_resnet_head": "ad09c28fb0baa570",
    "digits_tracking": "7d4c55c59f4431e9",
    "digits_tracking_published": "b79e4dc7b08e8aba",
    "femnist_client_level": "8147d22bee461569",
    "femnist_client_level_pairwise": "5c54980ca3d27af2",
    "femnist_cnn": "74178c8c9df5c46a",
    "femnist_scattering": "61201083e54e6b0b",
    "femnist_scattering_pairwise": "57e6e67baf7caa56",
    "heart_hospitals": "030e419c7b001f46",
    "hospitals": "92ad278bbcafd5b7",
    "mnist_cnn_fedavg": "c637b3fb3d805efb",
    "mnist_cnn_pairwise": "f7e5691fc2ca76b3",
    "mnist_cnn_tracking": "0fbc97d785344607",
    "mnist_cnn_tracking_client": "8bf0d072adbf3a98",
    "mnist_iadmm": "ff6414450a8d4d51",
    "mnist_output": "c466e4c7e9a1b6f1",
    "mnist_published": "6ef29e90c90200ca",
    "mnist_scattering": "40832424b9576232",
    "mnist_scattering_pairwise": "71de88e36853f58a",
    "mnist_scattering_sums": "262aa009a73d3ec4",
    "mnist_softmax_pairwise": "560dd7d418c7832e",
    "np_breast_cancer": "dc7e306fda0c0df8",
    "sensor_fusion": "7db3052ff20b6e4d",
    "shakespeare_client_level": "c114008faf149a5b",
    "shakespeare_lstm": "94b959b07d024e3e",
}


BARE = Path(__file__).parents[1] / "run.yaml"
OF_SECTIONS = {
    "privacy={noise_multiplier: 2, mechanism: laplace, delta: 0}": "d975edbf56e33eb4",
    "privacy={epsilon: 1, clip: {norm: l1, bound: 2}, sampling: {poisson: {rate: .1}}, schedule: {geometric: {ratio: .99}}}": "87235708161f01e0",
    "privacy={epsilon: 1, sampling: {fixed_size: {size: 5}}, statistics: {bound: 3, share: .1, public_counts: true}, fsync: false}": "45b8ec20d626714e",
    "privacy={epsilon: 1, unit: client, trust: {central: {cohort_rate: .5}}}": "3b022918113406f5",
    "privacy={epsilon: 1, unit: client, trust: central}": "e28ff46ed056dc22",
    "privacy={epsilon: 1, trust: {secure_aggregation: {min_honest: 5}}}": "abe206ce688791aa",
    "network={cohort: {fixed: 3}}": "bdceeed5fb62d13b",
    "network={cohort: {poisson: .5}}": "08ec5c6e51d18b2c",
    "network={topology: ring, activity: {name: random_edges, count: 2}, outages: [{node: 1, stop: 3}], mixing: {name: max_degree}}": "1eff1adbb15f6aea",
    "network={topology: complete, activity: one_peer_exponential, mixing_steps: 2}": "8fa8ce8cd46b0f27",
    "problem={constraints: [{name: class_loss_at_most, label: 1, bound: .3, fraction: .1}], server: {constraints: [{name: loss_at_most, bound: 1}]}}": "c8df5186389592cb",
    "data.partition={kind: dirichlet, n_clients: 5, alpha: .3}": "37c31fa9ea2a7f13",
}


def test_fingerprints_cover_shipped_configs():
    assert {path.stem for path in (ROOT / "configs").glob("*.yaml")} == {*SHIPPED}


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_config_fingerprints_unchanged(name: str):
    assert fingerprint(load_config(ROOT / "configs" / f"{name}.yaml")) == SHIPPED[name]


@pytest.mark.parametrize("strategy", OF_STRATEGIES)
def test_strategy_fingerprints_unchanged(strategy: str):
    published = "variant: published" in strategy
    privacy = ["privacy={epsilon_bar: .5}"] if published else []
    assert fingerprint(load_config(BARE, [f"strategy={{{strategy}}}", *privacy])) == OF_STRATEGIES[strategy]


def test_fingerprints_cover_strategies():
    named = {text.split(",")[0].removeprefix("name: ") for text in OF_STRATEGIES}
    assert named == {*STRATEGIES}


@pytest.mark.parametrize("setting", OF_SECTIONS)
def test_section_fingerprints_unchanged(setting: str):
    assert fingerprint(load_config(BARE, [setting])) == OF_SECTIONS[setting]


def test_compute_settings_keep_fingerprint():
    first = next(iter(SHIPPED))
    speed = [
        "compute={client_state: disk, threads: 2, max_physical_batch_size: 8, backend: loop, device: cpu, pad_batches: true}"
    ]
    assert fingerprint(load_config(ROOT / "configs" / f"{first}.yaml", speed)) == SHIPPED[first]
