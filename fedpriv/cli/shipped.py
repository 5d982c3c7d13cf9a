"""Finds the configurations and examples that are shipped with fedpriv, in a wheel or a checkout."""

from __future__ import annotations

import re
from pathlib import Path

from fedpriv.errors import ConfigError

_PACKAGE = Path(__file__).parents[1]


def find_folder(name: str) -> Path:
    """Returns the folder `configs` or `examples`: inside an installed package, or next to the package in a checkout."""
    inside = _PACKAGE / name
    if inside.is_dir():
        return inside
    return _PACKAGE.parent / name


def list_configs() -> dict[str, Path]:
    """Returns the shipped configurations by name."""
    return {path.stem: path for path in sorted(find_folder("configs").glob("*.yaml"))}


def complete_names(incomplete: str) -> list[str]:
    """Returns the names that begin with `incomplete`, for shell completion."""
    return [name for name in list_configs() if name.startswith(incomplete)]


def find_config(name: str) -> Path:
    """Returns the path of a shipped configuration.

    Raises:
        ConfigError: If there is none with this name; the error suggests a similar one.
    """
    paths = list_configs()
    if name not in paths:
        raise ConfigError("configuration", name, f"fedpriv has no configuration of this name{_suggestion(name)}")
    return paths[name]


def resolve(path: Path) -> Path:
    """Returns the path if it is a file, or else the shipped configuration that it names, with or without `.yaml`.

    A path with a folder, or with the suffix of another kind of file, is returned as it is.

    Raises:
        ConfigError: If there is neither.
    """
    if path.is_file() or len(path.parts) != 1:
        return path
    name = path.name.removesuffix(".yaml")
    if path.suffix in (".yml", ".json", ".toml"):
        fix = f"this file does not exist; a configuration is a .yaml file{_suggestion(path.stem)}"
        raise ConfigError("configuration", str(path), fix)
    if path.suffix not in ("", ".yaml"):
        return path
    if name in list_configs():
        return list_configs()[name]
    fix = f"this file does not exist, and fedpriv has no configuration of this name{_suggestion(name)}"
    raise ConfigError("configuration", str(path), fix)


def read_title(path: Path) -> str:
    """Returns the first sentence of the comment at the top of a configuration."""
    lines = (line.removeprefix("#").strip() for line in path.read_text(encoding="utf-8").splitlines())
    heading = " ".join(line for line in lines if not line.startswith("yaml-language-server:"))
    return re.split(r"(?<=\.)\s|(?<=:)\s\s|\s\s", heading.lstrip(), maxsplit=1)[0].rstrip(".:")


def _suggestion(name: str) -> str:
    from fedpriv.settings import suggest_nearest  # imported here, since help and completion do not need it

    close = suggest_nearest(name, list_configs())
    if "did you mean" in close:
        return close
    return "; print all names with: fedpriv list configs"
