"""The kernel's contract: other rooms take from a kernel room what its `__init__.pyi` lists, and nothing else.

import-linter holds who may import whom (`pyproject.toml`); here are the names.
"""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fedpriv"
KERNEL = (
    "errors",
    "distributed",
    "randomness",
    "settings",
    "storage",
    "models",
    "clients",
    "strategies",
    "privacy",
    "privacy.accounting",
    "network",
    "oracle",
    "planning",
    "evaluation",
    "runs",
)
LISTS = [room for room in KERNEL if room != "errors"]
MOST_NAMES = 448


def kernel_room(module: str) -> str | None:
    """The kernel room that has a module, or None outside the kernel."""
    inside = module.removeprefix("fedpriv.")
    rooms = [room for room in KERNEL if inside == room or inside.startswith(f"{room}.")]
    return max(rooms, key=len, default=None)


def tenant_files(package: Path) -> list[Path]:
    return [
        path
        for path in sorted(package.rglob("*.py"))
        if kernel_room(path.relative_to(package).parts[0].removesuffix(".py")) is None and path.parent != package
    ]


def stub(room: str) -> ast.Module:
    return ast.parse((PACKAGE / room.replace(".", "/") / "__init__.pyi").read_text())


def names_of(tree: ast.Module) -> list[str]:
    """What `__all__` has."""
    assigned = [node.value for node in tree.body if isinstance(node, ast.Assign) and "__all__" in ast.unparse(node)]
    return [*ast.literal_eval(assigned[0])]


def modules_of(room: str) -> set[str]:
    """The modules that a room lists whole."""
    return {
        alias.name
        for node in stub(room).body
        if isinstance(node, ast.ImportFrom) and node.module is None
        for alias in node.names
    }


def module_names(room: str, module: str) -> list[str]:
    return names_of(ast.parse((PACKAGE / room.replace(".", "/") / f"{module}.py").read_text()))


LISTED = {room: {*names_of(stub(room))} for room in LISTS}
WHOLE = {(room, module): {*module_names(room, module)} for room in LISTS for module in modules_of(room)}


def taken_from_inside(tree: ast.Module) -> Iterator[str]:
    """What a file takes from the kernel without a list that offers it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if kernel_room(alias.name))
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("fedpriv."):
            continue
        room = kernel_room(str(node.module))
        if room is None or room == "errors":
            continue
        for alias in node.names:
            if node.module != f"fedpriv.{room}" or alias.name not in LISTED[room]:
                yield f"{node.module}.{alias.name}"
            for attribute in attributes(tree, alias.asname or alias.name):
                if (room, alias.name) in WHOLE and attribute not in WHOLE[room, alias.name]:
                    yield f"{node.module}.{alias.name}.{attribute}"


def attributes(tree: ast.Module, name: str) -> set[str]:
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name
    }


TENANTS = tenant_files(PACKAGE)


@pytest.mark.parametrize("path", TENANTS, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_tenant_imports_listed_names_only(path: Path):
    names = [*taken_from_inside(ast.parse(path.read_text()))]
    assert not names, f"list them in the room's __init__.pyi, if they are for everyone: {names}"


@pytest.mark.parametrize("room", LISTS)
def test_kernel_package_exports_its_list(room: str):
    """Each listed name can be imported, and the stub imports exactly what it lists."""
    package = importlib.import_module(f"fedpriv.{room}")
    assert sorted(package.__all__) == sorted(LISTED[room])
    for name in package.__all__:
        assert getattr(package, name) is not None
    imports = [node for node in stub(room).body if isinstance(node, ast.ImportFrom)]
    assert {alias.name for node in imports for alias in node.names} == LISTED[room]


@pytest.mark.parametrize("room", [room for room in LISTS if room != "models"])  # whose list is what users write
def test_listed_names_are_used(room: str):
    """A list is no place for names that a tenant might need one day."""
    taken = {
        alias.name
        for path in TENANTS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == f"fedpriv.{room}"
        for alias in node.names
    }
    assert LISTED[room] <= taken, f"take them off the list: {sorted(LISTED[room] - taken)}"


def test_contract_stays_small():
    names = sum(len(LISTED[room]) for room in LISTS) + sum(len(names) for names in WHOLE.values())
    assert names <= MOST_NAMES, f"{names} names: which of them could be one function?"


def test_kernel_packages_match_import_layers():
    """The kernel's rooms are those below the line in the layers of import-linter: they import nothing above it."""
    layers = next(
        contract["layers"]
        for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
        if contract["id"] == "layers"
    )
    below = [name for layer in layers[layers.index("(runs)") :] for name in layer.replace(" ", "").split("|")]
    assert {name.strip("()") for name in below} == {room for room in KERNEL if "." not in room}


@pytest.mark.parametrize("room", [room for room in KERNEL if "." not in room])
def test_contributing_page_counts_kernel_lines(room: str):
    """The page opens with the size of each kernel room, right to a tenth (and 50 lines)."""
    folder = PACKAGE / room
    files = [*folder.rglob("*.py")] or [PACKAGE / f"{room}.py"]
    lines = sum(len(path.read_text().splitlines()) for path in files)
    page = (ROOT / "docs" / "CONTRIBUTING.md").read_text()
    row = re.search(rf"^\| `{room}` \| .* \| (\d+) \| (\d+) \|$", page, flags=re.MULTILINE)
    assert row is not None, f"docs/CONTRIBUTING.md has no row of {room}"
    correct = f"{len(files)} | {round(lines, -2)}"
    assert abs(int(row[1]) - len(files)) <= len(files) / 10, correct
    assert abs(int(row[2]) - lines) <= lines / 10 + 50, correct


def test_make_test_kernel_covers_each_package():
    """`make test-kernel` names folders and files that exist, among them those of each kernel room."""
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    lists = {
        name: re.search(rf"^{name} := (.*)$", makefile, flags=re.MULTILINE)
        for name in ("KERNEL_TESTS", "BEYOND_KERNEL")
    }
    named = {name: match[1].split() for name, match in lists.items() if match}
    assert not [path for paths in named.values() for path in paths if not (ROOT / "tests" / path).exists()]
    assert {room for room in KERNEL if (ROOT / "tests" / room).is_dir()} <= {*named["KERNEL_TESTS"]}


@pytest.mark.parametrize(
    "line",
    [
        "from fedpriv.privacy.ledger import Ledger",
        "from fedpriv.privacy import ledger",
        "from fedpriv.privacy import no_such_name",
        "import fedpriv.privacy.ledger",
        "def f():\n    from fedpriv.oracle.query import Query",
        "from fedpriv.storage import files\nfiles.no_such_name",
    ],
)
def test_unlisted_kernel_import_reported(line: str):
    assert [*taken_from_inside(ast.parse(line))]


@pytest.mark.parametrize("line", ["from fedpriv.privacy import Ledger", "from fedpriv.errors import ConfigError"])
def test_listed_kernel_import_passes(line: str):
    assert not [*taken_from_inside(ast.parse(line))]
