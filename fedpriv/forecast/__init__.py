"""Forecasts of runs before they begin: computed, or measured on synthetic data."""
