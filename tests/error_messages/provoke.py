"""Provokes the errors in messages.txt and writes the file again.

    python tests/error_messages/provoke.py

messages.txt has one entry per error: a line of Python (`>>> `) or a command (`$ `), and the text that it prints. To add
an entry, write its first line and run this script. `test_error_messages.py` compares the file with the current texts.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset
from typer.testing import CliRunner

import fedpriv

MESSAGES = Path(__file__).with_name("messages.txt")

RUN = """\
data: {name: digits, partition: {kind: iid, n_clients: 5}}
model: softmax
strategy: {name: iadmm_prox, rho: {scale: 1.0}}
privacy: {epsilon: 3, delta: 1e-5}
rounds: 4
seed: 0
log: {tensorboard: false}
"""
TABLE = """\
data:
  name: csv
  train: patients.csv
  test: public.csv
  label: outcome
  classes: ["no", "yes"]
  numbers: {age: [0, 120]}
  categories: {sex: [f, m]}
  partition: {kind: iid, n_clients: 2}
model: softmax
strategy: {name: fedavg, learning_rate: 0.1}
privacy: {epsilon: 1}
rounds: 2
log: {test: false, tensorboard: false}
"""
PATIENTS = "age,sex,outcome\n51,f,no\n64,m,yes\n37,m,no\n45,f,yes\n"
FEDERATION = """\
data: {name: digits, flat: true, partition: {kind: iid, n_clients: 2}}
model: softmax
strategy: {name: fedavg, learning_rate: 2.0}
privacy: {epsilon: 3, trust: {pairwise: {colluders: 0, ratio: 3.0}}}
rounds: 4
"""
SITE = """\
name: {name}
client: {number}
data: {{name: digits, flat: true, partition: {{kind: iid, n_clients: 2}}}}
budget: {{epsilon: 2}}
"""


def messages() -> str:
    """Returns the file with the texts that the present code prints."""
    lines: list[str] = []
    with _prepared() as names:
        for line in MESSAGES.read_text(encoding="utf-8").splitlines():
            if line.startswith("    "):
                continue
            lines.append(line)
            text = None
            if line.startswith(">>> "):
                text = _text_of_code(line.removeprefix(">>> "), names)
            elif line.startswith("$ "):
                text = _text_of_command(line.removeprefix("$ "))
            if text is not None:
                lines += [f"    {part}" for part in text.split("\n")]
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def _prepared() -> Iterator[dict[str, Any]]:
    """A folder with small files and finished runs, which is the current folder meanwhile, and names for the code."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        data_root = os.environ.pop("FEDPRIV_DATA", None)
        try:
            _write_files()
            yield _names()
        finally:
            os.chdir(before)
            if data_root is not None:
                os.environ["FEDPRIV_DATA"] = data_root


def _write_files() -> None:
    Path("run.yaml").write_text(RUN)
    Path("table.yaml").write_text(TABLE)
    Path("federation.yaml").write_text(FEDERATION)
    Path("patients.csv").write_text(PATIENTS)
    Path("typo.csv").write_text(PATIENTS.replace("64,m,yes", "64,male,yes"))
    Path("gap.csv").write_text(PATIENTS.replace("37,m,no", ",m,no"))
    Path("public.csv").write_text(PATIENTS.replace("51", "52").replace("64", "66"))
    Path("client.csv").write_text("age,sex,outcome\n")
    Path("empty").mkdir()
    commands = [
        "train run.yaml --out runs/done",
        "train run.yaml --out runs/edited",
        "train run.yaml --out runs/cut",
        "budget clinic.jsonl --epsilon 2 --delta 1e-5",
        "train run.yaml privacy.epsilon=1 privacy.budget=clinic.jsonl --out runs/one",
        "budget clients.jsonl --epsilon 5 --delta 1e-5 --unit client",
        "budget damaged.jsonl --epsilon 5 --delta 1e-5",
        "site init north north.yaml",
        "site init south south.yaml",
        "federate plan federation.yaml north/card.json south/card.json --out fed",
    ]
    for number, name in enumerate(("north", "south")):
        Path(f"{name}.yaml").write_text(SITE.format(name=name, number=number))
    for command in commands:
        done = _invoke(command)
        assert done.exit_code == 0, f"{command}: {done.output}"
    Path("runs/edited/result.json").unlink()
    config = Path("runs/edited/config.yaml")
    config.write_text(config.read_text().replace("epsilon: 3", "epsilon: 30"))
    ledger = Path("runs/cut/ledger.jsonl")
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:-2]))
    Path("runs/cut/result.json").unlink()
    budget = Path("damaged.jsonl")
    budget.write_text(budget.read_text().replace('"epsilon":5', '"epsilon":50'))


def _names() -> dict[str, Any]:
    """What the lines of Python may use: small data, clients and an untrained model."""
    torch.manual_seed(0)
    inputs, targets = torch.rand(40, 4), torch.arange(40) % 3
    dataset = TensorDataset(inputs, targets)
    halves = [Subset(dataset, range(0, 20)), Subset(dataset, range(20, 40))]
    loss = nn.CrossEntropyLoss()
    strategy = fedpriv.fedavg(learning_rate=0.1)
    privacy = fedpriv.Privacy(epsilon=3.0, delta=1e-5)

    def clients(model: nn.Module | None = None) -> list[fedpriv.Client]:
        return fedpriv.make_clients(model or nn.Linear(4, 3), loss, halves)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one round is short
        result = fedpriv.train(clients(), strategy, privacy, rounds=1)
    norm = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    return {
        "fedpriv": fedpriv,
        "nn": nn,
        "torch": torch,
        "DataLoader": DataLoader,
        "TensorDataset": TensorDataset,
        "X": inputs.numpy(),
        "y": (targets % 2).numpy(),
        "dataset": dataset,
        "loss": loss,
        "model": nn.Linear(4, 3),
        "loader": DataLoader(dataset, batch_size=10),
        "with_batch_norm": norm,
        "clients": clients,
        "strategy": strategy,
        "privacy": privacy,
        "train": partial(fedpriv.train, rounds=2),
        "result": result,
    }


def _text_of_code(code: str, names: dict[str, Any]) -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            eval(code, names)
        except Exception as error:
            return _stable(f"{type(error).__name__}: {error}")
    texts = [f"{warning.category.__name__}: {warning.message}" for warning in caught]
    assert texts, f"raises and warns nothing: {code}"
    return _stable("\n".join(texts))


def _text_of_command(command: str) -> str:
    shutil.rmtree("out", ignore_errors=True)
    done = _invoke(command.removeprefix("fedpriv "))
    lines = [line for line in done.output.splitlines() if line.startswith(("error:", "warning:", "Error:", "note:"))]
    assert lines, f"prints no error: {command}: {done.output}"
    return _stable("\n".join(lines))


def _invoke(command: str) -> Any:
    from fedpriv.cli import app

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return CliRunner(env={"COLUMNS": "1000"}).invoke(app, shlex.split(command))


def _stable(text: str) -> str:
    """Replaces what differs between machines and starts: absolute paths, hashes and addresses of objects."""
    text = text.replace(str(Path.cwd().resolve()), "FOLDER").replace(str(Path.cwd()), "FOLDER")
    return re.sub(r"0x[0-9a-f]{6,}", "0x...", text)


if __name__ == "__main__":
    renewed = messages()
    MESSAGES.write_text(renewed, encoding="utf-8")
    print(
        f"wrote {MESSAGES}: {sum(line.startswith(('>>> ', '$ ')) for line in renewed.splitlines())} errors",
        file=sys.stderr,
    )
