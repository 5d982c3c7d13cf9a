"""Standardises columns of a table by private means and deviations: `data.standardize` of a configuration.

One release before the first round (`fedpriv.statistics.scales`) takes a share of the run's own budget. Its record is
the first in the run's ledger, and the noise of the rounds is computed from the rest of the target epsilon. The centres
and scales are in the run's folder, in `standardize/scales.json`, for a resume and for `fedpriv predict`.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from pathlib import Path

import torch

from fedpriv import data
from fedpriv.config.dividing import divide_examples
from fedpriv.config.schema import Config, DataSection
from fedpriv.data import DATASETS
from fedpriv.errors import ConfigError, FedprivError, LedgerError, format_value
from fedpriv.planning import FirstPart
from fedpriv.privacy import Gaussian, LedgerFile, Privacy
from fedpriv.privacy.accounting import gaussian
from fedpriv.settings import suggest_nearest
from fedpriv.statistics.description import JoinedStatistics, plan_release
from fedpriv.statistics.numbers import Bounds
from fedpriv.statistics.query import Table
from fedpriv.statistics.scales import Scale, list_means, release_scales
from fedpriv.storage import strict_json, write_whole

FOLDER = "standardize"
_FILE = "scales.json"
_ENCODED: Bounds = (-1.0, 1.0)  # what a table's encoder maps the range of a column to


@dataclass(frozen=True)
class Standardization:
    """Released centres and scales.

    Attributes:
        scales: The centre and scale of each column.
        notes: Columns whose mean or deviation is hidden by the noise, with what they are scaled by instead.
        after: Folder of the release, whose cost the run must count; None if the run's ledger counts it already.
    """

    scales: Mapping[str, Scale]
    notes: tuple[str, ...]
    after: Path | None

    def apply(self, section: DataSection) -> DataSection:
        """Returns the data section with these scales as settings."""
        return _with_scales(section, self.scales)


def list_bounds(config: Config) -> dict[str, Bounds]:
    """Returns the public range of each column that is standardised, after a check of all settings.

    Raises:
        ConfigError: If the run cannot be standardised.
    """
    section = config.data
    assert section.standardize is not None
    value = section.standardize.model_dump(mode="json")
    if section.name not in DATASETS or "scales" not in signature(DATASETS[section.name].build).parameters:
        fix = f"is for tables (csv, parquet, sql), not for {section.name}: leave it out"
        raise ConfigError("data.standardize", value, fix)
    for other, setting in (("data.extractor", section.extractor), ("problem.server", config.problem.server)):
        if setting is not None:
            raise ConfigError("data.standardize", value, f"cannot be combined with {other}: leave one of them out")
    if config.compute.parallelism != "none":
        raise ConfigError("data.standardize", value, "needs a run in one process: leave out --processes")
    options = section.options
    label, numbers = options["label"], options.get("numbers") or {}
    columns = section.standardize.columns or tuple(name for name in numbers if name != label)
    for name in columns:
        if name == label or name not in numbers:
            known = [column for column in numbers if column != label]
            fix = f"must list columns in data.numbers besides the label{suggest_nearest(name, known)}"
            raise ConfigError("data.standardize.columns", name, fix)
        if name in (options.get("scales") or {}):
            raise ConfigError("data.standardize.columns", name, "is also in data.scales: leave out one of them")
    if not columns:
        raise ConfigError(
            "data.standardize", value, "needs numeric columns: list them in data.numbers, or leave it out"
        )
    return {name: numbers[name] for name in dict.fromkeys(columns)}


def with_public_scales(config: Config) -> DataSection:
    """Returns the data section with the middles and halves of the public ranges as scales: data of the same shape.

    Raises:
        ConfigError: If the run cannot be standardised.
    """
    if config.data.standardize is None:
        return config.data
    return _with_scales(
        config.data, {name: _in_units((0.0, 1.0), bounds) for name, bounds in list_bounds(config).items()}
    )


def make_release_privacy(config: Config, privacy: Privacy) -> Privacy:
    """Returns the privacy settings of the release: a share of the run's target, with the run's trust and budget.

    Raises:
        ConfigError: If the run's settings leave no share for it.
    """
    assert config.data.standardize is not None
    if privacy.epsilon is None or privacy.noise_multiplier is not None or not privacy.private:
        fix = "must be set for data.standardize, and noise_multiplier left out, because the release takes a share of it"
        raise ConfigError("privacy.epsilon", privacy.epsilon, fix)
    if privacy.unit != "sample":
        fix = "must be sample for data.standardize, which protects single rows: leave data.standardize out"
        raise ConfigError("privacy.unit", privacy.unit, fix)
    if not isinstance(privacy.mechanism, Gaussian) or privacy.delta == 0:
        fix = "must be gaussian, with a positive delta, for data.standardize"
        raise ConfigError("privacy.mechanism", privacy.mechanism.name, fix)
    ratio = gaussian.compute_ratio(privacy.epsilon, privacy.delta) * math.sqrt(config.data.standardize.share)
    return Privacy(
        epsilon=gaussian.compute_epsilon(ratio, privacy.delta),
        delta=privacy.delta,
        unit=privacy.unit,
        relation=privacy.relation,
        trust=privacy.trust,
        fsync=privacy.fsync,
        budget=privacy.budget,
    )


def plan_first(config: Config, privacy: Privacy, sizes: tuple[int, ...]) -> FirstPart | None:
    """Returns the release before the first round, as it is planned; None without `data.standardize`.

    Args:
        config: The configuration.
        privacy: The privacy settings of the run.
        sizes: Public number of rows of each owner.

    Raises:
        ConfigError: If the run cannot be standardised.
    """
    if config.data.standardize is None:
        return None
    joined = JoinedStatistics.of(list_means(dict.fromkeys(list_bounds(config), _ENCODED)))
    release = plan_release(joined.check_privacy(make_release_privacy(config, privacy)), sizes)
    return FirstPart.counted(release.records)


@contextmanager
def standardized(
    config: Config, privacy: Privacy, folder: Path | None, extend: Path | None
) -> Generator[Standardization]:
    """A context with the released centres and scales of a run: those in its folder, or new ones.

    Args:
        config: The configuration, with `data.standardize`; its plan was checked.
        privacy: The privacy settings of the run.
        folder: The run's folder; None keeps the release in a folder that the end of the context removes.
        extend: Folder of the run that this one extends, which has released them.

    Raises:
        FedprivError: If the release cannot be made, or was made and its result is lost.
    """
    if folder is None:
        with tempfile.TemporaryDirectory() as place:
            yield _released_in(config, privacy, Path(place), extend)
    else:
        yield _released_in(config, privacy, folder, extend)


def read_scales(folder: Path) -> tuple[dict[str, Scale], tuple[str, ...]] | None:
    """Returns the centres and scales of a run's folder, and notes; None if there are none.

    Raises:
        FedprivError: If the file is damaged.
    """
    path = folder / FOLDER / _FILE
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        scales = {str(name): (float(centre), float(scale)) for name, (centre, scale) in content["scales"].items()}
        return scales, tuple(str(note) for note in content["notes"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FedprivError(f"{path} is damaged ({format_value(str(error))}): restore it from a copy") from error


def _released_in(config: Config, privacy: Privacy, folder: Path, extend: Path | None) -> Standardization:
    place = folder / FOLDER
    known = read_scales(folder)
    if known is None and extend is not None:
        known = read_scales(extend)
        if known is None:
            raise FedprivError(f"{extend} has no {FOLDER}/{_FILE}, but its data were standardised: restore the file")
        _write(place, *known)
    if known is not None:
        ledger = place / "ledger.jsonl"
        return Standardization(*known, after=place if ledger.exists() else None)
    _check_unreleased(folder)
    bounds = list_bounds(config)
    released = release_scales(
        _read_tables(config, bounds),
        dict.fromkeys(bounds, _ENCODED),
        make_release_privacy(config, privacy),
        folder=place,
        secret_seed=_derive(config.secret_seed),
    )
    scales = {name: _in_units(released.by_column[name], bounds[name]) for name in bounds}
    _write(place, scales, released.notes)
    return Standardization(scales, released.notes, place)


def _check_unreleased(folder: Path) -> None:
    """Removes a release that was killed before it made anything; raises an error for one that did.

    Raises:
        LedgerError: If the release was made and its result is lost.
    """
    place = folder / FOLDER
    ledger = place / "ledger.jsonl"
    is_made = ledger.exists() and bool(LedgerFile.read(ledger).records)
    if is_made or (folder / "ledger.jsonl").exists():
        raise LedgerError(
            f"{place / _FILE} is missing, but the means and deviations were released before this run was stopped: "
            "restore the file from a copy, or start a new run in another folder (its cost is separate)"
        )
    if place.exists():
        shutil.rmtree(place)


def _read_tables(config: Config, bounds: Mapping[str, Bounds]) -> list[Table]:
    """Returns each owner's columns, mapped to [-1, 1], with NaN for missing values."""
    section = config.data
    options = section.options
    label = options["label"]
    numbers = {name: bounds[name] for name in bounds}
    if label in options["numbers"]:  # regression
        numbers[label] = options["numbers"][label]
    # the columns in this order, and then the flags of their missing values
    only = {"numbers": numbers, "indicators": tuple(bounds), "categories": {}, "missing": {}, "bias": False}
    split = data.load(section.name, **{**options, **only})
    tables = list[Table]()
    for owned in divide_examples(section, split):
        rows = torch.stack([owned[index][0] for index in range(len(owned))]).double()
        values, gaps = rows.split(len(bounds), 1)
        values = torch.where(gaps > 0, math.nan, values)
        tables.append({name: values[:, index].numpy() for index, name in enumerate(bounds)})
    return tables


def _with_scales(section: DataSection, scales: Mapping[str, Scale]) -> DataSection:
    all_scales = {**(section.options.get("scales") or {}), **scales}
    return section.model_copy(update={"standardize": None, "scales": all_scales})


def _in_units(scale: Scale, bounds: Bounds) -> Scale:
    """Returns a centre and scale of values in [-1, 1] in the units of the column."""
    (centre, size), (low, high) = scale, bounds
    half = (high - low) / 2
    return (low + high) / 2 + half * centre, half * size


def _write(place: Path, scales: Mapping[str, Scale], notes: tuple[str, ...]) -> None:
    place.mkdir(parents=True, exist_ok=True)
    content = {"scales": {name: list(scale) for name, scale in scales.items()}, "notes": list(notes)}
    write_whole(place / _FILE, (strict_json.dumps(content, indent=2) + "\n").encode())


def _derive(secret_seed: int | None) -> int | None:
    """Returns the secret seed of the release, so that no round has its noise."""
    if secret_seed is None:
        return None
    return int.from_bytes(hashlib.blake2b(f"standardize {secret_seed}".encode(), digest_size=8).digest(), "little")
