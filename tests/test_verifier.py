"""The verifier of one page counts what the library counts, or refuses: closed forms, a second library, real ledgers."""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld import privacy_loss_distribution as dpa
from forging import lines_of, rewrite
from scipy.optimize import brentq
from scipy.stats import norm

from fedpriv.config import load_config
from fedpriv.config.building import load_plan
from fedpriv.privacy.accounting.accountant import Accountant, account
from fedpriv.privacy.correlated import CorrelatedNoise, Factor
from fedpriv.privacy.ledger import Ledger
from fedpriv.privacy.ledger_file import LedgerFile, make_correlation_facts, make_pairwise_facts
from fedpriv.privacy.record import Record

sys.path.insert(0, str(Path(__file__).parent / "golden"))
from make_golden import CASES, training  # small runs of every kind

sys.path.pop(0)
ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "tools" / "fedpriv_verify.py"
_spec = importlib.util.spec_from_file_location("fedpriv_verify", SOURCE)
assert _spec is not None and _spec.loader is not None
verifier = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(verifier)
Event = verifier.Event


def test_verifier_short_with_few_imports():
    text = SOURCE.read_text()
    assert len(text.splitlines()) <= 200
    imported = set[str]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module).partition(".")[0])
    assert imported <= {"numpy", "scipy", *sys.stdlib_module_names}


# closed forms


@pytest.mark.parametrize("mu", [0.05, 0.4, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-7])
@pytest.mark.parametrize("count", [1, 7])
def test_gaussian_epsilon_matches_closed_form(mu: float, delta: float, count: int):
    def excess(epsilon: float) -> float:
        upper = norm.cdf(mu / 2 - epsilon / mu)
        return upper - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) - delta

    exact = brentq(excess, 0, 40, xtol=1e-13)
    event = Event("gaussian", math.sqrt(count) / mu, "full", 1.0)
    assert exact <= verifier.epsilon_of({event: count}, delta) <= 1.005 * exact + 1e-9


@pytest.mark.parametrize("scale", [0.5, 2.0, 50.0])
def test_laplace_epsilon_matches_closed_form(scale: float):
    event = Event("laplace", scale, "full", 1.0)
    assert verifier.epsilon_of({event: 3}, 0.0) == pytest.approx(3 / scale)
    exact = 1 / scale + 2 * math.log(1 - 1e-4)
    assert exact <= verifier.epsilon_of({event: 1}, 1e-4) <= 1.005 * exact


def test_amplified_laplace_matches_closed_form():
    """Any sampling at rate q: delta(log(1 + q (e^eps - 1))) = q delta_s(eps)."""
    rate, scale, delta = 0.1, 0.7, 1e-4
    unsampled = 1 / scale + 2 * math.log(1 - delta / rate)
    exact = math.log1p(rate * math.expm1(unsampled))
    event = Event("laplace", scale, "amplified", rate)
    assert exact <= verifier.epsilon_of({event: 1}, delta) <= 1.005 * exact
    assert verifier.epsilon_of({event: 2}, 0.0) == pytest.approx(2 * math.log1p(rate * math.expm1(1 / scale)))


# a second library, whose optimistic estimates are below the truth and whose pessimistic ones are above it


@pytest.mark.parametrize(
    ("noise", "rate", "count", "delta"), [(1.0, 0.01, 1000, 1e-5), (0.6, 0.2, 10, 1e-6), (2.0, 0.1, 500, 1e-3)]
)
def test_poisson_gaussian_matches_dp_accounting(noise: float, rate: float, count: int, delta: float):
    def second(*, pessimistic: bool) -> float:
        loss = dpa.from_gaussian_mechanism(
            noise, sampling_prob=rate, value_discretization_interval=2e-4, pessimistic_estimate=pessimistic
        )
        return loss.self_compose(count).get_epsilon_for_delta(delta)

    event = Event("gaussian", noise, "poisson add_remove", rate)
    assert 0.999 * second(pessimistic=False) <= verifier.epsilon_of({event: count}, delta)
    assert verifier.epsilon_of({event: count}, delta) <= 1.005 * second(pessimistic=True)


