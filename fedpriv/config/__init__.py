"""Configurations: YAML, checked, to runs."""

from fedpriv.config.building import build
from fedpriv.config.files import fingerprint, load_config, to_yaml
from fedpriv.config.forecasting import Forecast, forecast
from fedpriv.config.schema import Config
from fedpriv.config.strategies import STRATEGIES, StrategyEntry
from fedpriv.published.recipe import Recipe

__all__ = [
    "STRATEGIES",
    "Config",
    "Forecast",
    "Recipe",
    "StrategyEntry",
    "build",
    "fingerprint",
    "forecast",
    "load_config",
    "to_yaml",
]
