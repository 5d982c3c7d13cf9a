"""Rules of the source that neither the linter nor import-linter can state."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fedpriv"


def sources(folder: Path) -> list[Path]:
    """Every source below a folder, however deep: a file in a sub-folder must not escape a rule."""
    return sorted(folder.rglob("*.py"))


def strategies(package: Path) -> list[Path]:
    files = [*sources(package / "strategies"), *sources(package / "algorithms")]
    return [path for path in files if not path.name.startswith("__init__")]


SOURCES = sources(PACKAGE)
STRATEGIES = strategies(PACKAGE)

# who may do what, as paths inside the package
OPENS_RELEASES = {"oracle/data_query_engine.py"}
MAKES_RELEASES = {
    "oracle/data_query_engine.py",  # exact answers of runs without privacy
    "privacy/mechanisms.py",
    "privacy/release/local.py",
    "privacy/release/pairwise.py",
    "privacy/release/sums.py",
}
READS_RELEASES = {"privacy/ledger.py"}
MAKES_UP_DATA = {"clients/public_info.py"}  # to time a round without real data; nothing of it is released
# torch functions that draw from its hidden global generator when no generator is given
DRAWS = {
    "rand",
    "randn",
    "randint",
    "randperm",
    "normal",
    "bernoulli",
    "multinomial",
    "poisson",
    "rand_like",
    "randn_like",
}


def inside(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def where(path: Path, node: ast.AST) -> str:
    return f"fedpriv/{inside(path)}:{getattr(node, 'lineno', 1)}"


def calls(path: Path) -> Iterator[tuple[ast.Call, str, str]]:
    """Every call, the name called, and the source of what stands before its last dot."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node, node.func.attr, ast.unparse(node.func.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node, node.func.id, ""


def public_definitions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Functions, classes and methods without a leading underscore, at any depth of public classes."""
    pending: list[ast.AST] = [tree(path)]
    while pending:
        for node in ast.iter_child_nodes(pending.pop()):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith(
                "_"
            ):
                yield node
                if isinstance(node, ast.ClassDef):
                    pending.append(node)


def test_release_value_read_in_ledger_only():
    """A value without a price must be impossible: `Release._value` is read where its record is written."""
    found = [
        where(path, node)
        for path in SOURCES
        if inside(path) not in READS_RELEASES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and node.attr == "_value"
    ]
    assert not found, f"only privacy/ledger.py may read Release._value: {found}"


def test_ledger_open_called_in_data_answerer_only():
    found = [
        where(path, call)
        for path in SOURCES
        if inside(path) not in OPENS_RELEASES
        for call, name, receiver in calls(path)
        if name == "open" and "ledger" in receiver.lower().split(".")[-1]
    ]
    assert not found, f"Ledger.open is for the engine of data: {found}"


@pytest.mark.parametrize("maker", ["Release", "add_noise"])
def test_releases_constructed_in_listed_files_only(maker: str):
    found = [
        where(path, call)
        for path in SOURCES
        if inside(path) not in MAKES_RELEASES
        for call, name, _ in calls(path)
        if name == maker
    ]
    assert not found, f"{maker}(...) is called in {sorted(MAKES_RELEASES)} only: {found}"


def test_torch_draws_name_a_generator():
    """Every draw has a named stream: a draw from torch's global generator could repeat another one's noise."""
    found = [
        where(path, call)
        for path in SOURCES
        if inside(path) not in MAKES_UP_DATA
        for call, name, receiver in calls(path)
        if name in DRAWS and receiver == "torch" and not any(k.arg == "generator" for k in call.keywords)
    ]
    assert not found, f"pass generator=..., or use fedpriv.randomness.streams: {found}"


@pytest.mark.parametrize("path", STRATEGIES, ids=inside)
def test_strategy_files_have_docstring(path: Path):
    assert ast.get_docstring(tree(path)), "a strategy file opens with the citation and the update equations"


@pytest.mark.parametrize("path", SOURCES, ids=inside)
def test_public_names_have_docstrings(path: Path):
    """The linter checks style; this also covers what a package re-exports. `forward` is described by its module."""
    if path.name != "__init__.py":
        assert ast.get_docstring(tree(path)), f"{inside(path)} needs a first line that says what it is for"
    bare = [
        f"{where(path, node)} {node.name}"
        for node in public_definitions(path)
        if not ast.get_docstring(node) and node.name != "forward"
    ]
    assert not bare, f"undocumented: {bare}"


def test_privacy_package_imports_no_torch_nn():
    """Accountants are functions of the ledger alone, so delta or adversary can change without training again."""
    found = [f"fedpriv/{inside(path)}" for path in privacy_files_with_models(PACKAGE)]
    assert not found, f"torch.nn inside fedpriv/privacy: {found}"


def privacy_files_with_models(package: Path) -> list[Path]:
    return [
        path
        for path in sources(package / "privacy")
        if any(name == "torch.nn" or name.startswith("torch.nn.") for name in imported(path))
    ]


def imported(path: Path) -> Iterator[str]:
    """Dotted names of what a file imports, parts of modules included."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{name.name}" for name in node.names)


@pytest.mark.parametrize("line", ["from torch import nn", "import torch.nn as n", "from torch.nn import Module"])
def test_rule_checks_subfolders(line: str, tmp_path: Path):
    """The rules reach below the first level of folders."""
    planted = tmp_path / "privacy" / "claims" / "deep" / "planted.py"
    long = tmp_path / "strategies" / "family" / "long.py"
    for path, text in ((planted, line), (long, "x = 1")):
        path.parent.mkdir(parents=True)
        path.write_text(text + "\n")
    (tmp_path / "privacy" / "fine.py").write_text("import torch\n")
    assert privacy_files_with_models(tmp_path) == [planted]
    assert strategies(tmp_path) == [long]