@pytest.mark.parametrize(("noise", "rate", "count"), [(0.5, 0.05, 100), (1.0, 0.3, 20)])
def test_poisson_gaussian_replace_one_matches_reference(noise: float, rate: float, count: int):
    accountant = PLDAccountant(
        dp_accounting.NeighboringRelation.REPLACE_ONE, value_discretization_interval=2e-4
    )  # whose noise is over the clip bound: half the sensitivity
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(2 * noise))
    second = accountant.compose(event, count).get_epsilon(1e-5)
    ours = verifier.epsilon_of({Event("gaussian", noise, "poisson replace_one", rate): count}, 1e-5)
    assert ours == pytest.approx(second, rel=0.005)


def test_mixed_events_match_dp_accounting():
    step = 2e-4
    losses = [
        dpa.from_gaussian_mechanism(3.0, value_discretization_interval=step),
        dpa.from_gaussian_mechanism(0.8, sampling_prob=0.02, value_discretization_interval=step).self_compose(200),
        dpa.from_laplace_mechanism(4.0, sampling_prob=0.5, value_discretization_interval=step).self_compose(5),
    ]
    second = losses[0].compose(losses[1]).compose(losses[2]).get_epsilon_for_delta(1e-5)
    history = {
        Event("gaussian", 6.0, "full", 1.0): 4,  # together one of deviation 3
        Event("gaussian", 0.8, "poisson add_remove", 0.02): 200,
        Event("laplace", 4.0, "poisson add_remove", 0.5): 5,
    }
    assert verifier.epsilon_of(history, 1e-5) == pytest.approx(second, rel=0.005)


def test_remove_and_add_curves_match_reference():
    """A unit that is added may cost more than one that is removed, and the other way round."""
    event = Event("gaussian", 0.5, "poisson add_remove", 0.6)
    removed, added = verifier.curves(event, verifier.np.array([0.3]))
    assert removed[0] > 1.2 * added[0]
    loss = dpa.from_gaussian_mechanism(0.5, sampling_prob=0.6)
    assert removed[0] == pytest.approx(loss.get_delta_for_epsilon(0.3), rel=1e-3)
    assert added[0] == pytest.approx(loss._pmf_add.get_delta_for_epsilon(0.3), rel=1e-3)


# ledgers


def ledger_of(folder: Path, records: list[Record], n_clients: int, delta: float) -> Path:
    pairs = next((record.pairs for record in records if record.pairs), None)
    time = next((record.time for record in records if record.time), None)
    header = {"n_clients": n_clients, "delta": delta, "planned": len(records)}
    path = folder / "ledger.jsonl"
    ledger = Ledger(
        Accountant(n_clients, delta), path, header | make_pairwise_facts(pairs) | make_correlation_facts(time)
    )
    ledger.begin_with(records)
    return path


def verified(path: Path) -> float:
    header, records = verifier.read(path)
    return max(verifier.epsilon_of(h, header["delta"]) for h in verifier.histories_of(header, records))


def compare(path: Path, looser: float = 1.0) -> None:
    """Compares a ledger's two epsilons; the verifier's may be `looser` times as large."""
    file = LedgerFile.read(path)
    assert file.header.n_clients is not None and file.header.delta is not None
    epsilon = account(file.records, file.header.n_clients, file.header.delta).epsilon
    if math.isinf(epsilon):
        with pytest.raises(SystemExit, match="epsilon is infinite"):
            verified(path)
        return
    assert 0.995 * epsilon <= verified(path) <= 1.01 * looser * epsilon


