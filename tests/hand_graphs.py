"""Small graphs written down by hand, for tests of features."""

import numpy as np

from utils.coding import Graph, read_graph
from utils.dataset import index
from utils.files import save_npz
from utils.schema import MAX_RANK, NODE_COLUMN, NODE_FEATURES, OPCODE_ID
from utils.synthetic import layout_graph as generate

Layouts = dict[int, tuple[tuple[int, ...], ...]]  # node -> output, input, kernel; () is unset


def node_row(shape, root=False, **columns) -> np.ndarray:
    row = np.zeros(len(NODE_FEATURES), np.float32)
    row[NODE_COLUMN["shape_element_type_is_f32"]] = 1
    for name in NODE_COLUMN:
        row[NODE_COLUMN[name]] += name.endswith("_product")
    for i, size in enumerate(shape):
        row[NODE_COLUMN[f"shape_dimensions_{i}"]] = size
        row[NODE_COLUMN[f"layout_minor_to_major_{i}"]] = len(shape) - 1 - i
    row[NODE_COLUMN["shape_dimensions_product"]] = np.prod(shape)
    row[NODE_COLUMN["is_root"]] = root
    for name, value in columns.items():
        row[NODE_COLUMN[name]] = value
    return row


def layout_graph(nodes, configs: list[Layouts], runtime=None) -> Graph:
    """`nodes`: (opcode, shape, operands in the order of the edge list, columns of node_feat)."""
    chosen = np.array(sorted({node for config in configs for node in config}), np.int64)
    feat = np.full((len(configs), len(chosen), 3, MAX_RANK), -1, np.int8)
    for i, config in enumerate(configs):
        for j, node in enumerate(chosen):
            for k, layout in enumerate(config.get(node, ((), (), ()))):
                feat[i, j, k, : len(layout)] = layout
    return coded(nodes, chosen, feat.reshape(len(configs), len(chosen), 18), runtime)


def coded(nodes, chosen: np.ndarray, feat: np.ndarray, runtime=None) -> Graph:
    """A graph from its nodes and node_config_feat int8 [c, nc, 18]."""
    rows, codes = zip(*(np.unique(column, axis=0, return_inverse=True)
                        for column in feat.swapaxes(0, 1)))
    return Graph(
        file=None,
        **structure(nodes),
        runtime=np.arange(1, len(feat) + 1) if runtime is None else np.asarray(runtime),
        config_nodes=chosen,
        row_start=np.cumsum([0, *map(len, rows)]).astype(np.int32),
        row_layout=np.concatenate(rows),
        codes=np.stack([c.ravel() for c in codes], axis=1).astype(np.uint8),
    )


def structure(nodes) -> dict[str, np.ndarray]:
    edges = [(i, operand) for i, (_, _, operands, _) in enumerate(nodes) for operand in operands]
    return {
        "node_feat": np.stack([node_row(shape, **columns) for _, shape, _, columns in nodes]),
        "opcode": np.array([OPCODE_ID[name] for name, *_ in nodes], np.uint8),
        "edges": np.array(edges, np.int64).reshape(-1, 2),
    }


# Two dots with a tanh between them. Bytes: the first dot 256 = dot(128, 512), the second
# 32 = dot(256, 128). FLOPs: 1024 and 256.
DOTS = [
    ("parameter", (4, 8), (), {}),
    ("parameter", (8, 16), (), {}),
    ("dot", (4, 16), (0, 1), {}),
    ("tanh", (4, 16), (2,), {}),
    ("parameter", (16, 2), (), {}),
    ("dot", (4, 2), (3, 4), {"root": True}),
]
PLAIN, ODD, FREE = (1, 0), (0, 1), ()


def dots(*configs) -> Graph:
    """Configurations of DOTS as six layouts: output, input, kernel of either dot."""
    return layout_graph(DOTS, [{2: config[:3], 5: config[3:]} for config in configs])


FEW = dots(
    (PLAIN, PLAIN, PLAIN, PLAIN, PLAIN, PLAIN),
    (ODD, PLAIN, PLAIN, PLAIN, PLAIN, PLAIN),
    (ODD, PLAIN, ODD, PLAIN, ODD, PLAIN),
    (FREE, FREE, FREE, PLAIN, PLAIN, ODD),
    (ODD, ODD, ODD, ODD, FREE, PLAIN),
    (FREE, FREE, FREE, FREE, FREE, FREE),
)


def column(rows, name: str) -> np.ndarray:
    """A feature of `cost_rows.cost_rows`, float64 [rows], 0 where a row has none."""
    return np.nan_to_num(rows.features[:, rows.names.index(name)]).astype(float)


# One convolution over [batch, space, space, feature]; its kernel is the first operand listed.
CONVOLUTION = [
    ("parameter", (3, 3, 3, 16), (), {}),
    ("parameter", (2, 8, 8, 3), (), {}),
    (
        "convolution",
        (2, 8, 8, 16),
        (0, 1),
        {
            "root": True,
            "window_size_0": 3,
            "window_size_1": 3,
            "window_size_product": 9,
            "window_stride_0": 1,
            "window_stride_1": 1,
            "window_padding_low_0": 1,
            "window_padding_low_1": 1,
            "window_padding_high_0": 1,
            "window_padding_high_1": 1,
            "window_window_dilation_0": 1,
            "window_window_dilation_1": 1,
            "window_base_dilation_0": 1,
            "window_base_dilation_1": 1,
            "convolution_dim_numbers_input_feature_dim": 3,
            "convolution_dim_numbers_input_spatial_dims_0": 1,
            "convolution_dim_numbers_input_spatial_dims_1": 2,
            "convolution_dim_numbers_kernel_input_feature_dim": 2,
            "convolution_dim_numbers_kernel_output_feature_dim": 3,
            "convolution_dim_numbers_kernel_spatial_dims_1": 1,
            "convolution_dim_numbers_output_feature_dim": 3,
            "feature_group_count": 1,
            "batch_group_count": 1,
        },
    ),
]


def renumbered(graph: Graph, seed: int) -> Graph:
    """The same graph with other node numbers (still topological) and columns in another order."""
    rng = np.random.default_rng(seed)
    total = len(graph.opcode)
    users = {node: set() for node in range(total)}
    waits = np.zeros(total, int)
    for user, maker in set(map(tuple, graph.edges.tolist())):
        users[maker].add(user)
        waits[user] += 1
    ready, order = list(np.flatnonzero(waits == 0)), []
    while ready:
        node = ready.pop(rng.integers(len(ready)))
        order.append(node)
        for user in users[node]:
            waits[user] -= 1
            if waits[user] == 0:
                ready.append(user)
    place = np.argsort(order)
    columns = rng.permutation(len(graph.config_nodes))
    parts = [graph.row_layout[graph.row_start[j] : graph.row_start[j + 1]] for j in columns]
    return Graph(
        file=None,
        node_feat=graph.node_feat[order],
        opcode=graph.opcode[order],
        edges=place[graph.edges],
        runtime=graph.runtime,
        config_nodes=place[graph.config_nodes[columns]],
        row_start=np.cumsum([0, *map(len, parts)]).astype(np.int32),
        row_layout=np.concatenate(parts),
        codes=np.asfortranarray(graph.codes[:, columns]),
    )


def random_graph(folder, seed: int) -> Graph:
    """A generated program of dots and reshapes with 40 random configurations."""
    arrays, _ = generate(seed, "nlp", "random", layers=5, configs=40)
    save_npz(folder / "layout" / "nlp" / "random" / "train" / "mlp.a.npz", **arrays)
    return read_graph(index(folder)[0])
