"""Organisations that train together, each with data that must not leave: what a site decides, and what a server asks.

A `Site` answers questions about its own data, and refuses what its plan or its budget does not allow. A `Federation` is
the server: it has a plan, public randomness and released messages. Questions and replies are bytes, which any transport
may carry.
"""

from __future__ import annotations

from fedpriv.sites.card import Card
from fedpriv.sites.federation import Federation, SiteRound, Transport
from fedpriv.sites.plan import Proposal, propose
from fedpriv.sites.site import Site

__all__ = ["Card", "Federation", "Proposal", "Site", "SiteRound", "Transport", "propose"]
