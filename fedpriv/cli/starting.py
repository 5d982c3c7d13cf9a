"""Implements `fedpriv init`: writes files to start from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedpriv.cli import shipped
from fedpriv.errors import ConfigError

SCHEMA = "fedpriv.schema.json"  # the first line of each shipped configuration has this name, for editors
_OF_PROJECT = {".py", ".yaml", ".md", ".csv"}


def write_config(name: str, folder: Path) -> str:
    """Writes a shipped configuration and the JSON schema for editors; returns the next command."""
    source = shipped.find_config(name)
    _write(folder, {source.name: source.read_text(encoding="utf-8")})
    return f"fedpriv train {_command_path(folder / source.name)}"


def write_script(name: str, folder: Path) -> str:
    """Writes a shipped configuration, the schema and a script that trains it; returns the next command."""
    source = shipped.find_config(name)
    text = (
        (shipped.find_folder("examples") / "from_config.py").read_text(encoding="utf-8").replace("digits_iadmm", name)
    )
    _write(folder, {source.name: source.read_text(encoding="utf-8"), f"{name}.py": text})
    return f"python {_command_path(folder / f'{name}.py')}"


def write_project(folder: Path) -> str:
    """Writes a small project with the user's own data, model and algorithm; returns the next command."""
    source = shipped.find_folder("examples") / "project"
    paths = sorted(path for path in source.rglob("*") if path.is_file() and path.suffix in _OF_PROJECT)
    _write(folder, {path.relative_to(source).as_posix(): path.read_text(encoding="utf-8") for path in paths})
    command = "fedpriv train config.yaml --allow-plugins"
    if folder.resolve() == Path.cwd():
        return command
    return f"cd {folder} && {command}"


def _write(folder: Path, contents: Mapping[str, str]) -> None:
    """Writes all of the files, or none if one of them exists; the schema is always renewed."""
    for name in contents:
        if (folder / name).exists():
            fix = "already exists and was not changed: name another folder with --dir"
            raise ConfigError("init", str(folder / name), fix)
    from fedpriv.cli.json_schema import dumps

    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {**contents, SCHEMA: dumps()}.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _command_path(path: Path) -> str:
    """Returns a path in the form for a command line."""
    if len(path.parts) > 1:
        return str(path)
    return path.name
