"""`fedpriv init`: files to start from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedpriv.cli import shipped
from fedpriv.errors import ConfigError

SCHEMA = "fedpriv.schema.json"  # the name that the first line of each shipped configuration tells editors


def config(name: str, folder: Path) -> str:
    """Write a shipped configuration and the JSON schema for editors; returns the next command."""
    source = shipped.config(name)
    _write(folder, {source.name: source.read_text(encoding="utf-8")})
    return f"fedpriv train {_shown(folder / source.name)}"


def script(name: str, folder: Path) -> str:
    """Write a shipped configuration, the schema and a script that trains it; returns the next command."""
    source = shipped.config(name)
    text = (shipped.folder("examples") / "from_config.py").read_text(encoding="utf-8").replace("digits_iadmm", name)
    _write(folder, {source.name: source.read_text(encoding="utf-8"), f"{name}.py": text})
    return f"python {_shown(folder / f'{name}.py')}"


def project(folder: Path) -> str:
    """Write a small project with the user's own data, model and algorithm; returns the next command."""
    source = shipped.folder("examples") / "project"
    parts = sorted(path for path in source.iterdir() if path.is_file())
    _write(folder, {path.name: path.read_text(encoding="utf-8") for path in parts})
    if folder.resolve() == Path.cwd():
        there = ""
    else:
        there = f"cd {folder} && "
    return f"{there}fedpriv train config.yaml --allow-plugins"


def _write(folder: Path, contents: Mapping[str, str]) -> None:
    """All of the files, or none where one of them is there; the schema is fedpriv's own and is renewed."""
    for name in contents:
        if (folder / name).exists():
            fix = "is there already and was not changed; name another folder with --dir"
            raise ConfigError("init", str(folder / name), fix)
    from fedpriv.cli.json_schema import dumps

    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {**contents, SCHEMA: dumps()}.items():
        (folder / name).write_text(text, encoding="utf-8")


def _shown(path: Path) -> str:
    if len(path.parts) > 1:
        return str(path)
    return path.name
