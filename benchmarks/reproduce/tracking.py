"""The experiments of Xie, Liu and Chai (2025): gradient tracking with one exchanged variable."""

from __future__ import annotations

from experiment import Experiment
from tracking_beyond import BEYOND
from tracking_information import INFORMATION
from tracking_mnist import MNIST
from tracking_sensors import SENSORS

TRACKING: list[Experiment] = [*SENSORS, *MNIST, INFORMATION, BEYOND]
