"""Two rounds of parameter-free message passing: what surrounds a node, as a few numbers.

In a round every node takes the mean over its producers and, apart from it, the mean over its
consumers. Nothing is learned on the way, so a graph is passed once, not once a configuration, and
only the last step, from some 400 columns to 16, is fitted: scaling and principal components, on
nodes of training graphs. Without the learned weights this is GraphSAGE's mean aggregator
(Hamilton et al. 2017) with SGC's shortcut (Wu et al. 2019: all the propagation first).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.sparse import csr_array
from sklearn.decomposition import PCA

from utils.coding import Graph
from utils.dataset import GraphFile
from utils.files import save_npz
from utils.node_costs import node_flops, node_traffic
from utils.npz import DataError
from utils.opcode_groups import GROUPS, opcode_group
from utils.progress import progress
from utils.schema import ELEMENT_TYPES, NODE_COLUMN, OPCODE_ID
from utils.structure import configurable, read_structure
from utils.tensors import (
    element_bytes,
    node_bytes,
    node_dimensions,
    node_elements,
    node_rank,
    node_type,
)

ROUNDS = 2
MAX_FIT_NODES = 60_000  # 60,000 x 420 float64: 200 MB
# These have a column of their own; the others are known by their group.
COMMON_OPCODES = (
    "add all-reduce broadcast compare concatenate constant convert convolution copy divide dot "
    "dynamic-slice exponential gather get-tuple-element iota maximum multiply pad parameter reduce "
    "reduce-window reshape scatter select slice sqrt subtract tanh transpose tuple while"
).split()
TYPES = {"float32": "f32 f64", "float16": "bf16 f16", "pred": "pred", "tuple": "tuple"}
TYPES["integer"] = "s8 s16 s32 s64 u8 u16 u32 u64"
INPUT_NAMES: tuple[str, ...] = (
    *(f"group:{name}" for name in GROUPS),
    *(f"opcode:{name}" for name in COMMON_OPCODES),
    *(f"type:{name}" for name in TYPES),
    *"element_bytes rank elements minor second_minor major bytes traffic flops intensity".split(),
    *"producers consumers window root configurable".split(),
)


def _log2(values: np.ndarray) -> np.ndarray:
    """log2(1 + x) / 8: sizes come out between 0 and about 4, like the one-hot columns."""
    return np.log2(1.0 + values) / 8.0


def node_inputs(graph: Graph) -> np.ndarray:
    """What a node says of itself, float32 [n, len(INPUT_NAMES)]: operation, type, sizes, work."""
    n = len(graph.opcode)
    group, kind, rank = opcode_group(graph.opcode), node_type(graph), node_rank(graph)
    dims, row = node_dimensions(graph), np.arange(n)
    traffic, flops = node_traffic(graph), node_flops(graph)
    consumer, producer = graph.edges.T
    window = graph.node_feat[:, NODE_COLUMN["window_size_product"]].astype(np.float64)
    one_hot = [group == i for i in range(len(GROUPS))]
    one_hot += [graph.opcode == OPCODE_ID[name] for name in COMMON_OPCODES]
    one_hot += [
        np.isin(kind, [ELEMENT_TYPES.index(t) for t in names.split()]) for names in TYPES.values()
    ]
    numbers = [
        element_bytes(graph) / 4.0,
        rank / 4.0,
        _log2(node_elements(graph)),
        _log2(dims[row, np.maximum(rank - 1, 0)]),
        _log2(dims[row, np.maximum(rank - 2, 0)] * (rank > 1)),
        _log2(dims[:, 0]),
        _log2(node_bytes(graph)),
        _log2(traffic),
        _log2(flops),
        _log2(flops / np.maximum(traffic, 1.0)),
        _log2(np.bincount(consumer, minlength=n)),
        _log2(np.bincount(producer, minlength=n)),
        _log2(np.maximum(window - 1.0, 0.0)),
        graph.node_feat[:, NODE_COLUMN["is_root"]] > 0,
        configurable(graph),
    ]
    return np.stack([*one_hot, *numbers], axis=1).astype(np.float32)


def mean_matrices(n: int, edges: np.ndarray) -> tuple[csr_array, csr_array]:
    """Two float32 [n, n] matrices: row u of the first averages over u's producers, row v of the

    second over v's consumers. ``edges`` int64 [m, 2]: u consumes v. A node without any has a row
    of zeros.
    """
    consumer, producer = edges.T
    weights = []
    for rows, columns in ((consumer, producer), (producer, consumer)):
        each = 1.0 / np.bincount(rows, minlength=n)[rows].astype(np.float32)
        weights.append(csr_array((each.astype(np.float32), (rows, columns)), shape=(n, n)))
    return weights[0], weights[1]


def block_names(rounds: int = ROUNDS) -> list[str]:
    """Blocks of `propagate` in order: '' the node itself, 'P' its producers, 'C' its consumers,

    'PC' the consumers of its producers (itself among them), and so on: read from the node away.
    """
    names, last = [""], [""]
    for _ in range(rounds):
        last = [name + step for name in last for step in "PC"]
        names += last
    return names


def propagate(inputs: np.ndarray, edges: np.ndarray, rounds: int = ROUNDS) -> np.ndarray:
    """The inputs of every node and the means over its neighbourhoods, one block a path of steps.

    ``inputs`` float32 [n, f] -> float32 [n, f * blocks] in the order of `block_names`.
    """
    producers, consumers = mean_matrices(len(inputs), edges)
    known = {"": np.asarray(inputs, np.float32)}
    for name in block_names(rounds)[1:]:
        # The first step of a path is the last matrix to act.
        step = producers if name[0] == "P" else consumers
        known[name] = step @ known[name[1:]]
    return np.concatenate([known[name] for name in block_names(rounds)], axis=1)


def column_names(rounds: int = ROUNDS) -> list[str]:
    """Names of `propagate`'s columns for `node_inputs`, such as 'PC flops'."""
    return [f"{b or 'self'} {name}" for b in block_names(rounds) for name in INPUT_NAMES]


