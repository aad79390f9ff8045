"""Rounds on a graph of clients, without a server."""

from fl_sketch.gossip.graph import Graph as Graph
from fl_sketch.gossip.relays import RELAYS as RELAYS
from fl_sketch.gossip.relays import Relay as Relay
from fl_sketch.gossip.round import initial_nodes as initial_nodes
from fl_sketch.gossip.round import make_gossip_round as make_gossip_round
