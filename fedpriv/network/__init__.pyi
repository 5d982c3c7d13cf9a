from .activity import ACTIVITIES, Activity, Outage
from .engines import MESHES
from .graph import Graph, GraphFacts, MixingSteps, as_peer_graph, graph_line
from .links import Undirected, nx
from .local import Cohort, CyclicCohort, Everyone, FixedCohort, PoissonCohort, Star, sum_replicated_rows
from .mixing import MIXINGS, Weights
from .rounds import (
    ClientInput,
    RoundNetwork,
    SumOnlyView,
    TrainState,
    client_update,
    initial_state,
    run_rounds,
    seed_torch_draws,
    server_update,
    server_view,
)
from .topology import TOPOLOGIES, check_graph

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
    "as_peer_graph",
    "check_graph",
    "client_update",
    "graph_line",
    "initial_state",
    "nx",
    "run_rounds",
    "seed_torch_draws",
    "server_update",
    "server_view",
    "sum_replicated_rows",
]
