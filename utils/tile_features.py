"""One row of features for each distinct tile configuration of a kernel.

The bounds of a tile run from the most major to the most minor dimension of the kernel's result as
it lies in memory. On a TPU the two minor bounds count registers of 8 x 128 elements, on a CPU
elements; a file whose bounds never exceed the number of registers is taken as the former. From
the bounds follow the number of tiles, their remainders, and how much of every input a tile reads.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from utils.layout_features import prefixed
from utils.node_costs import node_flops
from utils.roles import BATCH, CONTRACTING, FREE, SPATIAL, slot_tensors
from utils.schema import MAX_RANK, NODE_COLUMN, OPCODE_ID, TILE_COLUMNS
from utils.tensors import (
    element_bytes,
    listed,
    node_bytes,
    node_dimensions,
    node_rank,
    operand_pair,
)

REGISTER = (128, 8)  # elements of the minor-most and the second-minor dimension
_PLACES = ("minor", "second", "third", "fourth")  # dimensions from the minor-most on
_OUTPUT = TILE_COLUMNS.index("output_bounds_0")
_KERNEL = TILE_COLUMNS.index("kernel_bounds_0")


def tile_features(
    graph,
    count: np.ndarray | None = None,
    statistics: Mapping[str, float] | None = None,
    pooled: Mapping[str, float] | None = None,
) -> pl.DataFrame:
    """Features float32 of every configuration of a tile graph, one row each.

    `count` int [c] is how often each configuration occurs in its file (None: once each);
    `statistics` (02) and `pooled` (03) become constant columns stat_ and mp_.
    """
    root, sizes, bounds = result_tiles(graph)
    tiles = -(-sizes // bounds)  # [c, rank], minor-most first
    number = tiles.prod(1).astype(np.float64)
    volume = bounds.prod(1).astype(np.float64)
    out_bytes = float(node_bytes(graph)[root])
    width = float(element_bytes(graph)[root])
    shares, input_bytes = _input_shares(graph, root, bounds)
    read = shares @ input_bytes  # bytes of the inputs that one tile reads
    flops = float(node_flops(graph).sum())
    moved = number * (read + volume * width)
    least = max(1.0, float(input_bytes.sum()) + out_bytes)
    set_bytes = read + volume * width
    features = {f"tile_{name}": graph.config_feat[:, i] for i, name in enumerate(TILE_COLUMNS)}
    features |= {
        "tile_count": number,
        "tile_volume": volume,
        "tile_covered": (tiles * bounds).prod(1) / max(1.0, float(sizes.prod())),
        "tile_working_set_bytes": set_bytes,
        "tile_input_bytes": read,
        "tile_moved_bytes": moved,
        "tile_moved_ratio": moved / least,
        "tile_flops": flops / number,
        "tile_flops_per_byte": flops / np.maximum(moved, 1.0),
        "tile_set_share": set_bytes / least,
        "tile_largest_input_share": shares.max(1, initial=0.0),
        "tile_kernel_share": _kernel_share(graph),
    }
    for place, name in enumerate(_PLACES):
        there = place < bounds.shape[1]
        bound = bounds[:, place] if there else np.full(graph.configs, np.nan)
        size = float(sizes[place]) if there else np.nan
        features[f"tile_{name}_bound"] = bound
        features[f"tile_{name}_size"] = np.full(graph.configs, size)
        features[f"tile_{name}_ratio"] = bound / size
        features[f"tile_{name}_tiles"] = np.ceil(size / bound)
        features[f"tile_{name}_covered"] = np.ceil(size / bound) * bound / size
    minor = features["tile_minor_bound"]
    for unit in (8, 128):
        features[f"tile_minor_padding_{unit}"] = np.ceil(minor / unit) * unit / minor
    features["tile_minor_over_second"] = np.log2(minor / features["tile_second_bound"])
    for name in ("count", "working_set_bytes", "moved_bytes", "minor_bound", "covered"):
        values = np.log2(np.maximum(features[f"tile_{name}"], 1e-9))
        features[f"tile_rel_{name}"] = values - values.mean()
    seen = np.ones(graph.configs) if count is None else np.asarray(count, np.float64)
    features["trans_config_log_frequency"] = np.log(seen / max(1.0, seen.sum()))
    constants = prefixed(statistics, "stat_") | prefixed(pooled, "mp_")
    features |= {name: np.full(graph.configs, value) for name, value in constants.items()}
    return pl.DataFrame({name: values.astype(np.float32) for name, values in features.items()})


def tile_count(graph) -> np.ndarray:
    """Number of tiles that cover the result, float64 [c]; 1 where the bounds say nothing."""
    _, sizes, bounds = result_tiles(graph)
    return (-(-sizes // bounds)).prod(1).astype(np.float64)


def result_tiles(graph) -> tuple[int, np.ndarray, np.ndarray]:
    """The node that is tiled, its sizes int64 [r] and the bounds in elements int64 [c, r].

    Sizes and bounds run from the minor-most dimension on. A bound of 0 (not given) is the whole
    dimension. The node is the result of the kernel: of a tuple, its first entry.
    """
    feat = graph.node_feat
    roots = np.flatnonzero(feat[:, NODE_COLUMN["is_root"]] > 0)
    root = int(roots[-1]) if len(roots) else len(feat) - 1  # the entry computation comes last
    first, _ = operand_pair(graph)
    while graph.opcode[root] == OPCODE_ID["tuple"] and first[root] >= 0:
        root = int(first[root])
    rank = int(node_rank(graph)[root])
    order = feat[root, listed("layout_minor_to_major")][:rank].astype(np.int64)
    if sorted(order) != list(range(rank)):
        order = np.arange(rank)[::-1]
    sizes = node_dimensions(graph)[root].astype(np.int64)[order]
    bounds = graph.config_feat[:, _OUTPUT : _OUTPUT + rank][:, ::-1].astype(np.int64)
    most = bounds.max(0, initial=0)
    unit = np.ones(rank, np.int64)
    unit[:2] = REGISTER[:rank]
    if rank and (most <= -(-sizes // unit)).all():
        bounds = bounds * unit
    bounds = np.where(bounds > 0, np.minimum(bounds, sizes), sizes)
    return root, sizes, np.maximum(bounds, 1)


def _input_shares(graph, root: int, bounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Share of each parameter that one tile reads, float64 [c, p], and the parameters' bytes [p].

    A dimension of a parameter is cut like the dimension of the result that it becomes: by the
    roles of a dot or convolution that makes the result's shape, else by equal size, in order.
    """
    dims, rank = node_dimensions(graph).astype(np.int64), node_rank(graph)
    parameters = np.flatnonzero(graph.opcode == OPCODE_ID["parameter"])
    order = graph.node_feat[root, listed("layout_minor_to_major")][: rank[root]].astype(np.int64)
    if sorted(order) != list(range(rank[root])):
        order = np.arange(rank[root])[::-1]
    place = np.argsort(order)  # dimension of the result -> column of bounds
    by_role = _roles_of_parameters(graph, root, dims, rank)
    shares = np.ones((len(bounds), len(parameters)))
    for i, parameter in enumerate(parameters):
        pairs = by_role.get(int(parameter))
        if pairs is None:
            pairs = _equal_sizes(dims[parameter, : rank[parameter]], dims[root, : rank[root]])
        for mine, result, window in pairs:
            bound = bounds[:, place[result]]
            cut = -(-bound * dims[parameter, mine] // dims[root, result]) + window - 1
            shares[:, i] *= np.minimum(1.0, cut / dims[parameter, mine])
    return shares, node_bytes(graph)[parameters]


def _equal_sizes(mine: np.ndarray, result: np.ndarray) -> list[tuple[int, int, int]]:
    """(dimension of a parameter, dimension of the result, window 1) of equal size, each once."""
    pairs, free = [], list(range(len(result)))
    for d in range(len(mine) - 1, -1, -1):  # broadcasting lines up the last dimensions
        for r in reversed(free):
            if mine[d] == result[r] and mine[d] > 1:
                pairs.append((d, r, 1))
                free.remove(r)
                break
    return pairs


def _roles_of_parameters(graph, root: int, dims, rank) -> dict[int, list[tuple[int, int, int]]]:
    """Like `_equal_sizes`, for parameters that a dot or convolution of the result's shape reads."""
    is_main = np.isin(graph.opcode, (OPCODE_ID["dot"], OPCODE_ID["convolution"]))
    main = np.flatnonzero(is_main & (dims == dims[root]).all(1))
    found: dict[int, list[tuple[int, int, int]]] = {}
    if len(main) == 0:
        return found
    tensors, roles = slot_tensors(graph, main)
    first, last = operand_pair(graph)
    for node, tensor, role in zip(main, tensors, roles):
        window = graph.node_feat[node, listed("window_size")].astype(int)
        result = [list(np.flatnonzero(role[0, : rank[node]] == r)) for r in (BATCH, FREE, SPATIAL)]
        for slot in (1, 2):
            source = tensor[slot]
            while first[source] == last[source] >= 0 and _same(dims, source, first[source]):
                source = first[source]  # through conversions and the like
            if source < 0 or graph.opcode[source] != OPCODE_ID["parameter"]:
                continue
            mine = role[slot, : rank[source]]
            free = result[1]
            if graph.opcode[node] == OPCODE_ID["dot"]:
                lefts = int((role[1, : rank[tensor[1]]] == FREE).sum())
                free = free[:lefts] if slot == 1 else free[lefts:]
            pairs = list(zip(np.flatnonzero(mine == BATCH), result[0], [1] * MAX_RANK))
            pairs += list(zip(np.flatnonzero(mine == FREE), free, [1] * MAX_RANK))
            if slot == 1:
                spatial = np.flatnonzero(mine == SPATIAL)
                pairs += list(zip(spatial, result[2], np.maximum(window, 1)))
                groups = graph.node_feat[node, NODE_COLUMN["feature_group_count"]]
                if groups > 1 and free:  # depthwise: each output feature reads its own inputs
                    pairs += [(int(d), free[0], 1) for d in np.flatnonzero(mine == CONTRACTING)]
            found[int(source)] = [(int(d), int(r), int(w)) for d, r, w in pairs]
    return found


def _same(dims: np.ndarray, a: int, b: int) -> bool:
    return bool((dims[a] == dims[b]).all())


def _kernel_share(graph) -> np.ndarray:
    """Part of a convolution's kernel that is used at once, 1 without one, float64 [c]."""
    convolutions = np.flatnonzero(graph.opcode == OPCODE_ID["convolution"])
    bounds = graph.config_feat[:, _KERNEL : _KERNEL + MAX_RANK].astype(np.float64)
    if len(convolutions) == 0 or not bounds.any():
        return np.ones(graph.configs)
    tensors, _ = slot_tensors(graph, convolutions[-1:])
    whole = np.maximum(node_dimensions(graph)[tensors[0, 2]], 1.0).prod()
    return np.maximum(bounds, 1.0).prod(1) / whole
