"""Names outside the catalogue: not imported without the user's word, not called before they are what they must be."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.config import build as build_training
from fedpriv.config import fingerprint, load_config, to_yaml
from fedpriv.errors import ConfigError
from fedpriv.models import MODELS
from fedpriv.models.constraints import CONSTRAINTS, ClassLossAtMost, Constraint, LossAtMost
from fedpriv.network.activity import ACTIVITIES, Activity, Always
from fedpriv.settings import plugins
from fedpriv.settings.plugins import Registry, RegistryEntry, build, check_class, find, resolve_object

RUN = Path(__file__).parents[1] / "run.yaml"
NUMBER = 3


class Pair(tuple[int, int]):
    __slots__ = ()


def pair(left: int, right: int = 2) -> Pair:
    return Pair((left, right))


def unannotated(left):
    raise AssertionError("called before it was checked")


REGISTRY: Registry[RegistryEntry[Any]] = Registry({"pair": RegistryEntry(pair, "two numbers")}, (Pair,))


@pytest.mark.usefixtures("allow_plugins")
def test_resolve_object_imports_name():
    assert resolve_object(f"{__name__}:pair") is pair
    assert resolve_object("collections:OrderedDict").__name__ == "OrderedDict"


@pytest.mark.parametrize("reference", ["pair", ":pair", "module:", "a.b.c"])
def test_resolve_object_malformed_reference_raises(reference):
    with pytest.raises(ConfigError, match=r"model = .*package\.module:Name"):
        resolve_object(reference, field="model")


@pytest.mark.usefixtures("allow_plugins")
def test_resolve_object_unknown_suggests_nearest():
    with pytest.raises(ConfigError, match="has no 'OrderDict'; did you mean 'OrderedDict'"):
        resolve_object("collections:OrderDict")
    with pytest.raises(ConfigError, match="module 'colections' was not found; did you mean 'collections'"):
        resolve_object("colections:OrderedDict")
    with pytest.raises(ConfigError, match=r"module 'fedpriv\.modles' was not found; did you mean 'fedpriv\.models'"):
        resolve_object("fedpriv.modles:MnistCNN")
    with pytest.raises(ConfigError, match=r"module 'zzqqxx' was not found .*PYTHONPATH"):
        resolve_object("zzqqxx.part:Name")


@pytest.mark.usefixtures("allow_plugins")
def test_resolve_object_failing_import_raises(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "needs_more.py").write_text("import zzqqxx\n")
    (tmp_path / "is_broken.py").write_text("1 / 0\n")
    with pytest.raises(ConfigError, match="needs the module 'zzqqxx', which is not installed: install it"):
        resolve_object("needs_more:Name")
    with pytest.raises(ConfigError, match=r"importing 'is_broken' failed .ZeroDivisionError"):
        resolve_object("is_broken:Name")


@pytest.mark.usefixtures("allow_plugins")
def test_build_uses_options_and_context():
    assert build("pair", REGISTRY, {"left": 1}, field="x") == (1, 2)
    assert build("pair", REGISTRY, {"right": 5}, field="x", context={"left": 4, "unused": 0}) == (4, 5)
    assert build(f"{__name__}:pair", REGISTRY, {"left": 1, "right": 1}, field="x") == (1, 1)
    assert build("builtins:dict", Registry({}, (dict,)), {"a": 1}, field="x") == {"a": 1}


@pytest.mark.usefixtures("allow_plugins")
def test_build_invalid_options_raise():
    with pytest.raises(ConfigError, match=r"x\.lefft = 1: is unknown; did you mean 'left'"):
        build("pair", REGISTRY, {"lefft": 1}, field="x")
    with pytest.raises(ConfigError, match=r"x\.left = None: is required by pair: set this option"):
        build("pair", REGISTRY, {}, field="x")
    with pytest.raises(ConfigError, match="x = 'pairs': is unknown; did you mean 'pair'"):
        build("pairs", REGISTRY, {}, field="x")
    with pytest.raises(ConfigError, match="is a int: name a class or a function"):
        build(f"{__name__}:NUMBER", REGISTRY, {}, field="x")
    with pytest.raises(ConfigError, match=r"cannot be created with these options \(TypeError"):
        build("torch.nn:Linear", MODELS, {"in_features": "x", "out_features": 3}, field="model")


# --- what must be said first


OUTSIDE = [
    "model={name: 'marks:Net'}",
    "model={name: 'marks:mark'}",
    "loss='marks:Net'",
    "strategy='marks:mark'",
    "data={name: 'marks:mark', partition: {kind: iid, n_clients: 2}}",
    "network={topology: 'marks:mark'}",
    "network={topology: ring, mixing: 'marks:mark'}",
    "network={topology: ring, activity: {function: 'marks:mark'}}",
    "problem={objective: {function: 'marks:mark'}}",
    "problem={constraints: [{function: 'marks:mark'}]}",
    "network={topology: ring, activity: 'marks:mark'}",
    "problem={objective: 'marks:mark'}",
    "problem={constraints: ['marks:mark']}",
    "privacy.schedule={function: 'marks:mark'}",
]


@pytest.fixture
def marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose module leaves a mark when it is imported, and another when it is called."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "marks.py").write_text(
        "open('imported', 'w')\ndef mark(*a, **b):\n    open('called', 'w')\nclass Net:\n    __init__ = mark\n"
    )
    yield tmp_path
    sys.modules.pop("marks", None)


@pytest.mark.parametrize("override", OUTSIDE)
@pytest.mark.parametrize("command", ["plan", "train"])
def test_config_without_allow_plugins_runs_no_code(override: str, command: str, marks: Path):
    done = CliRunner().invoke(app, [command, str(RUN), override])
    assert done.exit_code == 2
    assert "add --allow-plugins (or set FEDPRIV_ALLOW_PLUGINS=1" in done.stderr
    assert {path.name for path in marks.iterdir()} <= {"marks.py", "__pycache__"}


@pytest.mark.parametrize("override", OUTSIDE)
def test_plugin_of_wrong_type_not_called(override: str, marks: Path):
    done = CliRunner().invoke(app, ["plan", str(RUN), override, "--allow-plugins"])
    assert done.exit_code == 2
    assert (marks / "imported").exists(), done.stderr
    assert not (marks / "called").exists()
    assert len(done.stderr.splitlines()) == 1


def test_resume_and_topology_need_allow_plugins(marks: Path):
    folder = marks / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text(RUN.read_text().replace("model: softmax", "model: 'marks:Net'"))
    (folder / "ledger.jsonl").write_text('{"fedpriv_ledger": 1}\n')
    for words in (["resume", str(folder)], ["topology", "marks:mark", "4"]):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 2
        assert not (marks / "imported").exists(), words


def test_allow_plugins_flag_for_one_command(marks: Path):
    assert CliRunner().invoke(app, ["plan", str(RUN), "model='marks:Net'", "--allow-plugins"]).exit_code == 2
    assert not plugins.are_allowed()
    with pytest.raises(ConfigError, match="allow-plugins"):
        resolve_object("marks:Net")


def test_allow_plugins_context_manager(marks: Path):
    override = [f"model={{name: '{__name__}:Own', width: 3}}"]
    with pytest.raises(ConfigError, match=r"with fedpriv\.allow_plugins\(\)"):
        load_config(RUN, override)
    with plugins.allow_plugins():
        assert load_config(RUN, override).model.options == {"width": 3}


@pytest.mark.usefixtures("allow_plugins")
@pytest.mark.parametrize("reference", ["os:system", "shutil:rmtree", "builtins:print", "builtins:int"])
def test_schedule_unsuitable_function_raises(reference: str):
    with pytest.raises(ConfigError, match=reference):
        load_config(RUN, [f"privacy.schedule={{function: '{reference}'}}"])


# --- what is what


class Own(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()


def own(width: int) -> Own:
    return Own(width)


def either(width: int) -> Own | nn.Linear:
    return Own(width)


def any_one(width: int) -> Any:
    return Own(width)


class OwnConstraint:
    def __init__(self) -> None:
        self.equality = (False,)

    def values(self, model, inputs, targets):
        return torch.zeros(1)

    def sums(self):
        return None


def own_constraint() -> Constraint:
    return OwnConstraint()


@pytest.mark.parametrize("found", [Own, own, either, nn.Linear])
def test_checked_accepts_module_factories(found: Callable[..., Any]):
    assert check_class(found, (nn.Module,), "x:y", "model") is found


@pytest.mark.parametrize("found", [Pair, pair, unannotated, any_one, "Own", nn.Module(), torch.relu, print])
def test_checked_rejects_other_objects(found: object):
    with pytest.raises(ConfigError, match="model = 'x:y'"):
        check_class(found, (nn.Module,), "x:y", "model")


@pytest.mark.parametrize("found", [LossAtMost, ClassLossAtMost, OwnConstraint, own_constraint])
def test_checked_protocol_by_methods(found: Callable[..., Any]):
    assert check_class(found, CONSTRAINTS.makes, "x:y", "problem.constraints") is found
    assert check_class(Always, ACTIVITIES.makes, "x:y", "network.activity") is Always
    for kinds in (ACTIVITIES.makes, (nn.Module, Activity)):
        with pytest.raises(ConfigError):
            check_class(OwnConstraint, kinds, "x:y", "network.activity")


# --- installed packages


def installed(folder: Path, name: str, *lines: str) -> None:
    """What an installer leaves of a package with entry points."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    (folder / f"{name}.py").write_text(
        "import fedpriv, torch\n"
        "class Wide(torch.nn.Linear):\n"
        "    'A wide layer.'\n"
        "    def __init__(self, n_features: int, n_classes: int, width: int = 3) -> None:\n"
        "        super().__init__(n_features, n_classes)\n"
        "    def forward(self, x: torch.Tensor) -> torch.Tensor:\n"
        "        return super().forward(x.flatten(1))\n"
        "def slow(rate: float = 0.1) -> fedpriv.Strategy:\n"
        "    'Slow averaging.'\n"
        "    return fedpriv.fedavg(rate)\n"
        "def few() -> fedpriv.data.Split:\n"
        "    train, test = torch.zeros(2, 8, 2)\n"
        "    parts = [torch.utils.data.TensorDataset(x, torch.arange(8) % 2) for x in (train, test)]\n"
        "    return fedpriv.data.Split(*parts, 2, None, 'few')\n"
        "def nothing():\n"
        "    raise AssertionError('called')\n"
    )


