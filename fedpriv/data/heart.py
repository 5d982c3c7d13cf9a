"""Heart disease in four hospitals: a real federation, with missing values filled by public rules."""

from __future__ import annotations

import csv as reader
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import TensorDataset

from fedpriv.data.base import Split
from fedpriv.data.owners import encode_names
from fedpriv.data.table_encoder import Table, TableEncoder, check_columns
from fedpriv.errors import DataError
from fedpriv.settings import validate_arguments

HospitalName = Literal["cleveland", "hungarian", "switzerland", "va"]
HOSPITALS: tuple[HospitalName, ...] = ("cleveland", "hungarian", "switzerland", "va")
_COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"),
    *("slope", "ca", "thal", "num"),
)
_USED = _COLUMNS[:10]  # FLamby omits the next three, which three hospitals hardly record
_NEVER_ZERO = ("trestbps", "chol")  # 0 is impossible: a hospital wrote it for a missing measurement
# None of these numbers is taken from the files. The middle of each range is the normal value of textbooks, which also
# replaces missing values; the ends are clearly abnormal values: pressures of 120 and 160 mm Hg, cholesterol of 200 and
# 300 mg/dl, a highest heart rate of 220 - 55 years, no depression of the ST segment and one of 2 mm.
_NUMBERS: dict[str, tuple[float, float]] = {
    "age": (20, 80),
    "trestbps": (80, 160),
    "chol": (100, 300),
    "thalach": (110, 220),
    "oldpeak": (-2, 2),
}
_CATEGORIES = {"sex": [0, 1], "cp": [1, 2, 3, 4], "fbs": [0, 1], "restecg": [0, 1, 2], "exang": [0, 1]}
_MISSING = {"trestbps": 120, "chol": 200, "thalach": 165, "oldpeak": 0, "fbs": 0, "restecg": 0, "exang": 0}
_HOSPITAL_FLAG = 0.5  # as large as a centred flag of two values
_TEST_SHARE = 0.34
_SPLIT_SEED = 43  # FLamby's


@validate_arguments("data")
def heart(
    *,
    root: str | None = None,
    train_rows: Literal["all", "complete"] = "all",
    test_rows: Literal["all", "complete"] = "complete",
    indicators: Sequence[str] = (),
    intercept: Literal["common", "hospital", "none"] = "common",
    centered: bool = False,
    hospital: HospitalName | None = None,
) -> Split:
    """Loads data on heart disease of 920 patients from Cleveland, Budapest, Zurich and Basel, and Long Beach.

    Patients of class 1 are ill.

    Ten columns are encoded as 18 features: numbers are scaled by public ranges, categories are one-hot. A missing value
    is replaced with a public constant within its range, so that all patients are kept; a blood pressure or cholesterol
    of 0 also counts as missing. With `partition: {kind: by_writer}` each hospital is a client, and the hospital of each
    test patient is known.

    A third of each hospital's patients is for testing, by a fixed seed and with the same share of ill patients. The
    division therefore depends on the labels of all patients; it is treated as fixed, as is usual if data are divided
    once for comparisons.

    Args:
        root: Folder with a file a hospital: `cleveland.csv`, `hungarian.csv`, `switzerland.csv` and `va.csv` with a
            heading, or UCI's `processed.cleveland.data` and so on. None is `$FEDPRIV_DATA/heart`.
        train_rows: Train on `all` patients that are not for testing, or only on those without a missing value.
        test_rows: Patients that are divided into training and testing: the `complete` ones, which are the 740 patients
            and the division of FLamby, or `all`.
        indicators: Columns with an additional feature, which is 1 if the value is missing.
        intercept: Add one constant that is `common` to all hospitals; or for each `hospital` a feature of 0.5, because
            hospitals differ in their share of ill patients and each client belongs to one hospital.
        centered: Make the 0/1 features of each categorical column add up to 0, which needs less noise; see
            `TableEncoder`.
        hospital: Read the file of this hospital only, which is then the only client: for a separate site.

    Raises:
        ConfigError: If an indicator's column does not exist.
        DataError: If a file is missing or broken; the message names it.

    Source: Janosi, Steinbrunn, Pfisterer and Detrano (1988), UCI; Ogier du Terrail and others (2022), FLamby, for
    columns, target and division.
    """
    hospitals = HOSPITALS
    if hospital is not None:
        hospitals = (hospital,)
    folder = _folder(root, hospitals)
    # FLamby's target: any number above 0 is a disease
    encoder = TableEncoder("num", [0, 1], _NUMBERS, _CATEGORIES, _MISSING, indicators, intercept == "common", centered)
    datasets: dict[str, list[TensorDataset]] = {"train": [], "test": []}
    owners: dict[str, list[str]] = {"train": [], "test": []}
    for place in hospitals:
        columns = _read(folder, place)
        is_train, is_test = _division(columns, train_rows, test_rows)
        for name in _NEVER_ZERO:
            columns[name] = ["" if text == "0" else text for text in columns[name]]
        x, y = encoder.encoded(Table(place, columns, first=1)).tensors
        if intercept == "hospital":
            flags = torch.zeros(len(x), len(HOSPITALS))
            flags[:, HOSPITALS.index(place)] = _HOSPITAL_FLAG
            x = torch.cat([x, flags], 1)
        for name, chosen in (("train", is_train), ("test", is_test)):
            datasets[name].append(TensorDataset(x[chosen], y[chosen]))
            owners[name] += [place] * len(datasets[name][-1])

    def joined(name: str) -> TensorDataset:
        tensors = [dataset.tensors for dataset in datasets[name]]
        return TensorDataset(torch.cat([x for x, _ in tensors]), torch.cat([y for _, y in tensors]))

    train = joined("train")
    test = joined("test")
    (writers, test_writers), names = encode_names(owners["train"], owners["test"])
    whose = hospital or "four hospitals"
    description = f"heart disease: {len(train)} train and {len(test)} test patients of {whose}, 2 classes"
    return Split(train, test, 2, writers, description, test_writers=test_writers, writer_names=names)


