"""Every benchmark runs, at tiny sizes on made-up data in the real formats: what nobody runs rots unseen."""

import gzip
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fedpriv as fp
from fedpriv.statistics import Quantiles

ROOT = Path(__file__).parents[1] / "benchmarks"
RUNS = {
    "audit/power.py": [
        *("--parts", "0.5", "--canaries", "30", "--runs", "5", "--rounds", "1"),
        *("--repeats", "2", "--pool", "10", "--markdown", "OUT/power.md"),
    ],
    "audit/lower_bounds.py": ["--canaries", "40", "--many", "8", "--each", "10", "--markdown", "OUT/bounds.md"],
    "audit/side_channels.py": ["--rounds", "25", "--permutations", "2", "--markdown", "OUT/channels.md"],
    "speed/accounting.py": ["--rounds", "20", "--planned", "5"],
    "speed/long_plans.py": ["--smoke", "--rounds", "60", "--nodes", "4", "--markdown", "OUT/plans.md"],
    "speed/anatomy.py": ["--smoke", "--only", "softmax", "cohort", "cycle", "--markdown", "OUT/anatomy.md"],
    "speed/table.py": ["--smoke", "--markdown", "OUT/table.md"],
    "speed/scaling.py": ["--smoke", "--markdown", "OUT/scaling.md", "--picture", "OUT/scaling.png"],
    "speed/million.py": ["--smoke", "--rounds", "3", "--markdown", "OUT/million.md"],
    "speed/cores.py": ["--smoke", "--rounds", "1", "--markdown", "OUT/cores.md"],
    "speed/processes.py": ["--smoke", "--rounds", "1", "--turns", "1", "--markdown", "OUT/processes.md"],
    "speed/borders.py": ["--smoke", "--turns", "2", "--markdown", "OUT/borders.md"],
    "speed/device.py": [
        "--smoke",
        "--rounds",
        "1",
        "--only",
        "softmax",
        "cohort",
        "cycle",
        "--markdown",
        "OUT/device.md",
    ],
    "speed/kills.py": ["--kills", "1", "--rounds", "12", "--strategies", "fedavg", "--markdown", "OUT/kills.md"],
    "speed/durability.py": ["--clients", "3", "--rounds", "2", "--folder", "OUT"],
    "speed/small_rounds.py": ["--rounds", "4", "--only", "few", "--folder", "OUT"],
    "speed/exact_noise.py": ["--smoke", "--repeats", "1", "--markdown", "OUT/exact.md"],
    "speed/nodes.py": ["--only", "6"],
    "speed/sites.py": ["--sites", "2", "--parameters", "100", "--rounds", "2", "--markdown", "OUT/sites.md"],
    "speed/pairs.py": ["--clients", "10", "--dim", "20"],
    "speed/whole_runs.py": ["--smoke", "--markdown", "OUT/runs.md"],
    "speed/first_round.py": ["--repeats", "1", "--only", "CNN"],
    "speed/noise_share.py": ["--rounds", "1", "--examples", "40"],
    "speed/startup.py": ["--repeats", "0", "--only", "import fedpriv.config"],
    "reproduce/allocation.py": ["--quick"],
    "reproduce/allocation_over_time.py": ["--quick"],
    "reproduce/correlated.py": ["--quick", "--seeds", "1"],
    "reproduce/interval_coverage.py": ["--quick"],
    "reproduce/logistic_regression.py": ["--quick"],
    "reproduce/pair_dropouts.py": ["--quick", "--epsilons", "5", "--markdown", "OUT/dropouts.md"],
    "reproduce/pairwise.py": ["--quick", "--only", "D-PSGD", "--out", "OUT"],
    "reproduce/private_statistics.py": ["--quick"],
    "reproduce/strategies.py": ["--quick", "--only", "DP-SGD", "DPOP", "--out", "OUT"],
}
PARTS = {  # of the scripts above, and run by them
    "speed": {
        "architectures",
        "sequence_nets",
        "bookkeeping",
        "contenders",
        "gradients",
        "memory",
        "nets",
        "opponents",
        "rounds",
        "rows",
        "steps",
        "subprocesses",
    },
    "reproduce": {
        *("__main__", "experiment", "experiments", "sensors", "svm_problem", "svm_runs"),
        *("dual_averaging", "dual_averaging_runs"),
        *("constrained_solver", "constrained_tables"),
        *("admm", "admm_runs"),
        *("erm_figures", "erm_problem"),
        *("tracking", "tracking_beyond", "tracking_information", "tracking_mnist", "tracking_sensors"),
    },
    "audit": set(),
}
# need a network, another library, or data of which no small copy is made
PEERS = {
    "speed": {"pfl_environment"},
    "reproduce": {"logistic_regression_peer", "private_statistics_peers", "heart", "cifar10"},
    "audit": set(),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder like $FEDPRIV_DATA, with a few hundred examples that mean nothing."""
    folder, draws = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for name in ("mnist", "libsvm", "covertype", "adult", "heart"):
        (folder / name).mkdir()
    for part, count in (("train", 60), ("t10k", 20)):
        images, labels = draws.integers(0, 256, (count, 28, 28)), draws.integers(0, 10, count)
        for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
            head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
            (folder / f"mnist/{part}-{kind}-ubyte").write_bytes(head + values.astype(np.uint8).tobytes())
    signs = [f"{draws.choice([-1, 1])} {draws.integers(1, 60)}:1 {draws.integers(60, 124)}:1" for _ in range(80)]
    (folder / "libsvm/a9a.gz").write_bytes(gzip.compress("\n".join(signs).encode()))
    columns = [draws.integers(0, 250, (300, 10)), draws.integers(0, 2, (300, 44)), draws.integers(1, 8, (300, 1))]
    np.savetxt(folder / "covertype/covtype.data", np.concatenate(columns, 1), "%d", ",")
    for name, full_stop in (("adult.data", ""), ("adult.test", ".")):
        rows = [
            f"{draws.integers(20, 60)}, Private, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, "
            f"White, {draws.choice(['Male', 'Female'])}, 0, 0, 40, United-States, {income}{full_stop}"
            for income in draws.choice(["<=50K", ">50K"], 100)
        ]
        (folder / "adult" / name).write_text("\n".join(rows) + "\n")
    for name in ("cleveland", "va"):
        rows = [f"{draws.integers(30, 80)},{draws.integers(150, 300)}" for _ in range(200)]
        (folder / "heart" / f"{name}.csv").write_text("\n".join(["age,chol", *rows]) + "\n")
    return folder


SLOW = {
    "speed/processes.py",
    "speed/borders.py",
    "speed/sites.py",
}  # start processes that train


@pytest.mark.parametrize("script", [pytest.param(s, marks=[pytest.mark.slow] if s in SLOW else []) for s in RUNS])
def test_benchmark_runs(script, data, tmp_path, monkeypatch, capfd):
    path = ROOT / script
    monkeypatch.setenv("FEDPRIV_DATA", str(data))
    monkeypatch.setattr(sys, "argv", [str(path), *(word.replace("OUT", str(tmp_path)) for word in RUNS[script])])
    monkeypatch.setattr(sys, "path", [str(path.parent), *sys.path])
    threads = torch.get_num_threads()
    runpy.run_path(str(path), run_name="__main__")
    torch.set_num_threads(threads)
    assert any(letter.isdigit() for letter in capfd.readouterr().out)
    for word in RUNS[script]:
        if word.startswith("OUT/"):
            assert (tmp_path / word.removeprefix("OUT/")).stat().st_size


def test_benchmark_files_all_listed():
    for folder in ("audit", "speed", "reproduce"):
        named = {Path(script).stem for script in RUNS if script.startswith(folder)}
        assert {path.stem for path in (ROOT / folder).glob("*.py")} == named | PARTS[folder] | PEERS[folder]


def test_apart_returns_subprocess_result(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "speed"), *sys.path])
    from rows import Effort
    from subprocesses import apart

    found = apart(runpy.run_path(str(ROOT / "speed/scaling.py"))["run"], "clients", 2, effort=Effort())
    assert found[0] > 0 and found[1] > 10


@pytest.mark.parametrize("trust", [fp.Central(), fp.Local()], ids=str)
def test_simulated_statistics_have_noise_of_runs(trust):
    script = runpy.run_path(str(ROOT / "reproduce/private_statistics.py"))
    ages = np.random.default_rng(0).uniform(20, 90, 400)
    column = script["Column"]("age", np.split(ages, 4), (0.0, 120.0), 24, 1.0)
    statistic, privacy = Quantiles("x", column.bounds, bins=24), fp.Privacy(epsilon=3.0, delta=1e-5, trust=trust)
    simulated = script["simulate"](column, statistic, privacy, 2000)[:, 0]
    with pytest.warns(UserWarning, match="secret_seed"):
        runs = [
            fp.describe([{"x": part} for part in column.parts], [statistic], privacy, secret_seed=seed)["x"][
                "mean"
            ].value
            for seed in range(100)
        ]
    assert np.std(runs) == pytest.approx(simulated.std(), rel=0.2)  # 100 runs: a relative error of 7 %
    assert np.mean(runs) == pytest.approx(simulated.mean(), abs=0.4 * simulated.std())


def test_ratios_relative_to_plain(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "speed"), *sys.path])
    from rows import Found

    assert Found({"fedpriv": 3.0, "plain": 2.0, "peer": 5.0}).ratios() == {"fedpriv": 1.5, "peer": 2.5}