def test_entry_points_register_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    installed(
        tmp_path,
        "zz_wide",
        *("[fedpriv.models]", "wide = zz_wide:Wide", "softmax = zz_wide:nothing"),
        *("[fedpriv.strategies]", "slow = zz_wide:slow", "[fedpriv.data]", "few = zz_wide:few"),
    )
    words = ["model={name: wide, width: 4}", "strategy={name: slow, rate: 0.5}"]
    words += ["data={name: few, partition: {kind: iid, n_clients: 2}}"]
    planned = CliRunner().invoke(app, ["plan", str(RUN), *words])
    assert planned.exit_code == 0, planned.stderr
    assert "slow, 30 rounds" in planned.stdout
    assert "wide" in MODELS and MODELS["wide"].description == "A wide layer. (of zz_wide)"
    assert MODELS["softmax"].description.startswith("softmax regression"), "fedpriv's own names stay"
    assert "did you mean 'wide'" in CliRunner().invoke(app, ["plan", str(RUN), "model=widee"]).stderr


def test_broken_entry_point_raises_with_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    installed(tmp_path, "zz_broken", "[fedpriv.models]", "gone = zz_broken:Gone", "odd = zz_broken:nothing")
    with pytest.raises(ConfigError, match=r"from zz_broken cannot be loaded .AttributeError"):
        find("gone", MODELS, "model")
    with pytest.raises(ConfigError, match=r"entry point fedpriv\.models = 'zz_broken:nothing'"):
        find("odd", MODELS, "model")


