from .card import Card
from .federation import Federation, SiteRound, Transport
from .plan import Proposal, propose
from .site import Site

__all__ = ["Card", "Federation", "Proposal", "Site", "SiteRound", "Transport", "propose"]
