"""Four hospitals look at their data at epsilon .2, then train at .8, within one budget of epsilon 1.

    python describe_then_train.py HEART OUT            in one process
    python describe_then_train.py HEART OUT --sites    between four sites and a server, each a process on this machine

HEART is a folder with cleveland.csv, hungarian.csv, switzerland.csv and va.csv (UCI heart disease); OUT a new folder.
"""

import argparse
import csv
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fedpriv
from fedpriv.config import build, load_config
from fedpriv.config.statistics import join_sections, load_statistics

HERE = Path(__file__).parent
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
SITE = """
name: {name}
data: {{name: heart, root: {root}, hospital: {name}, intercept: hospital, centered: true}}
budget: {{epsilon: 1, delta: 1.0e-4}}
policy:
  max_epsilon: 0.8
  statistics: {{columns: [age, thalach, sex], max_epsilon: 0.2, max_bins: 128, max_per_month: 1}}
"""


def read_table(path: Path) -> dict[str, list[str]]:
    """Read the columns of a file; empty text is a missing value."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [row[name] for row in rows] for name in rows[0]}


def in_one_process(source: Path, out: Path) -> None:
    """Describe and train with all files in one process."""
    budget = out / "budget.jsonl"
    # this accountant's bound also holds if what is seen decides how to train
    fedpriv.Budget.create(budget, epsilon=1, delta=1e-4, data="heart patients", accountant="gaussian")
    look = load_statistics(HERE / "look.yaml", [])
    trust = fedpriv.Pairwise(colluders=1, ratio=100)
    privacy = fedpriv.Privacy(epsilon=look.privacy.epsilon, delta=1e-4, trust=trust, budget=budget)
    tables = [read_table(source / f"{name}.csv") for name in HOSPITALS]
    print(fedpriv.describe(tables, join_sections(look.statistics).statistics, privacy, folder=out / "look"))
    print(f"\nleft: a run of up to epsilon={fedpriv.Budget(budget).balance().left:.3f}; this one takes .8")
    config = load_config(HERE / "train.yaml", [f"data.root={source}", f"privacy.budget={budget}"])
    training = build(config, out / "train")
    for _ in training:
        pass
    print(training.result())
    command("statement", out / "look", out / "train", "--out", out / "statement.md")


def between_sites(source: Path, out: Path) -> None:
    """Describe and train between four sites that each have their own file, and a server without patients' rows."""
    for name in HOSPITALS:
        (out / f"{name}-data").mkdir()
        shutil.copy(source / f"{name}.csv", out / f"{name}-data")
        (out / f"{name}.yaml").write_text(SITE.format(name=name, root=out / f"{name}-data"))
        command("site", "init", out / name, out / f"{name}.yaml")

    accept_plan(out, "look")
    with sites(out, HOSPITALS[:3]):  # the fourth is late: there are no answers yet, and nobody pays twice
        command("federate", "run", out / "look", "--wait", "5", "--grace", "1")
    with sites(out, HOSPITALS):
        command("federate", "run", out / "look")

    # the third of the patients that is for testing is treated as public: the server has it
    accept_plan(out, "train", f"data.root={source}")
    with sites(out, HOSPITALS) as running:
        server = start(out, "server", "federate", "run", out / "train", "--interval", ".2")
        wait_for_rounds(out / "train", 10)
        running["va"].kill()
        server.kill()
        print("--- in round 10 Long Beach and the server were killed; both are started again and go on")
        running["va"] = start(out, "va", "site", "run", out / "va")
        command("federate", "run", out / "train")
    for name in HOSPITALS:
        command("statement", out / name, "--out", out / f"{name}.statement.md")


def accept_plan(out: Path, kind: str, *settings: str) -> None:
    """Write a plan, which the owners of all sites accept; on several machines they compare its fingerprint first."""
    cards = [out / name / "card.json" for name in HOSPITALS]
    command("federate", "plan", HERE / f"{kind}.yaml", *cards, *settings, "--out", out / kind)
    from fedpriv.sites import FederationPlan

    plan = FederationPlan.read((out / kind / "plan.yaml").read_text())
    for name in HOSPITALS:
        command("site", "join", out / name, out / kind / "plan.yaml", "--accept", plan.fingerprint)


@contextmanager
def sites(out: Path, names: tuple[str, ...]) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Run the sites in processes of their own, until the block ends."""
    running = {name: start(out, name, "site", "run", out / name) for name in names}
    try:
        for name in names:
            while "not encrypted" not in (out / f"{name}.log").read_text():  # the last line before it connects
                time.sleep(0.1)
        yield running
    finally:
        for process in running.values():
            process.terminate()
            process.wait()


def command(*words: object) -> None:
    """Run a command of fedpriv."""
    print("\n$ fedpriv", *words, flush=True)
    subprocess.run([sys.executable, "-m", "fedpriv", *map(str, words)], check=True)


def start(out: Path, name: str, *words: object) -> subprocess.Popen[bytes]:
    """Start a command of fedpriv; its output goes to a file."""
    with (out / f"{name}.log").open("wb") as log:
        return subprocess.Popen([sys.executable, "-m", "fedpriv", *map(str, words)], stdout=log, stderr=log)


def wait_for_rounds(folder: Path, count: int) -> None:
    """Wait until the server has finished some rounds."""
    rounds = folder / "rounds.jsonl"
    while not rounds.exists() or len(rounds.read_bytes().splitlines()) < count:
        time.sleep(0.05)


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("heart", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sites", action="store_true")
    arguments = parser.parse_args()
    out = arguments.out.absolute()
    out.mkdir(parents=True)
    if arguments.sites:
        between_sites(arguments.heart.absolute(), out)
        result = json.loads((out / "train" / "result.json").read_text())
        print(f"\ntest accuracy {result['metrics']['test_accuracy']:.3f} after {result['rounds']} rounds")
    else:
        in_one_process(arguments.heart.absolute(), out)


if __name__ == "__main__":
    main()