FOR_CHECKERS = """
from __future__ import annotations
from typing import TYPE_CHECKING
from torch import nn
if TYPE_CHECKING:
    from decimal import Decimal

class Net(nn.Linear):
    def __init__(self, width: Decimal = 3) -> None:
        super().__init__(width, 2)
"""


@pytest.mark.usefixtures("allow_plugins")
def test_unreadable_annotation_raises(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "for_checkers.py").write_text(FOR_CHECKERS)
    with pytest.raises(ConfigError, match=r"for_checkers:Net\.__init__.*name 'Decimal' is not defined.*import"):
        load_config(RUN, ["model={name: 'for_checkers:Net', width: nonsense}"])


# --- functions have one shape


DP_GD = "strategy={{name: dp_gd, learning_rate: 0.1, regularizer: {}}}".format
SHAPES = {
    "problem.constraints=[{function: 'shapes:mean_at_most_one', equality: [false]}]": None,
    "problem.objective={function: 'shapes:mean_at_most_one'}": None,
    "network={topology: ring, activity: {function: 'shapes:links'}}": None,
    "strategy={name: decentralized_sgd, step_size: {function: 'shapes:number'}}": None,
    "strategy={name: iadmm_trust, radius: {function: 'shapes:number'}}": None,
    "strategy={name: iadmm_prox, rho: {function: 'shapes:number'}}": None,
    DP_GD("{function: 'shapes:heavy'}"): None,
    "privacy.schedule={function: 'shapes:number'}": None,
    "problem.constraints=['shapes:mean_at_most_one']": r"write \{function: 'shapes:mean_at_most_one'\}",
    "network={topology: ring, activity: 'shapes:links'}": r"write \{function: 'shapes:links'\}",
    "strategy={name: decentralized_sgd, step_size: 'shapes:number'}": r"write \{function: 'shapes:number'\}",
    "strategy={name: iadmm_prox, rho: 'shapes:number'}": r"write \{function: 'shapes:number'\}",
    DP_GD("'shapes:heavy'"): r"write \{function: 'shapes:heavy'\}",
    DP_GD("{function: 'shapes:number'}"): "has the return annotation float",
    DP_GD("{function: 'shapes:weighted'}"): "a function without required arguments",
    DP_GD("{function: 'shapes:half'}"): "Half without strong_convexity and remainder",
    "privacy.schedule='shapes:number'": r"write \{function: 'shapes:number'\}",
    "problem.constraints=[{function: 'shapes:number'}]": "has the return annotation float",
    "problem.constraints=[{function: 'shapes:one'}]": "must be a function of 3 arguments, the model, inputs, targets",
}


