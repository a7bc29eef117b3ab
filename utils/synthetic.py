"""Random files of TpuGraphs' shape whose true costs are known: for tests and for speed at any size.

A layout program is a chain of dots and reshapes (source nlp) or of convolutions (source xla); its
true runtime is additive: a slot that is not row-major costs its bytes, and so does a copy between
two configurable nodes that disagree. A tile kernel is one dot, whose tiles cost a start each and
more when they are small or do not fit into the cache.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from utils.files import save_npz
from utils.schema import (
    COLLECTIONS,
    CONFIGURABLE,
    MAX_RANK,
    NODE_COLUMN,
    NODE_FEATURES,
    OPCODE_ID,
    SPLITS,
    TILE_COLUMNS,
    UNSET,
)

FAMILIES = {
    "nlp": ("mlp", "attention", "decoder", "mixer", "lstm", "gru", "swiglu", "embed"),
    "xla": ("convnet", "resnet", "unet", "mobile", "vit", "tcn", "autoencoder", "gcn"),
    "tile": ("dot", "dense", "project", "scores", "head", "gate", "fused", "lowrank"),
}
GRAPHS = {"train": 4, "valid": 2, "test": 2}  # files of a collection unless told otherwise
Arrays = dict[str, np.ndarray]


class _Program:
    """Nodes and edges in topological order while a program is put together."""

    def __init__(self) -> None:
        self.opcode: list[int] = []
        self.feat: list[np.ndarray] = []
        self.edges: list[tuple[int, int]] = []
        self.shape: list[tuple[int, ...]] = []
        self.slots: dict[int, tuple[tuple[int, ...], ...]] = {}  # configurable node: its shapes

    def add(self, opcode: str, shape: tuple[int, ...], operands: tuple[int, ...] = (), **extra):
        row = np.zeros(len(NODE_FEATURES), np.float32)
        for name, column in NODE_COLUMN.items():
            row[column] = name.endswith("_product")  # the product of an empty list is 1
        row[NODE_COLUMN["shape_element_type_is_f32"]] = 1
        values = _listed("shape_dimensions", shape)
        values |= {f"layout_minor_to_major_{i}": d for i, d in enumerate(_row_major(len(shape)))}
        for name, value in (values | extra).items():
            row[NODE_COLUMN[name]] = value
        node = len(self.feat)
        self.feat.append(row)
        self.opcode.append(OPCODE_ID[opcode])
        self.shape.append(shape)
        self.edges += [(node, operand) for operand in sorted(set(operands))]
        if opcode in CONFIGURABLE:
            self.slots[node] = (shape, *(self.shape[o] for o in operands))
        return node

    def parameter(self, shape: tuple[int, ...]) -> int:
        number = self.opcode.count(OPCODE_ID["parameter"])
        return self.add("parameter", shape, parameter_number=number)

    def arrays(self) -> Arrays:
        feat = np.stack(self.feat)
        feat[-1, NODE_COLUMN["is_root"]] = 1
        return {
            "node_feat": feat,
            "node_opcode": np.array(self.opcode, np.uint8),
            "edge_index": np.array(self.edges, np.int64).reshape(-1, 2),
        }


def _row_major(rank: int) -> tuple[int, ...]:
    return tuple(range(rank - 1, -1, -1))


def _listed(name: str, values) -> dict[str, float]:
    """{name}_0.., _sum and _product of a list of at most six entries."""
    entries = {f"{name}_{i}": float(v) for i, v in enumerate(values)}
    return entries | {f"{name}_sum": float(sum(values)), f"{name}_product": float(np.prod(values))}


def _dense_program(rng: np.random.Generator, layers: int) -> _Program:
    program = _Program()
    batch, width = int(rng.choice([16, 24, 64])), int(rng.choice([32, 48, 64, 128]))
    x = program.parameter((batch, width))
    for layer in range(layers):
        out = int(rng.choice([32, 40, 64, 96, 128]))
        weight, bias = program.parameter((width, out)), program.parameter((out,))
        dot = program.add("dot", (batch, out), (x, weight))
        spread = program.add("broadcast", (batch, out), (bias,), dimensions_0=1)
        total = program.add("add", (batch, out), (dot, spread))
        x = program.add(str(rng.choice(["tanh", "exponential", "maximum"])), (batch, out), (total,))
        if layer % 3 == 1:  # split heads and join them again
            heads = program.add("reshape", (batch, out // 8, 8), (x,))
            scaled = program.add("multiply", (batch, out // 8, 8), (heads,))
            x = program.add("reshape", (batch, out), (scaled,))
        width = out
    return program


def _convolution_program(rng: np.random.Generator, layers: int) -> _Program:
    program = _Program()
    batch, size, width = int(rng.choice([2, 4])), int(rng.choice([8, 14, 16])), 3
    x = program.parameter((batch, size, size, width))
    for _ in range(layers):
        out, window = int(rng.choice([8, 16, 24, 32])), int(rng.choice([1, 3]))
        kernel = program.parameter((window, window, width, out))
        x = program.add(
            "convolution",
            (batch, size, size, out),
            (x, kernel),
            **_listed("window_size", (window, window)),
            **_listed("window_stride", (1, 1)),
            **_listed("window_padding_low", (window // 2,) * 2),
            **_listed("window_padding_high", (window // 2,) * 2),
            **_listed("window_window_dilation", (1, 1)),
            **_listed("window_base_dilation", (1, 1)),
            window_window_reversal_false_count=2,
            **_convolution_dimensions(),
        )
        x = program.add("maximum", (batch, size, size, out), (x,))
        width = out
    flat = program.add("reshape", (batch, size * size * width), (x,))
    weight = program.parameter((size * size * width, 10))
    program.add("dot", (batch, 10), (flat, weight))
    return program


def _convolution_dimensions() -> dict[str, float]:
    """Input [batch, space, space, feature], kernel [space, space, in, out]."""
    name = "convolution_dim_numbers"
    return {
        f"{name}_input_feature_dim": 3,
        f"{name}_input_spatial_dims_0": 1,
        f"{name}_input_spatial_dims_1": 2,
        f"{name}_kernel_input_feature_dim": 2,
        f"{name}_kernel_output_feature_dim": 3,
        f"{name}_kernel_spatial_dims_1": 1,
        f"{name}_output_feature_dim": 3,
        "feature_group_count": 1,
        "batch_group_count": 1,
    }


def layout_graph(
    seed: int,
    source: str = "nlp",
    search: str = "random",
    layers: int = 5,
    configs: int = 60,
    rounds: int = 4,
    noise: float = 0.02,
) -> tuple[Arrays, np.ndarray]:
    """One labelled layout file's arrays and the true runtimes in ns, float64 [configs].

    `search` "random" draws every node's layouts on its own; "default" changes one to three nodes
    of the compiler's own choice, so configurations cluster and repeat. Each of the `rounds`
    measurements carries log-normal `noise`; the file's runtime is their median.
    """
    rng = np.random.default_rng([seed, 1])
    program = (_dense_program if source == "nlp" else _convolution_program)(rng, layers)
    nodes = np.array(list(program.slots))
    chosen = _draw_choices(rng, search, configs, len(nodes))  # bool: this node is constrained
    feat = np.full((configs, len(nodes), 18), UNSET, np.float32)
    cost = np.full(configs, 4.0 * sum(np.prod(shape) for shape in program.shape))
    outputs: dict[int, np.ndarray] = {}  # node -> 'its output is not row-major', bool [configs]
    for j, node in enumerate(nodes):
        for slot, shape in enumerate(program.slots[node]):
            rank, size = len(shape), 4.0 * np.prod(shape)
            options = [_row_major(rank), tuple(range(rank))]
            column = MAX_RANK * slot
            pick = rng.integers(2, size=configs) if rank > 1 else np.zeros(configs, np.int64)
            layout = np.array(options, np.float32)[pick]
            feat[:, j, column : column + rank] = np.where(chosen[:, j, None], layout, UNSET)
            odd = chosen[:, j] & (pick == 1)
            cost += odd * size
            if slot == 0:
                outputs[node] = odd
            elif slot == 1:  # the nearest configurable node before this one
                before = nodes[j - 1] if j else None
                cost += (odd != outputs[before]) * size if before is not None else 0
    arrays = program.arrays() | {
        "node_config_ids": nodes.astype(np.int64),
        "node_config_feat": feat,
        "node_splits": np.array([[0, len(program.shape)]], np.int64),
    }
    return _measured(rng, arrays, cost, rounds, noise), cost


def _draw_choices(rng: np.random.Generator, search: str, configs: int, nodes: int) -> np.ndarray:
    """Which nodes each configuration constrains, bool [configs, nodes]."""
    if search == "random":
        density = rng.choice([0.0, 0.25, 0.5, 1.0], configs)
        return rng.random((configs, nodes)) < density[:, None]
    changes = rng.integers(0, 4, configs)
    order = rng.random((configs, nodes)).argsort(1)
    return order < changes[:, None]


def tile_graph(
    seed: int, configs: int = 20, rounds: int = 4, noise: float = 0.02
) -> tuple[Arrays, np.ndarray]:
    """One labelled tile file's arrays and the true runtimes in ns, float64 [configs]."""
    rng = np.random.default_rng([seed, 2])
    m, k, n = (int(v) for v in rng.choice([64, 128, 256, 512], 3))
    program = _Program()
    dot = program.add("dot", (m, n), (program.parameter((m, k)), program.parameter((k, n))))
    if rng.random() < 0.5:
        program.add("tanh", (m, n), (dot,))
    sides = rng.choice([8, 16, 32, 64, 128], configs), rng.choice([8, 32, 128], configs)
    tiles = np.minimum(np.stack(sides, 1), (m, n))
    feat = np.zeros((configs, 24), np.float32)
    column = {name: i for i, name in enumerate(TILE_COLUMNS)}
    feat[:, [column["output_bounds_0"], column["output_bounds_1"]]] = tiles
    feat[:, column["output_bounds_sum"]] = tiles.sum(1)
    feat[:, column["output_bounds_product"]] = tiles.prod(1)
    count = np.ceil(m / tiles[:, 0]) * np.ceil(n / tiles[:, 1])
    working_set = 4.0 * (tiles.prod(1) + k * tiles.sum(1))
    untiled = m * n * k / 8.0
    cost = untiled * (1 + (working_set > 2**17)) + 300.0 * count + count * k * 4
    arrays = _measured(rng, program.arrays() | {"config_feat": feat}, cost, rounds, noise)
    arrays["config_runtime_normalizers"] = np.full(configs, round(1.2 * untiled), np.int64)
    return arrays, cost


