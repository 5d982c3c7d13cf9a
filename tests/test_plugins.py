import pytest

from fedpriv.errors import ConfigError
from fedpriv.plugins import Entry, build, resolve_object

NUMBER = 3


def pair(left: int, right: int = 2) -> tuple[int, int]:
    return left, right


REGISTRY = {"pair": Entry(pair, "two numbers")}


def test_an_object_of_the_users():
    assert resolve_object(f"{__name__}:pair") is pair
    assert resolve_object("collections:OrderedDict").__name__ == "OrderedDict"


@pytest.mark.parametrize("reference", ["pair", ":pair", "module:", "a.b.c"])
def test_the_form_is_checked(reference):
    with pytest.raises(ConfigError, match=r"model = .*package\.module:Name"):
        resolve_object(reference, field="model")


def test_what_is_not_found_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match="has no 'OrderDict'; did you mean 'OrderedDict'"):
        resolve_object("collections:OrderDict")
    with pytest.raises(ConfigError, match="no module 'colections'; did you mean 'collections'"):
        resolve_object("colections:OrderedDict")
    with pytest.raises(ConfigError, match=r"no module 'fedpriv\.modles'; did you mean 'fedpriv\.models'"):
        resolve_object("fedpriv.modles:MnistCNN")
    with pytest.raises(ConfigError, match=r"no module 'zzqqxx' .*PYTHONPATH"):
        resolve_object("zzqqxx.part:Name")


def test_a_module_that_does_not_import_is_explained(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "needs_more.py").write_text("import zzqqxx\n")
    (tmp_path / "is_broken.py").write_text("1 / 0\n")
    with pytest.raises(ConfigError, match="'needs_more' imports 'zzqqxx': install it"):
        resolve_object("needs_more:Name")
    with pytest.raises(ConfigError, match="importing 'is_broken' failed with ZeroDivisionError"):
        resolve_object("is_broken:Name")


def test_options_and_context():
    assert build("pair", REGISTRY, {"left": 1}, field="x") == (1, 2)
    assert build("pair", REGISTRY, {"right": 5}, field="x", context={"left": 4, "unused": 0}) == (4, 5)
    assert build(f"{__name__}:pair", REGISTRY, {"left": 1, "right": 1}, field="x") == (1, 1)
    assert build("builtins:dict", {}, {"a": 1}, field="x") == {"a": 1}


def test_wrong_options_are_named():
    with pytest.raises(ConfigError, match=r"x\.lefft = 1: pair has no such option; did you mean 'left'"):
        build("pair", REGISTRY, {"lefft": 1}, field="x")
    with pytest.raises(ConfigError, match=r"x\.left = None: pair needs this option"):
        build("pair", REGISTRY, {}, field="x")
    with pytest.raises(ConfigError, match="x = 'pairs': unknown name; did you mean 'pair'"):
        build("pairs", REGISTRY, {}, field="x")
    with pytest.raises(ConfigError, match="is a int, not a class or function"):
        build(f"{__name__}:NUMBER", REGISTRY, {}, field="x")
