"""Options are declared once: YAML has those of Python with their types, bounds and defaults, or says why not."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from typing import Any

import pytest
from pydantic import BaseModel

from fedpriv.config.privacy import PrivacySection
from fedpriv.config.problem import ProblemSection
from fedpriv.config.schema import Config, LogSection
from fedpriv.privacy.settings import Privacy
from fedpriv.runs.options import TrainingOptions

# options of Python that YAML writes in another way, and how
ELSEWHERE = {
    "clients": "sections data, model, loss and problem",
    "strategy": "section strategy",
    "privacy": "section privacy",
    "secret_seed": "the same, but it is not written down",
    "network": "section network",
    "test": "log.test: the data set's own test data, or none",
    "folder": "fedpriv train --out",
    "settings": "the fingerprint of the configuration",
    "resume": "fedpriv train --resume",
    "extend": "fedpriv train --extend",
    "after": "data.standardize",
    "metrics": "log.metrics: names of functions",
    "client_tests": "log.client_tests: whether",
    "client_names": "the data set's own names",
}
PRIVACY_ELSEWHERE = {
    "mechanism": "a word",
    "schedule": "a word, a geometric schedule, or the name of a function",
    "published": "strategy.variant",
    "invariants": "a run fills it in",
    "noise": "noise.correlated",
    "budget": "a path as text",
}


def default_of(field: Field[Any]) -> object:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


def sections_with(name: str, sections: tuple[type[BaseModel], ...]) -> list[type[BaseModel]]:
    return [section for section in sections if name in section.model_fields]


@pytest.mark.parametrize("field", fields(TrainingOptions), ids=lambda field: field.name)
def test_train_options_in_yaml_or_excepted(field: Field[Any]):
    if field.name in ("_", *ELSEWHERE):
        return
    (section,) = sections_with(field.name, (Config, LogSection, ProblemSection))
    if field.default is MISSING:
        assert section.model_fields[field.name].is_required()
    else:
        assert section.model_fields[field.name].get_default() == default_of(field)


@pytest.mark.parametrize("field", fields(Privacy), ids=lambda field: field.name)
def test_privacy_settings_in_yaml_or_excepted(field: Field[Any]):
    if field.name not in PRIVACY_ELSEWHERE:
        default = PrivacySection.model_fields[field.name].get_default(call_default_factory=True)
        assert default == default_of(field)


def test_exception_lists_name_real_options():
    assert {*ELSEWHERE} <= {field.name for field in fields(TrainingOptions)}
    assert {*PRIVACY_ELSEWHERE} <= {field.name for field in fields(Privacy)}
