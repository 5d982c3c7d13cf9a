"""Training between organisations without a server: each site runs its own node and talks to its neighbours only."""

from __future__ import annotations
