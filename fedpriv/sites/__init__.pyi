from .descriptor import SiteDescriptor
from .federation import Federation, SiteRound, Transport
from .federation_plan import FederationPlan, propose, propose_statistics
from .site import Site

__all__ = [
    "Federation",
    "FederationPlan",
    "Site",
    "SiteDescriptor",
    "SiteRound",
    "Transport",
    "propose",
    "propose_statistics",
]
