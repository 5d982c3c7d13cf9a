"""Pages of a run, of simulated secure aggregation and of searches answer an officer's ten questions with figures."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import yaml
from commands import error_line, fedpriv
from officer import check_answers, epsilon_by_verifier

from fedpriv.privacy.accounting import gaussian
from fedpriv.privacy.accounting.spent import round_up
from fedpriv.reports.run_statement import SECRET
from fedpriv.runs.results import get_software_versions

DELTA = 1e-5
SECURE = [
    "strategy={name: fedavg, learning_rate: 0.5}",
    "privacy={epsilon: 3, trust: {secure_aggregation: {min_honest: 8}}}",
]
CENTRAL = ["strategy={name: fedavg, learning_rate: 0.5}", "privacy={epsilon: 1, trust: {central: {}}}"]
QUIET = ["compute.threads=1", "log.tensorboard=false"]
SURE = (
    "someone who considered two of its values equally likely can become at most {} % certain of one, "
    "except in an event of "
)
ODDS = "probability about 1 in 100 000"


def done(*words: str) -> str:
    found = fedpriv(*words)
    assert found.exit_code == 0, found.stderr
    return found.stdout


def gaussians(count: int, one: float = 3.0) -> str:
    """Epsilon of so many runs without sampling together."""
    return round_up(gaussian.compute_epsilon(count**0.5 * gaussian.compute_ratio(one, DELTA), DELTA))


def priced(*words: str) -> dict[tuple[str, str], float]:
    """What `fedpriv account` says, by adversary and unit."""
    found = json.loads(done("account", *words, "--json"))
    return {(cell["adversary"], cell["unit"]): float(cell["epsilon"]) for cell in found["matrix"]}


def test_statement_of_demo_run(tmp_path: Path):
    budget, run = tmp_path / "lifetime.budget", tmp_path / "demo"
    done("budget", str(budget), "--epsilon", "5")
    done("train", "digits_iadmm", "--out", str(run), *QUIET, f"privacy.budget={budget}")
    result, cells = json.loads((run / "result.json").read_text()), priced(str(run))
    ten = round_up(cells["anyone who sees messages", "group of 10 samples"])
    check_answers(
        done("statement", str(run)),
        {
            1: [
                "| data | digits |",
                "10 data holders with 143 to 144 records each, 1437 in all",
                "the algorithm iadmm_prox, 20 rounds",
            ],
            2: ["one record (a row, an image) of one data holder", "epsilon of one data holder"],
            3: [
                f"at most epsilon={round_up(result['epsilon'])} (delta=1e-5)",
                SURE.format(95.3) + ODDS,
                "at most 96 % at 3",
            ],
            4: [
                "| anyone who sees messages | all that travels between data holders and server | 3 [a]",
                "| 1 colluding data holder | their combined information | 3 [c]",
                "any number of others may collude",
            ],
            5: ["epsilon of 10 records of one person", f"| {ten} [a] |"],
            6: [
                f"20 x gradient, gaussian noise of {result['noise_multiplier']:.3g} times what one record can change",
                "| anyone who sees only the final model |",
            ],
            7: [
                "No party is trusted",
                "All data holders were SIMULATED by one operator",
                "settings were not chosen by trying them",
            ],
            8: ["the number of data holders, how many records each has", SECRET],
            9: [
                f"| with one more like the last | epsilon={gaussians(2)} at delta=1e-5 |",
                f"epsilon=3 of 5 at delta=1e-5 is spent so far, by 1 run or search; kept in {budget}",
            ],
            10: [
                f"20 records in a chain, head {result['head']}",
                f"fedpriv show {run} must print the same head",
                f"| runs made by | {result['software']} |",
            ],
        },
    )
    assert (
        result["software"] == get_software_versions()
        and "fedpriv " in get_software_versions()
        and "PyTorch " in get_software_versions()
    )
    assert result["head"] in done("show", str(run))
    budget.unlink()
    assert f"{budget}, which cannot be read" in done("statement", str(run))


def test_statement_of_simulated_secure_aggregation(tmp_path: Path):
    run = tmp_path / "secure"
    done("train", "digits_iadmm", "--out", str(run), *QUIET, *SECURE, "rounds=3")
    cells = priced(str(run), "--colluders", "3")
    three = {unit: round_up(cells["3 colluding clients", unit]) for unit in ("sample", "group of 10 samples")}
    check_answers(
        done("statement", str(run), "--colluders", "3"),
        {
            1: ["| data | digits |", "1437 in all", "the algorithm fedavg, 3 rounds"],
            2: ["one record (a row, an image) of one data holder", "epsilon of one data holder"],
            3: ["All that was released, sums alone, reveals at most epsilon=3 (delta=1e-5)", SURE.format(95.3) + ODDS],
            4: [
                f"| 3 colluding data holders | their combined information | {three['sample']} [c]",
                "all participants but 3 add their share of the noise",
            ],
            5: ["epsilon of 10 records of one person", f"| {three['group of 10 samples']} [c] |"],
            6: ["3 x gradient, gaussian noise of", "| the server | what the server receives | 3 [a]"],
            7: [
                "Only sums over participants are visible to anyone. The protocol for that was SIMULATED.",
                "8 participants of each round add their share of the noise; the protocol was SIMULATED",
            ],
            8: ["the number of data holders", SECRET],
            9: [
                f"| with one more like the last | epsilon={gaussians(2)} at delta=1e-5 |",
                "| lifetime budget | none was set |",
            ],
            10: ["3 records in a chain, head ", f"| runs made by | {get_software_versions()} |"],
        },
    )


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three trials of epsilon 1, which learn from each other, in a lifetime budget."""
    folder = tmp_path_factory.mktemp("search")
    (folder / "space.yaml").write_text(
        yaml.safe_dump({"strategy.rho.scale": {"low": 0.01, "high": 0.1}, "privacy.clip.bound": [0.3, 0.6]})
    )
    done("budget", str(folder / "budget"), "--epsilon", "5")
    more = ["privacy.epsilon=1", "rounds=3", f"privacy.budget={folder / 'budget'}", *QUIET]
    done(
        "tune",
        "digits_iadmm",
        str(folder / "space.yaml"),
        *more,
        "--trials",
        "3",
        "--epsilon",
        "2",
        "--out",
        str(folder / "out"),
    )
    return folder


