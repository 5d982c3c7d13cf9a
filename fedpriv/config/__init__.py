"""Configurations: YAML files that are checked and made into runs."""

from fedpriv.config.building import build, forecast
from fedpriv.config.files import fingerprint, load_config, to_yaml
from fedpriv.config.schema import Config
from fedpriv.config.strategies import STRATEGIES
from fedpriv.papers.recipe import Recipe
from fedpriv.planning.forecasting import Forecast

__all__ = [
    "STRATEGIES",
    "Config",
    "Forecast",
    "Recipe",
    "build",
    "fingerprint",
    "forecast",
    "load_config",
    "to_yaml",
]