def _measured(rng, arrays: Arrays, cost: np.ndarray, rounds: int, noise: float) -> Arrays:
    """Add config_runtime_rounds (unless `rounds` is 0) and config_runtime, their median."""
    measured = cost[:, None] * np.exp(noise * rng.standard_normal((len(cost), max(rounds, 1))))
    if rounds:
        arrays["config_runtime_rounds"] = np.rint(measured).astype(np.int64)
    arrays["config_runtime"] = np.rint(np.median(measured, 1)).astype(np.int64)
    return arrays


def write_data(
    folder: Path | str,
    seed: int = 0,
    graphs: dict[str, int] = GRAPHS,
    configs: int = 40,
    layers: int = 4,
    rounds: int = 4,
    noise: float = 0.02,
    collections: tuple[str, ...] = COLLECTIONS,
    first: int = 0,
) -> Path:
    """Write a data folder like data/sample: files of every split and solution.npz. Returns it.

    Every second valid and test graph is of a family that train does not have. Test files are
    unlabelled: runtimes 0, tile normalizers 1, no rounds. Graphs are numbered from `first`.
    """
    folder = Path(folder)
    solution: Arrays = {}
    for number, collection in enumerate(collections):
        source = "tile" if collection.startswith("tile") else collection.split(":")[1]
        for split, count in graphs.items():
            for i in range(first, first + count):
                own = seed * 1_000_003 + number * 10_007 + SPLITS.index(split) * 1_009 + i
                if source == "tile":
                    arrays, _ = tile_graph(own, configs, rounds, noise)
                else:
                    search = collection.split(":")[2]
                    arrays, _ = layout_graph(own, source, search, layers, configs, rounds, noise)
                families = FAMILIES[source]
                family = families[i % 5] if split == "train" or i % 2 == 0 else families[5 + i % 3]
                name = f"{family}.{split}{i}"
                if split == "test":
                    solution |= _hide_labels(arrays, f"{collection}:{name}")
                save_npz(folder / collection.replace(":", "/") / split / f"{name}.npz", **arrays)
    if solution:
        save_npz(folder / "solution.npz", **solution)
    return folder


def _hide_labels(arrays: Arrays, identity: str) -> Arrays:
    """Zero a test file's runtimes in place and return them as entries of solution.npz."""
    solution = {identity: arrays["config_runtime"]}
    rounds = arrays.pop("config_runtime_rounds", None)
    if rounds is not None:
        solution[f"{identity}/rounds"] = rounds
    arrays["config_runtime"] = np.zeros_like(arrays["config_runtime"])
    if "config_runtime_normalizers" in arrays:
        arrays["config_runtime_normalizers"] = np.ones_like(arrays["config_runtime_normalizers"])
    return solution