def test_statement_of_search(search: Path):
    folder = search / "out"
    trials = [str(path) for path in sorted((folder / "trials").glob("0*"))]
    ledgers = hashlib.sha256(b"".join((Path(trial) / "ledger.jsonl").read_bytes() for trial in trials)).hexdigest()
    listed_trials = json.loads((folder / "trials" / "trials.json").read_text())["trials"]
    best = max(listed_trials, key=lambda one: one["score"])
    ten = round_up(priced(*trials)["anyone who sees messages", "group of 10 samples"])
    page = done("statement", str(folder))
    assert epsilon_by_verifier(page) == pytest.approx(1.0, rel=0.01)  # of one trial
    check_answers(
        page,
        {
            1: [
                "| data | digits |",
                "1437 in all",
                "a search for good settings of training a model",
                "with the algorithm iadmm_prox, 3 rounds per trial",
                "privacy.clip.bound (one of 0.3, 0.6), strategy.rho.scale (0.01 to 0.1)",
            ],
            2: ["one record (a row, an image) of one data holder", "epsilon of one data holder"],
            3: [
                f"released, all trials together, reveals at most epsilon={gaussians(3, 1)} (delta=1e-5)",
                ODDS,
            ],
            4: [
                "| anyone who sees messages | all that travels between data holders and server | "
                f"{gaussians(3, 1)} [a]",
                "any number of others may collude",
            ],
            5: ["epsilon of 10 records of one person", f"| {ten} [a] |"],
            6: [
                "| number of trials | 3, fixed in advance, and visible; 3 of 3 have ended |",
                "9 x gradient, gaussian noise of",
                "charged as if every party received all results",
                f"| best | trial {best['number']}: ",
                f"test_accuracy {best['score']:.4g}",
            ],
            7: [
                "All data holders were SIMULATED",
                "the number of trials and their noise are fixed in advance",
                "nothing else was chosen by trying it",
            ],
            8: ["every number computed on them", "checkpoint.pt of each trial may contain state"],
            9: [
                f"| with one more trial like the last | epsilon={gaussians(4, 1)} at delta=1e-5 |",
                f"| with the whole search again | epsilon={gaussians(6, 1)} at delta=1e-5 |",
                "| limit of the search | epsilon=2 |",
                f"epsilon={gaussians(3, 1)} of 5 at delta=1e-5 is spent so far, by 1 run or search",
            ],
            10: [
                f"9 records in 3 chains; SHA-256 of all in order {ledgers}",
                hashlib.sha256((folder / "search.json").read_bytes()).hexdigest(),
                f"| runs made by | {get_software_versions()} |",
            ],
        },
    )


