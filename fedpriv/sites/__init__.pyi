from .descriptor import SiteDescriptor
from .federation import Federation, SiteRound, Transport
from .federation_plan import FederationPlan, propose
from .site import Site

__all__ = ["Federation", "FederationPlan", "Site", "SiteDescriptor", "SiteRound", "Transport", "propose"]
