"""Reads configurations from YAML files, overrides settings, and writes them with all defaults."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from fedpriv.config.base import check
from fedpriv.config.schema import Config
from fedpriv.errors import ConfigError
from fedpriv.settings import suggest_nearest, validate_arguments
from fedpriv.storage import digest_config, strict_yaml


@validate_arguments("load_config")
def load_config(path: str | Path, overrides: Sequence[str] = (), *, n_owners: int | None = None) -> Config:
    """Reads and validates a configuration.

    Args:
        path: YAML file.
        overrides: `dotted.name=value`, the value as YAML; later ones win.
        n_owners: The number of organisations that each hold their own data: a configuration without `data.partition`
            then gets a partition with this many clients. None: the configuration must have one.

    Returns:
        The configuration, with defaults filled in.

    Raises:
        ConfigError: If the file or a setting cannot be used; the error has the field, the value and the fix.
    """
    try:
        raw = strict_yaml.read(Path(path).read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        folder = Path(path).parent
        files = [str(file) for file in (*folder.glob("*.yaml"), *folder.glob("*.yml"))]
        close = suggest_nearest(str(path), files)
        fix = f"this file does not exist{close if 'did you mean' in close else ''}"
        raise ConfigError("configuration", str(path), fix) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("configuration", str(path), f"cannot be read ({error})") from None
    if not isinstance(raw, dict):
        fix = "must be a mapping of sections (data, model, strategy, ...)"
        if Path(path).suffix in (".csv", ".tsv", ".parquet"):
            fix = (
                "is a table and not a configuration: name the table in a YAML file, data: {name: csv, train: ...}; "
                "see `fedpriv list csv`"
            )
        raise ConfigError("configuration", str(path), fix)
    for setting in overrides:
        raw = override(raw, setting)
    data = raw.get("data")
    if n_owners is not None and isinstance(data, dict) and "partition" not in data:
        raw = {**raw, "data": {**data, "partition": {"kind": "iid", "n_clients": n_owners}}}
    return check(Config, raw, overrides=[setting.partition("=")[0] for setting in overrides])


@validate_arguments("to_yaml")
def to_yaml(config: Config) -> str:
    """Returns the configuration as YAML, with all defaults filled in and without the secret seed."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)


@validate_arguments("fingerprint")
def fingerprint(config: Config) -> str:
    """Returns a digest of the settings that must not change on resume: all but logging and speed.

    Files of weights are included by their contents, not by their paths.

    Raises:
        ConfigError: If a file of weights cannot be read.
    """
    settings = config.model_dump(mode="json")
    weights = config.model.weights
    if weights is not None:
        settings["model"]["weights"]["file"] = weights.digest()
    extractor = config.data.extractor
    if extractor is None:
        del settings["data"]["extractor"]  # the digest is unchanged from before this setting existed
    else:
        settings["data"]["extractor"]["file"] = extractor.digest()
    for name in ("standardize", "scales"):  # settings that are newer than the digest
        if settings["data"].get(name) is None:
            settings["data"].pop(name, None)
    return digest_config(settings)[:16]


def override(raw: dict[str, Any], setting: str) -> dict[str, Any]:
    """Returns a copy of a mapping in which `dotted.name=value` is set.

    Raises:
        ConfigError: If the setting has another form.
    """
    name, equals, text = setting.partition("=")
    keys = name.strip().split(".")
    if not equals or not all(keys) or len(keys) > strict_yaml.DEEPEST:
        raise ConfigError("override", setting, "must have the form section.field=value, e.g. privacy.epsilon=1")
    section = raw.get(keys[0])
    if isinstance(section, str):  # the short form of a plugin
        raw = {**raw, keys[0]: {"name": section}}
    return _set(raw, keys, strict_yaml.read(text, setting))


def _set(section: object, keys: Sequence[str], value: object) -> dict[str, Any]:
    """Returns a copy of a mapping with the value at these nested keys set; non-mappings are replaced."""
    copied: dict[str, Any] = {}
    if isinstance(section, dict):
        copied |= section
    if len(keys) == 1:
        copied[keys[0]] = value
    else:
        copied[keys[0]] = _set(copied.get(keys[0]), keys[1:], value)
    return copied
