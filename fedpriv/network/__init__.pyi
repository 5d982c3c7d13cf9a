from .activity import ACTIVITIES, Activity, Outage
from .engines import MESHES
from .graph import Graph, GraphFacts, MixingSteps, graph_line, of_peers
from .links import Undirected, nx
from .local import Cohort, CyclicCohort, Everyone, FixedCohort, PoissonCohort, Star, sum_of
from .mixing import MIXINGS, Weights
from .rounds import (
    ClientInput,
    RoundNetwork,
    SumOnlyView,
    TrainState,
    client_update,
    initial_state,
    run_rounds,
    seeded_torch_draws,
    server_update,
    server_view,
)
from .topology import TOPOLOGIES, checked

__all__ = [
    "ACTIVITIES",
    "MESHES",
    "MIXINGS",
    "TOPOLOGIES",
    "Activity",
    "ClientInput",
    "Cohort",
    "CyclicCohort",
    "Everyone",
    "FixedCohort",
    "Graph",
    "GraphFacts",
    "MixingSteps",
    "Outage",
    "PoissonCohort",
    "RoundNetwork",
    "Star",
    "SumOnlyView",
    "TrainState",
    "Undirected",
    "Weights",
    "checked",
    "client_update",
    "graph_line",
    "initial_state",
    "nx",
    "of_peers",
    "run_rounds",
    "seeded_torch_draws",
    "server_update",
    "server_view",
    "sum_of",
]