def columns(names: Sequence[str], options: Mapping[str, Any]) -> Mapping[str, Sequence[str]]:
    """Returns columns of the train patients; see `read_columns` of the registry.

    The column `num` is 0 or 1. A blood pressure or cholesterol of 0 is missing, as in the examples.
    """
    check_columns("heart", names, _COLUMNS)
    hospitals = HOSPITALS
    if options.get("hospital") is not None:
        hospitals = (options["hospital"],)
    folder = _folder(options.get("root"), hospitals)
    texts: dict[str, list[str]] = {name: [] for name in names}
    for place in hospitals:
        table = _read(folder, place)
        is_train, _ = _division(table, options.get("train_rows", "all"), options.get("test_rows", "complete"))
        for name in names:
            is_missing = {"0"} if name in _NEVER_ZERO else set[str]()
            chosen = (text for text, is_chosen in zip(table[name], is_train, strict=True) if is_chosen)
            texts[name] += ["" if text in is_missing else text for text in chosen]
    return texts


def _folder(root: str | None, hospitals: Sequence[str]) -> Path:
    shared = os.environ.get("FEDPRIV_DATA")
    files = ", ".join(f"{name}.csv" for name in hospitals)
    fix = f"set root to a folder with {files}, or with UCI's processed.*.data"
    if root is None and shared is None:
        raise DataError(f"heart: no root given and FEDPRIV_DATA is unset: {fix}")
    folder = Path(root or Path(shared or "") / "heart")
    if not folder.is_dir():
        raise DataError(f"heart: folder {folder} does not exist: {fix}")
    for hospital in hospitals:
        if not any(path.is_file() for path in _paths(folder, hospital)):
            raise DataError(f"heart: {folder} has no file of {hospital}: {fix}")
    return folder


def _paths(folder: Path, hospital: str) -> tuple[Path, Path]:
    return folder / f"{hospital}.csv", folder / f"processed.{hospital}.data"


def _read(folder: Path, hospital: str) -> dict[str, list[str]]:
    """Reads a hospital's columns as text, empty where a value is missing, and the target as 0 or 1."""
    path = next(path for path in _paths(folder, hospital) if path.is_file())
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = [[value.strip() for value in row] for row in reader.reader(file) if row]
    except (OSError, UnicodeDecodeError, reader.Error) as error:
        raise DataError(f"{path} cannot be read ({error}): fetch it again") from error
    has_heading = path.suffix == ".csv"
    if has_heading:
        heading = rows[:1]
        if heading != [[*_COLUMNS]]:
            raise DataError(f"{path}: its heading must be {','.join(_COLUMNS)}: correct it")
        rows = rows[1:]
    columns: dict[str, list[str]] = {name: [] for name in _COLUMNS}
    for number, row in enumerate(rows, start=1 + has_heading):
        if len(row) != len(_COLUMNS):
            raise DataError(f"{path}, line {number} has {len(row)} values instead of {len(_COLUMNS)}: fetch it again")
        for name, text in zip(_COLUMNS, row, strict=True):
            columns[name].append(_canonical(path, number, name, text))
    if not rows:
        raise DataError(f"{path} has no patients: fetch it again")
    columns["num"] = ["0" if text == "0" else "1" for text in columns["num"]]
    return columns


def _canonical(path: Path, line: int, name: str, text: str) -> str:
    """Returns a value in the form of the encoder, `1.0` as `1`; empty if it is missing."""
    if text.casefold() in ("", "?", "-9", "-9.0", "nan"):  # UCI's two marks, and the marks that libraries write
        if name == "num":
            raise DataError(f"{path}, line {line}: the label num is missing: fetch the file again")
        return ""
    try:
        value = float(text)
    except ValueError:
        raise DataError(f"{path}, line {line}: {name} = {text!r} is not a number: fetch the file again") from None
    if name == "num" and value not in (0, 1, 2, 3, 4):
        raise DataError(f"{path}, line {line}: num = {text} is not 0, 1, 2, 3 or 4: fetch the file again")
    return f"{value:g}"


def _division(columns: dict[str, list[str]], train_rows: str, test_rows: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns masks of the training and test patients of a hospital, bool `[n]` each."""
    from sklearn.model_selection import train_test_split  # slow to import

    labels = np.array(columns["num"])
    rows = zip(*(columns[name] for name in _USED), strict=True)
    is_complete = np.array(["" not in row for row in rows])  # FLamby counted 0 as a value, so it is one here
    divided = np.arange(len(labels))
    if test_rows == "complete":
        divided = divided[is_complete]
    try:
        _, chosen = train_test_split(
            divided, test_size=_TEST_SHARE, random_state=_SPLIT_SEED, stratify=_strata(labels[divided])
        )
    except ValueError as error:
        raise DataError(
            f"heart: a hospital's {len(divided)} patients cannot be divided ({error}): fetch the files again"
        ) from error
    is_test = np.zeros(len(labels), dtype=bool)
    is_test[chosen] = True
    is_train = ~is_test
    if train_rows == "complete":
        is_train &= is_complete
    return is_train, is_test


def _strata(labels: np.ndarray) -> np.ndarray | None:
    """Returns the labels if each occurs often enough to be divided evenly, which is FLamby's rule."""
    if all((labels == label).sum() > 2 for label in ("0", "1")):
        return labels
    return None
