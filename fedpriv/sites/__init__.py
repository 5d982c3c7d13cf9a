"""Training between organisations, each with data that must not leave it.

A `Site` computes replies from its own data and rejects requests that its plan or its budget does not allow. A
`Federation` is the server: it has a plan, public randomness and released messages, and no data. Requests and replies
are bytes, which any transport may carry.
"""

from __future__ import annotations

import lazy_loader

# a process that only carries bytes does not import any of this
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
