"""A configuration's fingerprint names its noise: a change of it is a change of format, and is meant."""
# ruff: noqa: E501 - a setting is one line

from __future__ import annotations

from pathlib import Path

import pytest

from fedpriv.config import fingerprint, load_config
from fedpriv.config.strategies import STRATEGIES

ROOT = Path(__file__).parents[1]
SHIPPED = {
    "a9a_dual_averaging": "4ebff2c9f448da9c",
    "adult_fairness": "b4b561e9571bad2d",
    "adult_fairness_private": "99739305412d1ebb",
    "covertype_dual_averaging": "4372ee71f2bb24c6",
    "covertype_svrg": "9e14d151e12cfd4a",
    "covertype_svrg_published": "e6f53ae115e7b9e8",
    "digits_dual_averaging_published": "b9374dca524a7740",
    "digits_iadmm": "5a10ff3a58b10e78",
    "digits_pairwise": "2e939c6c7f53ae04",
    "digits_resnet_head": "b01d2bfdb763ee73",
    "digits_tracking": "80aaec92e3f4ab65",
    "digits_tracking_published": "33061e2db6409df4",
    "femnist_client_level": "8f6ede0f865b9b19",
    "femnist_cnn": "c2a87f4a1dd5a121",
    "femnist_scattering": "f6549a6f65268de7",
    "hospitals": "fe3dffab17a77f82",
    "mnist_cnn_fedavg": "6df4ee40629c4c23",
    "mnist_cnn_pairwise": "438d1f7ce0131946",
    "mnist_cnn_tracking": "043ccca43163c831",
    "mnist_cnn_tracking_client": "3439f7154113d40f",
    "mnist_iadmm": "bf92dc1a632b4654",
    "mnist_output": "fb7ba9b2d950940b",
    "mnist_published": "728357c51c75ae00",
    "mnist_scattering": "e858aec306760b98",
    "mnist_scattering_sums": "31fe80e094a7e64e",
    "mnist_softmax_pairwise": "1a1f7deaf37cc293",
    "np_breast_cancer": "148a57ec501e9b3f",
    "sensor_fusion": "bcb91e4ed7064263",
}
BARE = Path(__file__).with_name("run.yaml")
OF_STRATEGIES = {
    "name: iadmm_prox": "7daf5b4b3244a4d1",
    "name: iadmm_prox, eta: {scale: 2, power: 0}, rho: {scale: 1, offset: .5, growth: 1.2, period: 30}, feasible: {kind: box, bound: 3}, weight_decay: 1e-3, average: 1": "bfe60ca3fda7be9c",
    "name: iadmm_prox, feasible: {kind: ball, radius: 3}, linearize_at: received": "3356ad2f68c63fae",
    "name: iadmm_trust": "77cab6923fb010b7",
    "name: iadmm_trust, radius: {scale: .inf}, norm: l2": "2baaabdcfdbf4098",
    "name: iadmm_output": "5611317f8be65ed6",
    "name: proximal_al": "5d161a79ba7445f2",
    "name: proximal_al, beta: 3, rho: 2, solver: newton, regularizer: {l2: {lam: .1}}, inner_rounds: 30": "14428a9b9744d29f",
    "name: private_al": "5b9f41be509ed1e0",
    "name: private_al, beta: 2, regularizer: {elastic_net: {l1: .1, l2: .2}}": "c6295d45c351c4d1",
    "name: dual_averaging": "986f1532c77ea2a6",
    "name: dual_averaging, regularizer: {l1: {lam: .1}}, gamma: 2, gamma_power: .5, weight_power: 0, inactive: literal": "6e3073c29726bdac",
    "name: gradient_tracking": "802a35ce9c3cd01c",
    "name: gradient_tracking, step_size: {scale: .5, ratio: .9}, beta: .1, gradient_at: mixed, average: 2": "9c249effb6f7b972",
    "name: gradient_tracking_pair": "2df28a18097c3de8",
    "name: gradient_tracking_pair, step_size: {scale: 0.2, power: .5}, average: 0": "03634b3bd6d7ffd1",
    "name: decentralized_sgd": "94d7a56ad698cac2",
    "name: decentralized_sgd, step_size: {power: .5}": "64a433360fce06b9",
    "name: dpop": "46e34a58e3bebf62",
    "name: dpop, gamma: .2, q1: .9, q2: .95, average: 1": "274d4a2ba72c5fdc",
    "name: pp_doagt": "1676a3e66d538f8f",
    "name: diff_tv_ab, gamma: .2, q1: .9": "9992c8790402fba3",
    "name: fedavg, learning_rate: 1": "ea4d610cc840696d",
    "name: fedavg, learning_rate: .5, local_steps: 2, server_momentum: .9, weighting: clients, average: 1": "4c7576285184ea99",
    "name: fedavg, learning_rate: .5, adaptive_clip: {initial: .3}": "d33078740c1e1f62",
    "name: fedprox, learning_rate: .5, proximal: .1": "1777f6c6a4dbfeae",
    "name: fedopt, learning_rate: .5, server: yogi, tau: .01": "987c27c93233c1a4",
    "name: scaffold, learning_rate: .5, local_steps: 2, control_rate: .5": "078c38c1c7559c62",
    "name: dp_gd": "0d40601178326ed2",
    "name: dp_gd, learning_rate: 1, momentum: .9, report: average, average: 4, regularizer: {box: {bound: 2}}": "6ba0b19a09bdde41",
    "name: dp_gd, report: random, seed: 3": "8025b82755b81070",
    "name: dp_svrg, epoch_length: 3": "241dd6144e7f3baa",
    "name: dp_svrg, regularizer: {l2: {lam: .5}}, smoothness: .5, difference_bound: twice_clip, anchor_share: 4": "7915666fa6bc0170",
    "name: dp_svrg_plus_plus": "17e6120cbb1a7119",
    "name: dp_svrg_plus_plus, epoch_length: 1, learning_rate: .1, regularizer: {simplex: {}}": "86a2114807e0b2ae",
    "name: dp_accmd, radius: 2": "be988320bd102b9e",
    "name: dp_accmd, radius: 2, ball: l1, smoothness: 1": "a5cc517f7d923050",
    "name: iadmm_prox, variant: published": "90faf3a9909c857d",
    "name: iadmm_trust, variant: published, preset: femnist, scale: 2": "8b530979395e39d5",
    "name: iadmm_output, variant: published": "efd1acd57dfe9872",
    "name: dual_averaging, variant: published, examples: 100": "19c063ba2e6685d8",
    "name: gradient_tracking, variant: published": "c7209a7f80503e4f",
    "name: dpop, variant: published, gamma: .01": "5ee9890a04f3953a",
    "name: pp_doagt, variant: published": "7def2c30179f19ef",
    "name: diff_tv_ab, variant: published, gap: 2": "f1f3176fa6171d38",
    "name: dp_svrg, variant: published, n_examples: 100, epoch_length: 5, learning_rate: .1, regularizer: {ball: {radius: 3}}": "0661e891d42dc630",
    "name: dp_svrg_plus_plus, variant: published, n_examples: 100, epoch_length: 5, learning_rate: .1": "a4c0cb05b5a4772b",
    "name: dp_accmd, variant: published, n_examples: 100, radius: 2": "c8f9a4434ddebfe4",
}
OF_SECTIONS = {
    "privacy={noise_multiplier: 2, mechanism: laplace, delta: 0}": "9040a84443765b08",
    "privacy={epsilon: 1, clip: {norm: l1, bound: 2}, sampling: {poisson: {rate: .1}}, schedule: {geometric: {ratio: .99}}}": "5044fb57b1a1e31c",
    "privacy={epsilon: 1, sampling: {fixed_size: {size: 5}}, statistics: {bound: 3, share: .1, public_counts: true}, durable: false}": "1185d140da4f9ccb",
    "privacy={epsilon: 1, unit: client, trust: {central: {cohort_rate: .5}}}": "df67bc8b86b48fff",
    "privacy={epsilon: 1, unit: client, trust: central}": "50713125442af9e0",
    "privacy={epsilon: 1, trust: {secure_aggregation: {min_honest: 5}}}": "591eadd580efa36f",
    "network={cohort: {fixed: 3}}": "cafe0546eeae23dd",
    "network={cohort: {poisson: .5}}": "9fd4f5952c0234db",
    "network={topology: ring, activity: {name: random_edges, count: 2}, outages: [{node: 1, stop: 3}], mixing: {name: max_degree}}": "3e23a8e21b46e40a",
    "network={topology: complete, activity: one_peer_exponential, mixing_steps: 2}": "90d3f2b9f2efb0ec",
    "problem={constraints: [{name: class_loss_at_most, label: 1, bound: .3, fraction: .1}], server: {constraints: [{name: loss_at_most, bound: 1}]}}": "993ab2a979bb0cf9",
    "data.partition={kind: dirichlet, n_clients: 5, alpha: .3}": "08f318a6fdd6f809",
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
