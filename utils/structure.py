"""The graph behind a file, without its configurations: reading, levels, longest paths, distances.

Everything here is linear or nearly linear in nodes and edges, so that the largest graph of the
release (43,615 nodes) takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import networkx as nx
import numpy as np

from utils.checks import check_headers, check_values
from utils.coding import Graph
from utils.dataset import GraphFile
from utils.sources import open_source


def read_structure(file: GraphFile) -> Graph:
    """The graph of a file with no configuration read: ``runtime`` is empty, ``codes`` None.

    ``config_nodes`` is there for layout files. Raises `DataError` naming the file.
    """
    with open_source(file) as source:
        check_headers(file, source.headers)
        check_values(file, source)
        return Graph(
            file=file,
            node_feat=source.read("node_feat"),
            opcode=source.read("node_opcode"),
            edges=np.ascontiguousarray(source.read("edge_index")),
            runtime=np.empty(0, np.int64),
            config_nodes=None if file.tile else source.read("node_config_ids"),
        )


def configurable(graph: Graph) -> np.ndarray:
    """bool [n]: nodes whose layouts a configuration may set; none in a tile file."""
    mask = np.zeros(len(graph.opcode), dtype=bool)
    if graph.config_nodes is not None:
        mask[graph.config_nodes] = True
    return mask


def to_networkx(graph: Graph) -> nx.DiGraph:
    """The graph in the direction of data, producer to consumer; nodes are numbered 0..n-1."""
    directed = nx.DiGraph()
    directed.add_nodes_from(range(len(graph.opcode)))
    directed.add_edges_from(graph.edges[:, ::-1].tolist())
    return directed


@dataclass(frozen=True)
class Levels:
    """Nodes and edges in topological generations, for sweeps over whole generations.

    A node's level is the number of edges on the longest path from any source to it.
    """

    level: np.ndarray  # int64 [n]
    edges: np.ndarray  # int64 [m, 2], (producer, consumer), sorted by the consumer's level
    bounds: np.ndarray  # int64 [depth + 2]: the edges into level i are bounds[i]:bounds[i + 1]


def find_levels(directed: nx.DiGraph) -> Levels:
    """Topological generations of a DAG. Raises NetworkXUnfeasible if there is a cycle."""
    level = np.zeros(directed.number_of_nodes(), dtype=np.int64)
    depth = -1
    for depth, generation in enumerate(nx.topological_generations(directed)):
        level[generation] = depth
    edges = np.array(list(directed.edges), dtype=np.int64).reshape(-1, 2)
    edges = edges[np.argsort(level[edges[:, 1]], kind="stable")]
    bounds = np.searchsorted(level[edges[:, 1]], np.arange(depth + 2))
    return Levels(level, edges, bounds)


def heaviest_path_to(levels: Levels, weight: np.ndarray) -> np.ndarray:
    """Largest sum of ``weight`` (float64 [n], not negative) over the paths that end at each node,

    itself included: float64 [n].
    """
    total = weight.astype(np.float64)
    for start, stop in zip(levels.bounds[:-1], levels.bounds[1:]):
        producer, consumer = levels.edges[start:stop].T
        np.maximum.at(total, consumer, total[producer] + weight[consumer])
    return total


def heaviest_path_from(levels: Levels, weight: np.ndarray) -> np.ndarray:
    """The same for the paths that start at each node, itself included: float64 [n]."""
    total = weight.astype(np.float64)
    for start, stop in zip(levels.bounds[-2::-1], levels.bounds[:0:-1]):
        producer, consumer = levels.edges[start:stop].T
        np.maximum.at(total, producer, total[consumer] + weight[producer])
    return total


def hops(directed: nx.DiGraph, sources: Iterable[int]) -> np.ndarray:
    """Fewest edges from any of ``sources`` to each node, int64 [n]; -1 where there is no path."""
    distance = np.full(directed.number_of_nodes(), -1, dtype=np.int64)
    sources = list(sources)
    if sources:
        for hop, layer in enumerate(nx.bfs_layers(directed, sources)):
            distance[layer] = hop
    return distance


def peak_live_bytes(graph: Graph, size: np.ndarray) -> float:
    """Largest sum of ``size`` alive at once when nodes run in file order.

    A tensor lives from its node to its last consumer; what nobody reads lives to the end.
    """
    n = len(size)
    if n == 0:
        return 0.0
    last = np.full(n, n - 1)
    read = np.full(n, -1)
    np.maximum.at(read, graph.edges[:, 1], graph.edges[:, 0])
    last = np.where(read >= 0, read, last)
    change = np.zeros(n + 1)
    change[:n] += size
    np.subtract.at(change, last + 1, size)
    return float(np.cumsum(change[:n]).max())
