"""The configurations and examples that come with fedpriv, in a wheel as in a checkout."""

from __future__ import annotations

import re
from pathlib import Path

from fedpriv.errors import ConfigError

_PACKAGE = Path(__file__).parents[1]


def folder(name: str) -> Path:
    """The folder `configs` or `examples`: inside an installed package, beside it in a checkout."""
    inside = _PACKAGE / name
    if inside.is_dir():
        return inside
    return _PACKAGE.parent / name


def configs() -> dict[str, Path]:
    """The shipped configurations by name."""
    return {path.stem: path for path in sorted(folder("configs").glob("*.yaml"))}


def names(incomplete: str) -> list[str]:
    """The names that begin with `incomplete`, for shell completion."""
    return [name for name in configs() if name.startswith(incomplete)]


def config(name: str) -> Path:
    """Path of a shipped configuration.

    Raises:
        ConfigError: there is none of this name; names similar ones.
    """
    known = configs()
    if name not in known:
        raise ConfigError("configuration", name, f"none of this name comes with fedpriv{_near(name)}")
    return known[name]


def found(given: Path) -> Path:
    """The file `given`, or else the shipped configuration that it names, with or without `.yaml`.

    Raises:
        ConfigError: it is neither.
    """
    if given.is_file() or len(given.parts) != 1 or given.suffix not in ("", ".yaml"):
        return given
    name = given.name.removesuffix(".yaml")
    if name in configs():
        return configs()[name]
    fix = f"there is no such file here, and none of this name comes with fedpriv{_near(name)}"
    raise ConfigError("configuration", str(given), fix)


def title(path: Path) -> str:
    """The first sentence of a configuration's heading."""
    lines = (line.removeprefix("#").strip() for line in path.read_text(encoding="utf-8").splitlines())
    heading = " ".join(line for line in lines if not line.startswith("yaml-language-server:"))
    return re.split(r"(?<=\.)\s|(?<=:)\s\s|\s\s", heading.lstrip(), maxsplit=1)[0].rstrip(".:")


def _near(name: str) -> str:
    from fedpriv.settings.translations import nearest  # help and completion need none of what it imports

    return nearest(name, configs())