def test_statement_unfinished_search_charges_all_trials(search: Path, tmp_path: Path):
    shutil.copytree(search / "out", tmp_path / "half")
    place = tmp_path / "half" / "trials" / "trials.json"
    output = json.loads(place.read_text())
    for number, trial in enumerate(output["trials"]):
        trial |= {} if number == 0 else {"finished": False, "score": None}
    place.write_text(json.dumps(output | {"trials": output["trials"][:2]}))
    assert "contains 0002, which trials.json does not name" in error_line("statement", str(tmp_path / "half"))
    shutil.rmtree(tmp_path / "half" / "trials" / "0002")
    page = done("statement", str(tmp_path / "half"))
    assert "The search is not finished: 1 of 3 have ended, and all are charged." in page
    assert f"reveals at most epsilon={gaussians(3, 1)} (delta=1e-5)" in page and "3 x gradient" in page
    # what the shell computes: of the trial that was begun too
    every = sorted((tmp_path / "half" / "trials").glob("*/ledger.jsonl"))
    assert len(every) == 2 and hashlib.sha256(b"".join(path.read_bytes() for path in every)).hexdigest() in page


def test_statement_altered_trial_raises(search: Path, tmp_path: Path):
    shutil.copytree(search / "out", tmp_path / "altered")
    ledger = tmp_path / "altered" / "trials" / "0001" / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace('"rate":1', '"rate":0.5', 1))
    assert "altered" in error_line("statement", str(tmp_path / "altered"))
    assert "is a search, which has its own privacy statement" in error_line(
        "statement", str(search / "out"), str(search / "out" / "trials" / "0000")
    )
    (tmp_path / "altered" / "search.json").write_text("{")
    assert "is not the plan of a search, or is damaged" in error_line("statement", str(tmp_path / "altered"))


def test_statement_of_search_with_secret_trials(tmp_path: Path):
    (tmp_path / "space.yaml").write_text("strategy.learning_rate: {low: 0.1, high: 1.0}")
    folder, words = (
        tmp_path / "out",
        ["tune", "digits_iadmm", str(tmp_path / "space.yaml"), *CENTRAL, "rounds=2", *QUIET],
    )
    words += ["--sampler", "random", "--trials", "3", "--secret-trials", "geometric", "--json"]
    found = json.loads(done(*words, "--out", str(folder)))
    price, one = round_up(found["epsilon"]), found["one_trial"]
    page = done("statement", str(folder), "--group", "1")
    check_answers(
        page,
        {
            1: [
                "| data | digits |",
                "1437 in all",
                "a search for good settings of training",
                "strategy.learning_rate (0.1 to 1)",
            ],
            2: ["one record (a row, an image) of one data holder", "epsilon of one data holder"],
            3: [
                f"one model with its settings and score, reveals at most epsilon={price} (delta=1e-5)",
                ODDS,
            ],
            4: [
                f"the published model, its settings, its score | {price} [a]",
                "| the server | what data holders send | no bound",
                "such as colluding data holders | more than that | no bound",
            ],
            5: ["epsilon of 1 record of one person", f"| {price} [a] |"],
            6: [
                "| number of trials | secret: a geometric draw, 3 on average |",
                "one model, its settings, and its score, test_accuracy on public test data",
                "not published: the duration of the search would reveal the number of trials",
            ],
            7: [
                "One server is trusted",
                "All data holders were SIMULATED",
                "only the best trial's model and settings are published",
            ],
            8: ["These must stay hidden, and software cannot hide them: how long the search took"],
            9: [
                f"| one trial alone | epsilon={round_up(one)} ",
                f"| with one more trial, as a run | epsilon={round_up(found['epsilon'] + one)} at delta=2e-5 |",
                f"| with the whole search again | epsilon={round_up(2 * found['epsilon'])} at delta=2e-5 |",
            ],
            10: [
                hashlib.sha256((folder / "best" / "model.pt").read_bytes()).hexdigest(),
                "the privacy cost is that of the plan",
                "| compute without fedpriv | not possible: it needs the ledgers",
                f"| trials made by | {get_software_versions()} |",
            ],
        },
    )
    (folder / "best" / "best.json").unlink()
    assert "is not finished, so none of it may be published" in error_line("statement", str(folder))
