from .streams import Randomness, new_secret

__all__ = [
    "Randomness",
    "new_secret",
]
