"""Configurations: YAML files that are validated and converted to runs."""

from fedpriv.config.building import build, forecast
from fedpriv.config.files import fingerprint, load_config, to_yaml
from fedpriv.config.schema import Config
from fedpriv.config.strategies import STRATEGIES
from fedpriv.forecast.forecasting import Forecast
from fedpriv.papers.recipe import Recipe

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
