"""Five hospitals with heart patients, or with scikit-learn's tumours, on a graph without a server."""

from __future__ import annotations

import csv
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from signed import LOOPBACK, Authority

from fedpriv.clients.public_info import PublicDataInfo
from fedpriv.config import load_config
from fedpriv.config.building import load_data
from fedpriv.sites import FederationPlan, Site, propose

NAMES = ("cleveland", "cleveland_clinic", "budapest", "zurich", "long_beach")
FILES = ("cleveland", "cleveland", "hungarian", "switzerland", "va")
NUMBERS = {"age": [20, 80], "trestbps": [80, 200], "chol": [100, 600], "thalach": [60, 210], "oldpeak": [-3, 7]}
CATEGORIES = {"sex": [0, 1], "cp": [1, 2, 3, 4], "fbs": [0, 1], "restecg": [0, 1, 2], "exang": [0, 1]}
MISSING = {"trestbps": 130, "chol": 240, "fbs": 0, "restecg": 0, "thalach": 140, "exang": 0, "oldpeak": 0}
COLUMNS = (*NUMBERS, *CATEGORIES)
# a ring, and one link across it
PAIRS = [[0, 1], [1, 2], [2, 3], [3, 4], [0, 4], [1, 3]]
SETTINGS = f"""
model: logistic_regression
loss: logistic
strategy: {{name: gradient_tracking, step_size: 1.0, gradient_at: mixed}}
privacy: {{epsilon: 4, delta: 1.0e-4}}
network: {{topology: {{name: links, pairs: {PAIRS}}}}}
rounds: 20
"""
TUMOURS = "{name: breast_cancer, variant: diagnostic, partition: {kind: iid, n_clients: 5}}"


def heart() -> Path | None:
    """Where the files of four real hospitals are, if they are here."""
    folder = Path(os.environ.get("FEDPRIV_DATA", "")) / "heart"
    return folder if "FEDPRIV_DATA" in os.environ and folder.exists() else None


def write_hospitals(source: Path, folder: Path) -> None:
    """A file for each hospital, and the public one: a third of the patients of each. Cleveland's are two hospitals."""
    folder.mkdir()
    shuffled = random.Random(43)
    public: list[Mapping[str, Any]] = []
    for number, (name, file) in enumerate(zip(NAMES, FILES, strict=True)):
        with (source / f"{file}.csv").open() as opened:
            rows = [
                {**{column: row[column] for column in COLUMNS}, "ill": int(row["num"] != "0")}
                for row in csv.DictReader(opened)
            ]
        random.Random(1).shuffle(rows)
        if file == "cleveland":
            rows = rows[number::2]
        shuffled.shuffle(rows)
        public += rows[: len(rows) // 3]
        write(folder / f"{name}.csv", rows[len(rows) // 3 :])
    write(folder / "public" / "public.csv", public)


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, [*COLUMNS, "ill"])
        writer.writeheader()
        writer.writerows(rows)


def data_of(train: Path, public: Path) -> dict[str, Any]:
    """A data section for files of patients."""
    return {
        "name": "csv",
        "train": str(train),
        "test": str(public),
        "label": "ill",
        "classes": [0, 1],
        "numbers": NUMBERS,
        "categories": CATEGORIES,
        "missing": MISSING,
    }


@dataclass(frozen=True)
class Hearts:
    """Sites that have accepted a plan on a graph."""

    folder: Path
    plan: FederationPlan

    def run_folder(self, name: str) -> Path:
        return self.folder / name / "runs" / self.plan.hash


def hearts(folder: Path, authority: Authority | None) -> Hearts:
    """Make all sites, with certificates of an authority if there is one."""
    source = heart()
    settings = yaml.safe_load(SETTINGS)
    if source is None:
        settings["data"] = yaml.safe_load(TUMOURS)
    else:
        write_hospitals(source, folder / "data")
        settings["data"] = data_of(folder / "data" / "*.csv", folder / "data" / "public" / "public.csv")
        settings["data"]["partition"] = {"kind": "by_writer", "n_clients": 5}
    (folder / "run.yaml").write_text(yaml.safe_dump(settings))
    config = load_config(folder / "run.yaml")
    cards = []
    for number, name in enumerate(NAMES):
        data = settings["data"]
        if source is not None:
            data = data_of(folder / "data" / f"{name}.csv", folder / "data" / "public" / "public.csv")
        site_settings = {"name": name, "data": data, "budget": {"epsilon": 10, "delta": 1e-4}}
        if source is None:
            site_settings["client"] = number
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(site_settings))
        site = Site.create(folder / name, folder / f"{name}.yaml")
        if authority is not None:
            site.set_certificate(authority.keys(folder / name / "tls", name, LOOPBACK))
        cards.append(site.card)
        site.close()
    split = load_data(config)
    plan = propose(config, cards, PublicDataInfo.of([split.test], split.n_classes))
    for name in NAMES:
        site = Site(folder / name)
        site.join(plan.text, plan.fingerprint)
        site.close()
    return Hearts(folder, plan)
