"""What `fedpriv list NAME` tells of every name that `fedpriv list` prints: each option, its bounds, its default."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any, get_args, get_origin

import pytest
import yaml
from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.cli.catalogue import CHOICES, SECTIONS, look_up
from fedpriv.config.base import check
from fedpriv.config.schema import PARTITION_SECTIONS
from fedpriv.data.partition import PARTITIONS
from fedpriv.settings.checks import Bound

GIVEN = {"n_examples", "labels", "writers", "generator"}
ALL = [(kind, name) for kind, rows in look_up(None, {}).items() for name in rows]
NO_OPTIONS = ("mechanisms", "backends", "parallelism", *CHOICES)
EXAMPLES = {
    "a positive, finite number": 1.0,
    "a positive, finite number or {scale, power, ratio} or {cosine, warmup, steps, function}": 1.0,
    "a finite number, at least 0": 1.0,
    "a finite number": 1.0,
    "a number in (0, 1]": 0.5,
    "a whole number, at least 1": 2,
    "a whole number, at least 0": 1,
    "a whole number": 1,
    "[[a whole number, a whole number], ...]": [[0, 1]],
    "text": "some",
    "[text, ...]": ["some", "other"],
    "[a whole number, at least 1, a whole number, at least 1]": [8, 8],
    "'cifar10', 'cifar100', 'svhn', 'fashion_mnist', 'kmnist' or 'emnist'": "svhn",
}


def tables(name: str) -> dict[str, dict[str, str]]:
    return json.loads(CliRunner().invoke(app, ["list", name, "--json"]).stdout)


def builders(kind: str, name: str) -> Iterator[tuple[Callable[..., Any], set[str]]]:
    """What makes the named thing, once for each variant, and its parameters that are no options."""
    if kind == "partitions":
        yield PARTITIONS[name], GIVEN  # pyright: ignore[reportArgumentType] - a name from the table
    elif kind in SECTIONS:
        section = SECTIONS[kind]
        for given, _ in section.forms(name):
            yield section.builder(given), {*section.context}


def bounds(annotation: object) -> list[str]:
    """Words of the bounds anywhere in an annotation."""
    own = [part.words for part in get_args(annotation)[1:] if isinstance(part, Bound)]
    inside = get_args(annotation)[:1] if get_origin(annotation) is Annotated else get_args(annotation)
    return own + [words for part in inside for words in bounds(part)]


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_list_name_shows_options_bounds_defaults(kind: str, name: str):
    sections = list(tables(name).values())
    assert all(rows.pop("is") for rows in sections)
    made = [*builders(kind, name)]
    assert kind in NO_OPTIONS or made
    for builder, given in made:
        parameters = {key: p for key, p in inspect.signature(builder).parameters.items() if key not in given}
        rows = next(rows for rows in sections if set(parameters) <= set(rows))
        hints = inspect.get_annotations(builder.__init__ if inspect.isclass(builder) else builder, eval_str=True)
        for option, parameter in parameters.items():
            assert rows[option].endswith("required") == (parameter.default is parameter.empty), option
            for words in bounds(hints.get(option)):
                assert words.removeprefix("must be ") in rows[option], option
    for option, text in ((option, text) for rows in sections for option, text in rows.items()):
        description, default = text.rsplit("; ", 1)
        assert description
        assert default == "required" or default.endswith(" by default"), option
        assert not re.search(r"\b(int|float|str|bool|None|Literal|typing|collections)\b|[<=]", text), option


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, name in ALL if kind in SECTIONS])
def test_list_defaults_valid_in_config(kind: str, name: str):
    for given, options in SECTIONS[kind].forms(name):
        title = f"{SECTIONS[kind].field}: {', '.join(f'{key}: {value}' for key, value in given.items())[6:]}"
        rows = {
            option: text.rsplit("; ", 1)
            for option, text in tables(name)[title].items()
            if option in options.model_fields
        }
        needed = {
            option: EXAMPLES[description] for option, (description, default) in rows.items() if default == "required"
        }
        written = {
            option: yaml.safe_load(default.removesuffix(" by default"))
            for option, (_, default) in rows.items()
            if default != "required"
        }
        found = [check(options, row).model_dump(mode="json") for row in ({**needed, **written}, needed)]
        assert found[0] == found[1]


def test_list_partition_shows_section_options():
    assert set(PARTITION_SECTIONS) == set(PARTITIONS)
    rows = tables("dirichlet")["data.partition: dirichlet"]
    assert rows["alpha"] == "a positive, finite number; 0.5 by default"
    assert rows["n_clients"] == "a whole number, at least 1; required"
    assert {*rows} == {"is", "n_clients", "seed", "alpha", "min_examples"}


def test_list_choices_match_config_section():
    """A word that is added to a section but not to the list would be missing from the output."""
    for field, choice in CHOICES.values():
        assert {*choice.words} == {choice.neither, *choice.model_fields}, field


@pytest.mark.parametrize(
    ("kind", "word"), [(kind, word) for kind, (_, choice) in CHOICES.items() for word in choice.words]
)
def test_list_choice_options_match_class(kind: str, word: str):
    field, choice = CHOICES[kind]
    rows = tables(word)[f"{field}: {word}"]
    parameters = inspect.signature(choice.words[word]).parameters
    assert word == choice.neither or not parameters or len(rows) > 1
    if {*rows} - {"is", "value"}:
        assert {row.partition(".")[0] for row in rows} - {"is"} == {*parameters}


def test_list_samplings_show_bounds():
    assert (
        tables("allocation")["privacy.sampling: allocation"]["batches"] == "a whole number from 2 to 1000000; required"
    )
    assert tables("poisson")["network.cohort: poisson"]["value"] == "a number in (0, 1]; required"
    assert tables("poisson")["privacy.sampling: poisson"]["rate"] == "a number in (0, 1]; required"
