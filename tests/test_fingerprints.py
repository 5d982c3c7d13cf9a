"""A configuration's fingerprint names its noise: a change of it is a change of format, and is meant."""
# ruff: noqa: E501 - a setting is one line

from __future__ import annotations

from pathlib import Path

import pytest

from fedpriv.config import fingerprint, load_config
from fedpriv.config.strategies import STRATEGIES

ROOT = Path(__file__).parents[1]
SHIPPED = {
    "a9a_dual_averaging": "a30b4bef3ad6f929",
    "adult_fairness": "fd8bb71b62165120",
    "adult_fairness_private": "4aa2dcb26c42e45d",
    "covertype_dual_averaging": "9cd68cc7e2645da0",
    "covertype_svrg": "e9eea6ad78b2c591",
    "covertype_svrg_published": "e2db1d42827e7c37",
    "digits_dual_averaging_published": "4910e242e2fef889",
    "digits_iadmm": "90f9529b15c69b50",
    "digits_pairwise": "31f691e2068c21f8",
    "digits_resnet_head": "cdc34bdf5db2d8a4",
    "digits_tracking": "e1482d8a493bf983",
    "digits_tracking_published": "59ad1e4d841a12d8",
    "femnist_client_level": "7c745561e1b12e11",
    "femnist_cnn": "c28301c18bc0c7b3",
    "femnist_scattering": "3332b4b1451528f0",
    "hospitals": "7e1c4cd7734a994f",
    "mnist_cnn_fedavg": "dd3a8742b2c73e1d",
    "mnist_cnn_pairwise": "560936cd338781c0",
    "mnist_cnn_tracking": "b3fb061c1422fd26",
    "mnist_cnn_tracking_client": "5a353089b7400750",
    "mnist_iadmm": "2974bba76494847d",
    "mnist_output": "a99622e6036f9dfb",
    "mnist_published": "072ef8778dd1fbdd",
    "mnist_scattering": "161c1dc11932a0c1",
    "mnist_scattering_sums": "504cae28d8bdfadc",
    "mnist_softmax_pairwise": "6c64e5fb4b486905",
    "np_breast_cancer": "1f91565fd11e8d37",
    "sensor_fusion": "d8eb26021df71544",
}
BARE = Path(__file__).with_name("run.yaml")
OF_STRATEGIES = {
    "name: iadmm_prox": "071557147b8a0bc3",
    "name: iadmm_prox, eta: {scale: 2, power: 0}, rho: {scale: 1, offset: .5, growth: 1.2, period: 30}, feasible: {kind: box, bound: 3}, weight_decay: 1e-3, average: 1": "ebdceccc391e08ad",
    "name: iadmm_prox, feasible: {kind: ball, radius: 3}, linearize_at: received": "eaba4806cfb5d422",
    "name: iadmm_trust": "16527ec404494ce5",
    "name: iadmm_trust, radius: {scale: .inf}, norm: l2": "a3991605e99ebc3a",
    "name: iadmm_output": "b487fb0b099262ad",
    "name: proximal_al": "80150f9876c67887",
    "name: proximal_al, beta: 3, rho: 2, solver: newton, regularizer: {l2: {lam: .1}}, inner_rounds: 30": "f2a2cbd92f838337",
    "name: private_al": "1473bf65aaa23c92",
    "name: private_al, beta: 2, regularizer: {elastic_net: {l1: .1, l2: .2}}": "644dbe790e52b645",
    "name: dual_averaging": "c5edd07e13195c2e",
    "name: dual_averaging, regularizer: {l1: {lam: .1}}, gamma: 2, gamma_power: .5, weight_power: 0, inactive: literal": "af336c4a72f0f607",
    "name: gradient_tracking": "dceb6ae4ada88d1f",
    "name: gradient_tracking, step_size: {scale: .5, ratio: .9}, beta: .1, gradient_at: mixed, average: 2": "555b0d1cbb0379c4",
    "name: gradient_tracking_pair": "bf88ef1e125a4a1b",
    "name: gradient_tracking_pair, step_size: {scale: 0.2, power: .5}, average: 0": "cbfb45d73b953b23",
    "name: decentralized_sgd": "96b555cf47af8176",
    "name: decentralized_sgd, step_size: {power: .5}": "10811998399fa407",
    "name: dpop": "478c1ec2eefef2e0",
    "name: dpop, gamma: .2, q1: .9, q2: .95, average: 1": "b2603a028432f48a",
    "name: pp_doagt": "0503e98f51223771",
    "name: diff_tv_ab, gamma: .2, q1: .9": "66155a36b29a9321",
    "name: fedavg, learning_rate: 1": "c8ade22ffebe6fc2",
    "name: fedavg, learning_rate: .5, local_steps: 2, server_momentum: .9, weighting: clients, average: 1": "12de23349576f43f",
    "name: fedavg, learning_rate: .5, adaptive_clip: {initial: .3}": "97581f4a2610d82e",
    "name: fedprox, learning_rate: .5, proximal: .1": "d7d148ca2e05cee4",
    "name: fedopt, learning_rate: .5, server: yogi, tau: .01": "d2f6212ebba5392a",
    "name: scaffold, learning_rate: .5, local_steps: 2, control_rate: .5": "472b32d35878eb59",
    "name: dp_gd": "2dadf30e062506fc",
    "name: dp_gd, learning_rate: 1, momentum: .9, report: average, average: 4, regularizer: {box: {bound: 2}}": "9c1e5896b8883e52",
    "name: dp_gd, report: random, seed: 3": "ab90bd38aff5f00e",
    "name: dp_svrg, epoch_length: 3": "97e0e640f13fcec8",
    "name: dp_svrg, regularizer: {l2: {lam: .5}}, smoothness: .5, difference_bound: twice_clip, anchor_share: 4": "5ac1c9d209e58806",
    "name: dp_svrg_plus_plus": "375afbf8c271e7fe",
    "name: dp_svrg_plus_plus, epoch_length: 1, learning_rate: .1, regularizer: {simplex: {}}": "ed6127f2b625ba50",
    "name: dp_accmd, radius: 2": "b9bc28beb63325e9",
    "name: dp_accmd, radius: 2, ball: l1, smoothness: 1": "0bb09137598ffece",
    "name: iadmm_prox, variant: published": "336f380728094132",
    "name: iadmm_trust, variant: published, preset: femnist, scale: 2": "526bb3098ea18541",
    "name: iadmm_output, variant: published": "38059bfc148dd270",
    "name: dual_averaging, variant: published, examples: 100": "cc7b49f59f033460",
    "name: gradient_tracking, variant: published": "242d7119cb1bb0a3",
    "name: dpop, variant: published, gamma: .01": "a6baae1a05f7a3f2",
    "name: pp_doagt, variant: published": "fb51d147abc430b8",
    "name: diff_tv_ab, variant: published, gap: 2": "fdb30a411d1c52e3",
    "name: dp_svrg, variant: published, n_examples: 100, epoch_length: 5, learning_rate: .1, regularizer: {ball: {radius: 3}}": "836b6c79681cd5aa",
    "name: dp_svrg_plus_plus, variant: published, n_examples: 100, epoch_length: 5, learning_rate: .1": "ac40fb4e02a1ccea",
    "name: dp_accmd, variant: published, n_examples: 100, radius: 2": "ea952d117e57e0ed",
}
OF_SECTIONS = {
    "privacy={noise_multiplier: 2, mechanism: laplace, delta: 0}": "2f89cca653fd4a44",
    "privacy={epsilon: 1, clip: {norm: l1, bound: 2}, sampling: {poisson: {rate: .1}}, schedule: {geometric: {ratio: .99}}}": "a9a4cb0481cc0a99",
    "privacy={epsilon: 1, sampling: {fixed_size: {size: 5}}, statistics: {bound: 3, share: .1, public_counts: true}, durable: false}": "2d2094e7b17809e1",
    "privacy={epsilon: 1, unit: client, trust: {central: {cohort_rate: .5}}}": "4e189b90018a6edf",
    "privacy={epsilon: 1, unit: client, trust: central}": "1f7f0bf5ae026dd3",
    "privacy={epsilon: 1, trust: {secure_aggregation: {min_honest: 5}}}": "24f39f14642a1b3a",
    "network={cohort: {fixed: 3}}": "735bca73528a1e0b",
    "network={cohort: {poisson: .5}}": "9655833beb0f1ba4",
    "network={topology: ring, activity: {name: random_edges, count: 2}, outages: [{node: 1, stop: 3}], mixing: {name: max_degree}}": "60bc15a9601c6cef",
    "network={topology: complete, activity: one_peer_exponential, mixing_steps: 2}": "e12081d4645fdb10",
    "problem={constraints: [{name: class_loss_at_most, label: 1, bound: .3, fraction: .1}], server: {constraints: [{name: loss_at_most, bound: 1}]}}": "7038e126ff3cf57f",
    "data.partition={kind: dirichlet, n_clients: 5, alpha: .3}": "af832517bbf84920",
}