@pytest.mark.usefixtures("allow_plugins")
@pytest.mark.parametrize("override", SHAPES)
def test_function_shape_same_everywhere(override: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "shapes.py").write_text(
        "from torch import Tensor\n"
        "def mean_at_most_one(model, inputs, targets) -> Tensor:\n"
        "    return model.losses(inputs, targets).mean()[None] - 1\n"
        "def one(model) -> Tensor: ...\n"
        "def links(round_index: int) -> list[tuple[int, int]]:\n    return [(0, 1)]\n"
        "def number(t: int) -> float:\n    return 1.0\n"
        "from fedpriv.strategies import L2, Proximal\n"
        "def heavy() -> L2:\n    return L2(0.5)\n"
        "def weighted(lam: float) -> L2:\n    return L2(lam)\n"
        "class Half:\n"
        "    def value(self, x): ...\n"
        "    def prox(self, x, step): ...\n"
        "def half() -> Proximal:\n    return Half()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def read() -> tuple[Any, ...]:
        config = load_config(RUN, [override])
        if "strategy=" not in override:
            config.privacy.schedule.build()
            return (config, config.problem.everyones(), config.network.build(3))
        return (config, config.recipe(10))

    if SHAPES[override]:
        with pytest.raises(ConfigError, match=SHAPES[override]):
            read()
        return
    config = read()[0]
    written = tmp_path / "again.yaml"
    written.write_text(to_yaml(config))
    assert "name: function" not in written.read_text()
    assert fingerprint(load_config(written)) == fingerprint(config)


@pytest.mark.usefixtures("allow_plugins")
def test_own_regularizer_equals_l2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "own_penalty.py").write_text(
        "class Ridge:\n"
        "    strong_convexity = 0.5\n"
        "    @property\n"
        "    def remainder(self): return self\n"
        "    def value(self, x): return 0.25 * x.square().sum(-1)\n"
        "    def prox(self, x, step): return x / (1 + 0.5 * step)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def trained(regularizer: str) -> Any:
        training = build_training(load_config(RUN, [DP_GD(regularizer), "rounds=3", "privacy={noise_on: none}"]))
        for _ in training:
            pass
        return training.result().params

    own, l2 = trained("{function: 'own_penalty:Ridge'}"), trained("{l2: {lam: 0.5}}")
    assert own.sub(trained("zero")).abs().max() > 1e-3
    torch.testing.assert_close(own, l2, rtol=0, atol=1e-6)