SETTINGS_ROOMS = ("algorithms", "clients", "data", "models", "network", "privacy", "strategies")


REQUIRED_BY_PYTHON = {"__init__.py", "__init__.pyi", "__main__.py", "py.typed"}
MAY_IMPORT_PAPERS = {"cli", "config"}


def test_package_at_most_26_subpackages():
    """14 of the kernel (tests/test_contract.py has them) and 11 around it."""
    rooms = {path.name for path in PACKAGE.iterdir()} - REQUIRED_BY_PYTHON - {"__pycache__"}
    assert len(rooms) <= 26, f"where does a reader look for what the newest of {sorted(rooms)} has?"


@pytest.mark.parametrize("path", SOURCES, ids=inside)
def test_papers_imported_by_cli_and_config_only(path: Path):
    room = inside(path).split("/")[0]
    imported = {node.module or "" for node in ast.walk(tree(path)) if isinstance(node, ast.ImportFrom)}
    from_papers = {module for module in imported if module.startswith("fedpriv.papers")}
    assert not from_papers or room in MAY_IMPORT_PAPERS | {"papers"}, f"{room} must not know papers: {from_papers}"


def test_setting_class_names_unique():
    """Digests of settings name a class without its module: two of one name could share noise."""
    files: dict[str, list[str]] = {}
    for path in SOURCES:
        if inside(path).split("/")[0] in SETTINGS_ROOMS:
            for node in tree(path).body:
                if isinstance(node, ast.ClassDef):
                    files.setdefault(node.name, []).append(inside(path))
    twice = {name: where for name, where in files.items() if len(where) > 1}
    assert not twice, f"give each a name of its own: {twice}"


@pytest.mark.parametrize("path", SOURCES, ids=inside)
def test_inner_function_names_unique(path: Path):
    """Digests name fedpriv's functions, also those that settings hold as closures, and leave out their code."""
    for outer in ast.walk(tree(path)):
        if isinstance(outer, ast.FunctionDef):
            names = [node.name for node in ast.walk(outer) if isinstance(node, ast.FunctionDef) and node is not outer]
            assert len(names) == len({*names}), f"{where(path, outer)} has two functions of one name: {names}"


def test_functions_length_and_argument_limits():
    """A body fits a screen; who takes more than twelve arguments takes an object of options."""
    options = {"tune", "hugging_face", "sql"}  # a command's flags; a data set's options
    for path in SOURCES:
        for node in ast.walk(tree(path)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            body = node.body[1:] if ast.get_docstring(node) else node.body
            length = node.body[-1].end_lineno - body[0].lineno + 1 if body else 0  # pyright: ignore
            assert length <= 60, f"{where(path, node)} {node.name} has {length} lines"
            taken = len(node.args.args) + len(node.args.kwonlyargs) + len(node.args.posonlyargs)
            assert taken <= 12 or node.name in options, f"{where(path, node)} {node.name} takes {taken} arguments"


def test_conditional_expressions_few():
    """Conditional expressions are for the shortest values; at 1 080 of them nobody could follow."""
    count = sum(isinstance(node, ast.IfExp) for path in SOURCES for node in ast.walk(tree(path)))
    assert count < 400, f"{count} conditional expressions"


RIDDLES = {
    "found",
    "told",
    "said",
    "wanted",
    "heard",
    "held",
    "made",
    "alike",
    "most",
    "looked_at",
    "of_plan",
}


@pytest.mark.parametrize("path", SOURCES, ids=inside)
def test_names_avoid_vague_words(path: Path):
    """Names are nouns of the field from docs/glossary.md, not participles such as found or made."""
    riddles = list[str]()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            name = node.name
        else:
            continue
        if name in RIDDLES:
            riddles.append(f"{where(path, node)} {name}")
    assert not riddles, riddles


@pytest.mark.parametrize("path", SOURCES, ids=inside)
def test_no_tuple_assigned_then_unpacked_in_call(path: Path):
    """With `f(*values)` the reader must look up the values and their order: write the arguments out."""
    splatted = list[str]()
    for function in ast.walk(tree(path)):
        if not isinstance(function, ast.FunctionDef):
            continue
        assigned = [
            node for node in ast.walk(function) if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)
        ]
        names = {target.id for node in assigned for target in node.targets if isinstance(target, ast.Name)}
        for call in ast.walk(function):
            if isinstance(call, ast.Call):
                values = [argument.value for argument in call.args if isinstance(argument, ast.Starred)]
                splatted += [where(path, call) for value in values if isinstance(value, ast.Name) and value.id in names]
    assert not splatted, splatted


def test_test_file_names_unique():
    """Pytest imports them by that name: of two it collects neither, and no other test runs."""
    names = [path.name for path in sources(ROOT / "tests") if path.name != "conftest.py"]
    assert sorted(names) == sorted(set(names))


def test_tool_config_in_pyproject_only():
    """pyproject.toml configures all tools: a second file would silently win over it."""
    rivals = [
        "setup.cfg",
        "tox.ini",
        "pytest.ini",
        ".flake8",
        "ruff.toml",
        ".ruff.toml",
        "pyrightconfig.json",
        ".coveragerc",
    ]
    assert not [name for name in rivals if (ROOT / name).exists()]


def test_constraints_pin_every_dependency():
    """`make venv` is reproducible as long as each direct dependency has its line."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    names = {requirement_name(line) for line in wanted} - {project["name"]}
    pinned = {requirement_name(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    assert names <= pinned, f"add to constraints.txt: {sorted(names - pinned)}"


def requirement_name(requirement: str) -> str:
    for end in "[<>=~! ":
        requirement = requirement.split(end)[0]
    return requirement.lower().replace("_", "-")