def test_no_shipped_configuration_is_left_out():
    assert {path.stem for path in (ROOT / "configs").glob("*.yaml")} == {*SHIPPED}


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_configurations_keep_their_fingerprints(name: str):
    assert fingerprint(load_config(ROOT / "configs" / f"{name}.yaml")) == SHIPPED[name]


@pytest.mark.parametrize("strategy", OF_STRATEGIES)
def test_strategies_keep_their_fingerprints(strategy: str):
    published = "variant: published" in strategy
    privacy = ["privacy={epsilon_bar: .5}"] if published else []
    assert fingerprint(load_config(BARE, [f"strategy={{{strategy}}}", *privacy])) == OF_STRATEGIES[strategy]


def test_no_strategy_is_left_out():
    named = {text.split(",")[0].removeprefix("name: ") for text in OF_STRATEGIES}
    assert named == {*STRATEGIES}


@pytest.mark.parametrize("setting", OF_SECTIONS)
def test_other_sections_keep_their_fingerprints(setting: str):
    assert fingerprint(load_config(BARE, [setting])) == OF_SECTIONS[setting]


def test_how_fast_and_where_a_run_computes_leaves_fingerprints_alone():
    first = next(iter(SHIPPED))
    speed = ["compute={state: disk, threads: 2, chunk: 8, backend: loop, device: cpu}"]
    assert fingerprint(load_config(ROOT / "configs" / f"{first}.yaml", speed)) == SHIPPED[first]