SLOW = {
    *("covertype_svrg_published", "femnist_client_level", "femnist_client_level_pairwise", "femnist_cnn"),
    *("femnist_scattering", "femnist_scattering_pairwise", "mnist_scattering_pairwise"),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(path.stem, marks=[pytest.mark.slow] if path.stem in SLOW else [])
        for path in sorted((ROOT / "configs").glob("*.yaml"))
    ],
)
@pytest.mark.data
def test_shipped_config_epsilon_matches_account(name: str, data_root: Path, tmp_path: Path):
    plan = load_plan(load_config(ROOT / "configs" / f"{name}.yaml"), 0)
    compare(ledger_of(tmp_path, list(plan.records), plan.n_clients, plan.privacy.delta))


def test_init_project_ledger_verifies(tmp_path: Path):
    """Its own data, model and algorithm are code, so that a short run makes the ledger."""
    folder = tmp_path / "project"
    command = [sys.executable, "-m", "fedpriv"]
    subprocess.run([*command, "init", "--project", "--dir", str(folder)], check=True, capture_output=True)
    words = ["train", "config.yaml", "--allow-plugins", "--out", "run", "rounds=3"]
    subprocess.run([*command, *words], check=True, capture_output=True, cwd=folder)
    compare(folder / "run" / "ledger.jsonl")


RUNS = (
    "adaptive_clipping, gradient_descent, svrg, private_augmented_lagrangian, central_secret_cohort, pairwise, "
    "pairwise_graph, no_privacy, message_client_level, laplace, poisson, poisson_add_remove, fixed_size, cyclic, bsr, "
    "blt_pairwise, geometric_schedule, fixed_cohort"
)
# where only some pairs share secrets, the verifier counts as if pairs added no noise
LOOSER = {"pairwise_graph": 2.5}


def run_of(name: str, folder: Path) -> Path:
    run = training(CASES[name], folder)
    for _ in run:
        pass
    run.folder.close()
    return folder / "ledger.jsonl"


@pytest.mark.parametrize("name", RUNS.split(", "))
def test_golden_run_ledger_verifies(name: str, tmp_path: Path):
    compare(run_of(name, tmp_path / "run"), LOOSER.get(name, 1.0))


@pytest.mark.parametrize("name", ["allocation", "allocation_add_remove", "allocation_of_clients"])
def test_random_allocation_raises(name: str, tmp_path: Path):
    with pytest.raises(SystemExit, match=r"refused: .*'batches'"):
        verified(run_of(name, tmp_path / "run"))


def gaussian(round_index: int, **others: Any) -> Record:
    fields: dict[str, Any] = {"unit": "sample", "relation": "replace_one", "noise_multiplier": 2.0, **others}
    return Record(round_index, "gradient", 0, "gaussian", **fields)


def test_packed_cohorts_and_noises_verify(tmp_path: Path):
    """Long lists are packed; who took part most often, with the least noise, decides."""
    noises = tuple(1.0 + client % 3 for client in range(100))
    records = [
        gaussian(0, clients=tuple(range(0, 200, 2)), noise_multiplier=noises),
        gaussian(1, clients=tuple(range(100, 200))),
        gaussian(2, clients=(150, 3)),
    ]
    path = ledger_of(tmp_path, records, 200, 1e-5)
    assert b'"levels"' in path.read_bytes() and b'"clients":"' in path.read_bytes()
    compare(path)


@pytest.mark.parametrize(
    ("factor", "separation"),
    [
        (Factor(band=(0.5, 0.3, 0.2)), 4),
        (Factor(band=(0.5, -0.6, 0.2)), 2),
        (Factor(band=(0.4, 0.1)), 1),
        (Factor(scales=(0.2, 0.3), decays=(0.9, 0.5)), 3),
        (Factor(), 5),
    ],
)
def test_correlated_noise_ledger_verifies(factor: Factor, separation: int, tmp_path: Path):
    time = CorrelatedNoise(factor, separation)
    records = [gaussian(t, time=time.for_round(t), noise_multiplier=4.0) for t in range(23)]
    compare(ledger_of(tmp_path, records, 3, 1e-6))


