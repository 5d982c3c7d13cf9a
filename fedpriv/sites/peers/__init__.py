"""Training between organisations without a server: each site runs a node that communicates with its neighbours only."""

from __future__ import annotations
