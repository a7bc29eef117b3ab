"""The deep opponent's network: GraphSAGE over a graph that all configurations of a batch share.

Every configuration is a pass through the graph: node features and an embedding of the layouts at
configurable nodes, GraphSAGE layers over both directions of the edges, pooling, a ranking head.
The messages of b configurations are one sparse product [n, n] x [n, b h]. For tile the
configuration joins after pooling: the graph is passed once.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import SAGEConv

from utils.gnn_graphs import GnnGraph

OPCODES = 256
CLIP = 6.0  # standard deviations; an unseen program may be far outside of what was seen


@dataclass(frozen=True)
class Settings:
    """What is chosen by hand."""

    hidden: int = 64
    layers: int = 4
    extra: bool = False  # the inputs that the trees have, see `gnn_graphs`
    sized: bool = False  # pool over configurable nodes also weighted by their size
    cross: bool = False  # attention between the configurations of a batch
    loss: str = "hinge"  # pairwise margin loss, or "listmle"
    margin: float = 0.1
    weighted: bool = True  # pairs count by the root of the difference of their log targets
    epochs: int = 60  # an epoch takes one batch from every graph, and ten at least
    batch: int = 32  # configurations of one graph; fewer where memory asks for it
    rate: float = 2e-3  # highest learning rate: a short rise, then a cosine
    decay: float = 1e-4
    dropout: float = 0.0
    patience: int = 6  # looks at the held-out graphs without gain after which training stops
    looks: int = 20  # how many looks in all


class SharedSAGE(SAGEConv):
    """GraphSAGE on float32 [n, b, h]: b configurations of one graph in one sparse product."""

    def __init__(self, width: int, root: bool) -> None:
        super().__init__(width, width, aggr="sum", root_weight=root, bias=root, node_dim=0)

    def message_and_aggregate(self, edge_index: Tensor, x) -> Tensor:
        values = x[0]
        return torch.sparse.mm(edge_index, values.flatten(1)).view(values.shape)


class Layer(nn.Module):
    """Both directions, a norm, a residual; with `cross` also a look at the other configurations."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        width = settings.hidden
        self.producers, self.consumers = SharedSAGE(width, True), SharedSAGE(width, False)
        self.norm = nn.LayerNorm(width)
        self.dropout = settings.dropout
        self.cross = nn.Linear(2 * width, width) if settings.cross else None
        self.heat = nn.Parameter(torch.ones(width)) if settings.cross else None

    def forward(self, x: Tensor, matrices: tuple[Tensor, Tensor]) -> Tensor:
        y = self.producers(x, matrices[0]) + self.consumers(x, matrices[1])
        y = functional.relu(self.norm(y))
        if self.cross is not None:  # channel by channel, over the configurations of the batch
            share = torch.softmax(y * self.heat, dim=1)
            y = functional.relu(self.cross(torch.cat([y, y * share * y.shape[1]], dim=2)))
        return x + functional.dropout(y, self.dropout, self.training)


class Network(nn.Module):
    """Scores float32 [b] of some configurations of one graph, larger = slower."""

    def __init__(self, settings: Settings, node_width: int, row_width: int, tile: bool) -> None:
        super().__init__()
        width, self.tile = settings.hidden, tile
        for name, size in (("node", node_width), ("row", row_width)):
            self.register_buffer(f"{name}_mean", torch.zeros(size))
            self.register_buffer(f"{name}_scale", torch.ones(size))
        self.opcode = nn.Embedding(OPCODES, width)
        self.node = nn.Linear(node_width, width)
        self.row = nn.Sequential(nn.Linear(row_width, width), nn.ReLU(), nn.Linear(width, width))
        self.joined = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width))
        self.layers = nn.ModuleList(Layer(settings) for _ in range(settings.layers))
        self.sized = settings.sized and not tile
        self.head = nn.Sequential(
            nn.Linear((3 + self.sized) * width, width), nn.ReLU(), nn.Linear(width, width),
            nn.ReLU(), nn.Linear(width, 1),
        )  # fmt: skip

    def forward(self, graph: Tensors, rows: Tensor) -> Tensor:
        """rows: int64 [nc, b] of a layout graph, int64 [b] numbers of configurations of a tile."""
        node = self.node(_scaled(graph.node, self.node_mean, self.node_scale))
        node = functional.relu(node + self.opcode(graph.opcode))  # [n, h]
        row = self.row(_scaled(graph.row, self.row_mean, self.row_scale))  # [R, h]
        if self.tile:
            x = self.passed(node[:, None], graph)  # [n, 1, h]
            pooled = torch.cat([x.mean(0), x.amax(0)], dim=1).expand(len(rows), -1)
            return self.head(torch.cat([pooled, row[rows]], dim=1))[:, 0]
        row = self.joined(torch.cat([row, node[graph.row_node]], dim=1))
        chosen = functional.embedding(rows, row)  # [nc, b, h]; its gradient is added up in order
        x = node[:, None].expand(-1, rows.shape[1], -1).index_add(0, graph.config_nodes, chosen)
        x = self.passed(x, graph)
        own = x.index_select(0, graph.config_nodes)
        pooled = [x.mean(0), own.mean(0), own.amax(0)]
        if self.sized:
            pooled.append(torch.einsum("n,nbh->bh", graph.size, own))
        return self.head(torch.cat(pooled, dim=1))[:, 0]

    def passed(self, x: Tensor, graph: Tensors) -> Tensor:
        """float32 [n, b, h] after all layers."""
        for layer in self.layers:
            x = layer(x, graph.matrices)
        return x


def _scaled(values: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    return ((values - mean) / scale).clamp(-CLIP, CLIP)


@dataclass(frozen=True)
class Tensors:
    """What the network reads of a graph, on the device."""

    node: Tensor
    opcode: Tensor
    row: Tensor
    matrices: tuple[Tensor, Tensor]  # means over producers, over consumers: sparse [n, n]
    row_node: Tensor | None
    config_nodes: Tensor | None
    size: Tensor | None


def tensors(graph: GnnGraph, device: str = "cpu") -> Tensors:
    """The arrays of a graph as tensors."""

    def moved(values: np.ndarray | None) -> Tensor | None:
        return None if values is None else torch.from_numpy(values).to(device)

    n, (consumer, producer) = len(graph.opcode), graph.edges.T
    matrices = tuple(
        _mean_matrix(n, rows, columns).to(device)
        for rows, columns in ((consumer, producer), (producer, consumer))
    )
    return Tensors(
        moved(graph.node), moved(graph.opcode), moved(graph.row), matrices,
        moved(graph.row_node), moved(graph.config_nodes), moved(graph.size),
    )  # fmt: skip


def _mean_matrix(n: int, rows: np.ndarray, columns: np.ndarray) -> Tensor:
    """Sparse float32 [n, n]: row u averages over the `columns` that stand beside u."""
    order = np.lexsort((columns, rows))
    count = np.bincount(rows, minlength=n)
    start = torch.from_numpy(np.concatenate([[0], np.cumsum(count)]))
    weight = torch.from_numpy((1.0 / count[rows[order]]).astype(np.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its sparse rows beta
        return torch.sparse_csr_tensor(start, torch.from_numpy(columns[order]), weight, (n, n))
