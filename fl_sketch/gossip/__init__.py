"""Rounds on a graph of clients, without a server."""

from fl_sketch.gossip.flooding import initial_nodes as initial_nodes
from fl_sketch.gossip.flooding import make_gossip_round as make_gossip_round
from fl_sketch.gossip.graph import Graph as Graph
