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
    "a9a_dual_averaging": "a30b4bef3ad6f929",
    "adult_fairness": "fd8bb71b62165120",
    "adult_fairness_private": "4aa2dcb26c42e45d",
    "cifar10_patches_sums": "33351b54e9f68663",
    "cifar10_scattering_sums": "0b001f7f21935a9e",
    "covertype_dual_averaging": "9cd68cc7e2645da0",
    "covertype_svrg": "e9eea6ad78b2c591",
    "covertype_svrg_published": "e2db1d42827e7c37",
    "digits_dual_averaging_published": "4910e242e2fef889",
    "digits_iadmm": "90f9529b15c69b50",
    "digits_pairwise": "31f691e2068c21f8",
    "digits_resnet_head": "b8940f374b395438",
    "digits_tracking": "e1482d8a493bf983",
    "digits_tracking_published": "59ad1e4d841a12d8",
    "femnist_client_level": "dbe507d3db0a16b4",
    "femnist_client_level_pairwise": "7560e1e0c3c89be6",
    "femnist_cnn": "62f214a06cd03e3c",
    "femnist_scattering": "2d72a2b367f4de9d",
    "femnist_scattering_pairwise": "685e24665d82c18a",
    "heart_hospitals": "5494adfefe6ae597",
    "hospitals": "7e1c4cd7734a994f",
    "mnist_cnn_fedavg": "52c4e8f2fac2e038",
    "mnist_cnn_pairwise": "560936cd338781c0",
    "mnist_cnn_tracking": "b3fb061c1422fd26",
    "mnist_cnn_tracking_client": "5a353089b7400750",
    "mnist_iadmm": "2974bba76494847d",
    "mnist_output": "a99622e6036f9dfb",
    "mnist_published": "072ef8778dd1fbdd",
    "mnist_scattering": "161c1dc11932a0c1",
    "mnist_scattering_pairwise": "63466129c0bf4c53",
    "mnist_scattering_sums": "b423ff4cf27a8724",
    "mnist_softmax_pairwise": "6c64e5fb4b486905",
    "np_breast_cancer": "1f91565fd11e8d37",
    "sensor_fusion": "d8eb26021df71544",
    "shakespeare_client_level": "bb09e547473d2d9b",
    "shakespeare_lstm": "d3f2631509c9b1f6",
}


BARE = Path(__file__).parents[1] / "run.yaml"
OF_SECTIONS = {
    "privacy={noise_multiplier: 2, mechanism: laplace, delta: 0}": "2f89cca653fd4a44",
    "privacy={epsilon: 1, clip: {norm: l1, bound: 2}, sampling: {poisson: {rate: .1}}, schedule: {geometric: {ratio: .99}}}": "a9a4cb0481cc0a99",
    "privacy={epsilon: 1, sampling: {fixed_size: {size: 5}}, statistics: {bound: 3, share: .1, public_counts: true}, durable: false}": "2d2094e7b17809e1",
    "privacy={epsilon: 1, unit: client, trust: {central: {cohort_rate: .5}}}": "5c4ccd91afccf651",
    "privacy={epsilon: 1, unit: client, trust: central}": "9b70a35678956276",
    "privacy={epsilon: 1, trust: {secure_aggregation: {min_honest: 5}}}": "826fd8fef84315b1",
    "network={cohort: {fixed: 3}}": "735bca73528a1e0b",
    "network={cohort: {poisson: .5}}": "9655833beb0f1ba4",
    "network={topology: ring, activity: {name: random_edges, count: 2}, outages: [{node: 1, stop: 3}], mixing: {name: max_degree}}": "60bc15a9601c6cef",
    "network={topology: complete, activity: one_peer_exponential, mixing_steps: 2}": "e12081d4645fdb10",
    "problem={constraints: [{name: class_loss_at_most, label: 1, bound: .3, fraction: .1}], server: {constraints: [{name: loss_at_most, bound: 1}]}}": "7038e126ff3cf57f",
    "data.partition={kind: dirichlet, n_clients: 5, alpha: .3}": "af832517bbf84920",
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
    speed = ["compute={state: disk, threads: 2, chunk: 8, backend: loop, device: cpu, pad_batches: true}"]
    assert fingerprint(load_config(ROOT / "configs" / f"{first}.yaml", speed)) == SHIPPED[first]