def edited(folder: Path, line: int, **changes: Any) -> Path:
    """A ledger of three answers, whose records and chain fit, but for a field of one line."""
    time = CorrelatedNoise(Factor(band=(0.5,)), 2)
    extra = {"time": time} if "round" in changes else {}
    records = [gaussian(t, **{name: value.for_round(t) for name, value in extra.items()}) for t in range(3)]
    path = ledger_of(folder, records, 3, 1e-5)
    lines = lines_of(path)
    lines[line] |= changes
    rewrite(path, lines)
    return path


@pytest.mark.parametrize(
    ("line", "changes", "reason"),
    [
        (0, {"fedpriv_ledger": 7}, "header"),
        (0, {"window": 3}, "header"),
        (2, {"new_field": 1}, "fields"),
        (2, {"mechanism": "skellam"}, "skellam"),
        (2, {"norm": "l1"}, "clip"),
        (2, {"mechanism": "laplace"}, "clip"),
        (2, {"sampling": "shuffled"}, "shuffled"),
        (2, {"relation": "zero_out"}, "units that differ"),
        (2, {"unit": "client"}, "units that differ"),
        (2, {"index": 0, "attempt": 0, "round": 0}, "twice"),
        (2, {"round": 5}, "gaps"),
        (2, {"noise_multiplier": 0.0}, "noise 0"),
        (2, {"noise_multiplier": -1.0}, "noise -1"),
        (2, {"noise_multiplier": 0.001}, "hardly any noise"),
        (2, {"rate": 1.5}, "rate 1.5"),
        (2, {"clients": [0, 7]}, "do not exist"),
        (2, {"clients": [1, 1]}, "do not exist"),
        (2, {"non_private": "a reason"}, "infinite: a reason"),
        (2, {"pairs": {"ratio": 3.0, "colluders": 0, "secrets": "00"}}, "not on record"),
        (3, {"batches": 3, "sampling": "allocation"}, "fields"),
    ],
)
def test_unknown_ledger_field_raises(line: int, changes: dict[str, Any], reason: str, tmp_path: Path):
    with pytest.raises(SystemExit, match=f"refused: .*{reason}"):
        verified(edited(tmp_path, line, **changes))


def test_fixed_size_batches_add_remove_raises(tmp_path: Path):
    path = ledger_of(tmp_path, [gaussian(0, sampling="without_replacement", rate=0.5)], 1, 1e-5)
    rewrite(path, [line | ({"relation": "add_remove"} if "relation" in line else {}) for line in lines_of(path)])
    with pytest.raises(SystemExit, match="without_replacement batches"):
        verified(path)


@pytest.mark.parametrize("cut", ["flip", "drop", "unlink"])
def test_altered_ledger_line_raises(cut: str, tmp_path: Path):
    path = ledger_of(tmp_path, [gaussian(t) for t in range(3)], 1, 1e-5)
    lines = path.read_bytes().splitlines(keepends=True)
    if cut == "flip":
        lines[2] = lines[2].replace(b"2.0", b"9.0")
    elif cut == "drop":
        del lines[2]
    else:
        lines[2] = json.dumps(json.loads(lines[2]) | {"chain": 1}).encode() + b"\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(SystemExit, match="line 3 does not follow"):
        verified(path)


def test_verifier_command_prints_epsilon(tmp_path: Path):
    path = ledger_of(tmp_path, [gaussian(t) for t in range(3)], 2, 1e-5)
    with path.open("ab") as file:
        file.write(b'{"round": 3')  # a line that a crash cut off
    for delta, words in (("1e-5", []), ("0.001", ["0.001"])):
        epsilon = verifier.epsilon_of({Event("gaussian", 2.0, "full", 1.0): 3}, float(delta))
        command = [sys.executable, "-I", str(SOURCE), str(path), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        expected = f"epsilon <= {epsilon:.5g} (delta={float(delta):g}; sample; replace_one; ; local), 3 answers\n"
        assert done.stdout == expected
    done = subprocess.run([*command[:-1], "1e-12"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "refused: delta" in done.stderr