@dataclass(frozen=True)
class Reducer:
    """From propagated columns to a few: ``(x - center) / scale @ components.T``."""

    center: np.ndarray  # float64 [f]
    scale: np.ndarray  # float64 [f]
    components: np.ndarray  # float64 [k, f]
    explained: np.ndarray  # float64 [k], share of the variance of all scaled columns
    columns: np.ndarray  # str [f], names of the propagated columns
    fitted_on: np.ndarray  # str [g], IDs of the training graphs
    made_of: np.ndarray  # str [], see `utils.made_of`

    def apply(self, propagated: np.ndarray) -> np.ndarray:
        """float32 [n, f] -> float32 [n, k]."""
        matrix = (self.components / self.scale).T
        return (propagated @ matrix - self.center @ matrix).astype(np.float32)


def fit_reducer(
    files: Iterable[GraphFile],
    columns: int = 16,
    seed: int = 0,
    rounds: int = ROUNDS,
    read: Callable[[GraphFile], Graph] = read_structure,
    max_nodes: int = MAX_FIT_NODES,
) -> Reducer:
    """Centre, scale and principal components of sampled nodes of these (training) graphs.

    The same number of nodes is drawn from every graph (all of a smaller one); which ones depends
    on the seed and the graph's ID alone. Rare columns are scaled by no less than .05, so that one
    odd node does not become an axis. Fewer than ``columns`` nodes leave the rest of the columns 0.
    About ``max_nodes`` nodes are drawn in all. Raises DataError without a graph.
    """
    files = list(files)
    if not files:
        raise DataError("no training graph to fit the node vectors on")
    quota = max(16, max_nodes // len(files))
    sample = []
    for file in progress(files, desc="fit node vectors", unit="graph"):
        graph = read(file)
        x = propagate(node_inputs(graph), graph.edges, rounds)
        rng = np.random.default_rng([seed, zlib.crc32(file.id.encode())])
        sample.append(x[np.sort(rng.permutation(len(x))[:quota])])
    x = np.concatenate(sample, dtype=np.float64)
    center, scale = x.mean(0), np.maximum(x.std(0), 0.05)
    x -= center
    x /= scale
    kept = min(columns, *x.shape)
    pca = PCA(kept, svd_solver="covariance_eigh").fit(x)
    components = np.zeros((columns, x.shape[1]))
    components[:kept] = pca.components_
    explained = np.zeros(columns)
    explained[:kept] = np.nan_to_num(pca.explained_variance_ratio_)
    ids, names = np.array([file.id for file in files]), np.array(column_names(rounds))
    return Reducer(center, scale, components, explained, names, ids, np.array(""))


def save_reducer(path: Path, reducer: Reducer) -> None:
    """Write a reducer as plain arrays."""
    save_npz(path, **{f.name: getattr(reducer, f.name) for f in fields(Reducer)})


def load_reducer(path: Path) -> Reducer:
    """Read what `save_reducer` wrote. Raises DataError if it is of other columns than today's."""
    with np.load(path, allow_pickle=False) as arrays:
        missing = [f.name for f in fields(Reducer) if f.name not in arrays]
        if missing:
            raise DataError(f"{path}: no {', '.join(missing)}")
        reducer = Reducer(*(arrays[f.name] for f in fields(Reducer)))
    if reducer.columns.tolist() != column_names():
        raise DataError(f"{path}: fitted on other columns than this version computes; delete it")
    return reducer


def node_vectors(graph: Graph, reducer: Reducer) -> np.ndarray:
    """float32 [n, k]: the reduced neighbourhood of every node."""
    return reducer.apply(propagate(node_inputs(graph), graph.edges))


def group_shares(graph: Graph, node: int) -> pd.DataFrame:
    """What one node hears of operations: a row a neighbourhood, a column an opcode group."""
    x = propagate(node_inputs(graph), graph.edges)[node].reshape(-1, len(INPUT_NAMES))
    rows = [block or "self" for block in block_names()]
    return pd.DataFrame(x[:, : len(GROUPS)], index=rows, columns=list(GROUPS))


def listens_to(reducer: Reducer) -> pd.DataFrame:
    """Variance that each column keeps, in percent of all, split by the blocks it is made of."""
    blocks = [block or "self" for block in block_names()]
    squares = (reducer.components**2).reshape(len(reducer.components), len(blocks), -1).sum(2)
    return pd.DataFrame(100 * reducer.explained[:, None] * squares, columns=blocks)
