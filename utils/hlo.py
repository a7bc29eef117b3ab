"""Graphs of the TpuGraphs schema from HLO modules, and the release's raw ``.pb`` files.

`module_graph` turns an ``HloModuleProto``, such as
``jax.jit(f).lower(*args).compiler_ir("hlo").as_serialized_hlo_module_proto()``, into the arrays
``node_feat``, ``node_opcode``, ``edge_index`` and ``node_splits``, value for value as the release
makes them. Node i is instruction i of `instructions`: all computations in file order, called
computations before their callers.

Only numpy and protobuf are needed. Source of the rules: the release's own encoder
(https://github.com/google-research-datasets/tpu_graphs, ``process_data/xla``), checked against
its files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError, Message

from utils.hlo_proto import CLASSES, PRIMITIVE_TYPES
from utils.npz import DataError
from utils.schema import MAX_RANK, NODE_COLUMN, NODE_FEATURES, OPCODE_ID, SLOTS, UNSET
from utils.tars import TarProblem, open_bytes

TYPE_COLUMN = {
    number: NODE_COLUMN[f"shape_element_type_is_{name}"] for number, name in PRIMITIVE_TYPES.items()
}
# Lists of node_feat: name -> columns of the entries that are kept.
_ENTRIES = {
    stem: [NODE_COLUMN[f"{stem}_{i}"] for i in range(MAX_RANK) if f"{stem}_{i}" in NODE_COLUMN]
    for stem in (name[:-2] for name in NODE_FEATURES if name.endswith("_0"))
}
_PRODUCTS = [i for i, name in enumerate(NODE_FEATURES) if name.endswith("_product")]
# Computations whose end is a bound in node_splits, by what their name contains.
_MAJOR_COMPUTATIONS = ("cluster", "while", "cond")


def parse_module(data: bytes, name: str = "HLO module") -> Message:
    """Parses a serialized ``HloModuleProto``.

    Raises DataError, which starts with `name`, if `data` is not one or holds no instruction.
    """
    module = _parse("HloModuleProto", data, name)
    if not any(computation.instructions for computation in module.computations):
        raise DataError(f"{name}: not an HLO module, or one without instructions")
    return module


def instructions(module: Message) -> list[tuple[Message, Message]]:
    """(computation, instruction) of every instruction, in node order.

    Marks that ``jax.named_scope`` left are in ``instruction.metadata.op_name``.
    """
    return [(c, instruction) for c in module.computations for instruction in c.instructions]


def module_graph(module: Message, name: str = "HLO module") -> dict[str, np.ndarray]:
    """The graph of an HLO module, by the keys of the schema.

    - ``node_feat`` float32 [n, 140] and ``node_opcode`` uint8 [n] (0: not an opcode of the
      release).
    - ``edge_index`` int64 [m, 2]: rows [u, v], u consumes the output of v, without repeats and in
      lexicographic order, as in the release.
    - ``node_splits`` int64 [1, s]: 0, then the end of every computation whose name contains
      "cluster", "while" or "cond" (entry computations and loops, as XLA named them for
      TensorFlow), then n. JAX names loops otherwise, so its modules have [[0, n]].

    Raises DataError, which starts with `name`, if an instruction uses what is not there.
    """
    nodes = instructions(module)
    features = np.zeros((len(nodes), len(NODE_FEATURES)), np.int64)
    features[:, _PRODUCTS] = 1  # the product of an empty list
    for row, (computation, instruction) in zip(features, nodes):
        _node_features(row, computation, instruction)
    return {
        # From int64 to float32 in one step: rounded above 2^24, as in the release.
        "node_feat": features.astype(np.float32),
        "node_opcode": np.array([OPCODE_ID.get(i.opcode, 0) for _, i in nodes], np.uint8),
        "edge_index": _edges(module, name),
        "node_splits": _node_splits(module),
    }


def read_layout_pb(path: str | Path) -> dict[str, np.ndarray]:
    """Reads a raw file of a layout collection (``ModuleTuningData``) by the keys of the schema.

    As in the release, runs that failed (``error``) or were not measured are left out. Runtimes
    are ns. Raises DataError if the file is not such a file or its configurations do not fit.
    """
    data = _read("ModuleTuningData", path)
    if not data.module.computations or not data.config_index_to_node:
        raise DataError(f"{path}: not a raw layout file (no module or no configurable nodes)")
    runs = [
        run
        for run in data.runs
        if run.HasField("module_config") and not run.error and run.profile.compute_time_ns > 0
    ]
    graph = module_graph(data.module, str(path))
    if max(data.config_index_to_node) >= len(graph["node_opcode"]):
        raise DataError(f"{path}: config_index_to_node points past the last instruction")
    ids = np.array(data.config_index_to_node, np.int64)
    return graph | {
        "node_config_ids": ids,
        "node_config_feat": _layout_configs(runs, len(ids), path),
        "config_runtime": np.array([run.profile.compute_time_ns for run in runs], np.int64),
    }


def read_tile_pb(path: str | Path) -> list[dict[str, np.ndarray]]:
    """Reads a raw file of the tile collection (``TuningData``): one dict of the schema's keys each
    kernel, in file order.

    As in the release, runs that failed or took no more than 1 ns are left out, and so are kernels
    with fewer than two runs or without tile sizes. The normalizer is the runtime of the first
    good run marked ``is_default``, the compiler's own choice, repeated for every configuration.

    What the bounds of ``config_feat`` mean, as far as the raw files show: one entry a dimension,
    in physical order from major to minor (so the reverse of ``minor_to_major``, not the logical
    order); the two minor-most count hardware tiles of 8 x 128 elements, a lone dimension tiles of
    1,024, the others elements. The tensor is the one that the kernel goes over: its output, for a
    reduction the operand; kernel bounds do the same for the second operand of a convolution.
    """
    data = _read("TuningData", path)
    if not data.modules:
        raise DataError(f"{path}: not a raw tile file (no kernels)")
    kernels = []
    for tuned in data.modules:
        tiled = all(run.op_config.HasField("tile_size_config") for run in tuned.runs)
        if len(tuned.runs) < 2 or not tiled:
            continue
        runs = [run for run in tuned.runs if not run.error and run.profile.compute_time_ns > 1]
        runtime = np.array([run.profile.compute_time_ns for run in runs], np.int64)
        default = [run.is_default for run in runs]
        if not any(default):
            raise DataError(f"{path}: kernel {tuned.module.name} has no default run")
        graph = module_graph(tuned.module, str(path))
        del graph["node_splits"]
        kernels.append(graph | {
            "config_feat": _tile_configs(runs),
            "config_runtime": runtime,
            "config_runtime_normalizers": np.full_like(runtime, runtime[default.index(True)]),
        })
    return kernels


def _read(message: str, path: str | Path) -> Message:
    try:
        with open_bytes(Path(path)) as stream:
            data = stream.read()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except TarProblem as error:
        raise DataError(f"{path}: {error}") from None
    return _parse(message, data, str(path))


def _parse(message: str, data: bytes, name: str) -> Message:
    try:
        return CLASSES[message].FromString(data)
    except DecodeError as error:
        raise DataError(f"{name}: not a serialized {message} ({error})") from None


def _totals(values: Sequence[int]) -> tuple[int, int]:
    whole = np.array(values, np.int64)  # as in the release: too large values wrap around
    return whole.sum(), whole.prod()


def _put(row: np.ndarray, name: str, values: Sequence[int]) -> None:
    """Writes a list to the columns of its first entries, and to those of its sum and product
    where the schema has them. An empty list leaves the row as it is."""
    if not values:
        return
    columns = _ENTRIES[name]
    kept = min(len(columns), len(values))
    row[columns[0] : columns[0] + kept] = values[:kept]
    if f"{name}_sum" in NODE_COLUMN:
        row[columns[-1] + 1 : columns[-1] + 3] = _totals(values)


def _node_features(row: np.ndarray, computation: Message, instruction: Message) -> None:
    """Fills one row of node_feat (int64 [140]), which holds 0, and 1 in the product columns."""
    shape = instruction.shape
    row[NODE_COLUMN["is_root"]] = instruction.id == computation.root_id
    if shape.element_type in TYPE_COLUMN:
        row[TYPE_COLUMN[shape.element_type]] = 1
    _put(row, "shape_dimensions", shape.dimensions)
    row[NODE_COLUMN["shape_tuple_shapes_size"]] = len(shape.tuple_shapes)
    row[NODE_COLUMN["parameter_number"]] = instruction.parameter_number
    _put(row, "dimensions", instruction.dimensions)
    _put(row, "layout_minor_to_major", shape.layout.minor_to_major)
    row[NODE_COLUMN["feature_group_count"]] = instruction.feature_group_count
    row[NODE_COLUMN["batch_group_count"]] = instruction.batch_group_count
    row[NODE_COLUMN["is_stable"]] = instruction.is_stable
    if window := instruction.window.dimensions:
        for field in "size stride padding_low padding_high window_dilation base_dilation".split():
            _put(row, f"window_{field}", [getattr(d, field) for d in window])
        reversal = [d.window_reversal for d in window]
        _put(row, "window_window_reversal", reversal)
        row[NODE_COLUMN["window_window_reversal_true_count"]] = sum(reversal)
        row[NODE_COLUMN["window_window_reversal_false_count"]] = len(reversal) - sum(reversal)
    if instruction.HasField("convolution_dimension_numbers"):
        _convolution_dimensions(row, instruction.convolution_dimension_numbers)
    if sliced := instruction.slice_dimensions:
        for field in ("start", "stride", "limit"):
            _put(row, f"slice_dims_{field}", [getattr(d, field) for d in sliced])
    _put(row, "dynamic_slice_sizes", instruction.dynamic_slice_sizes)
    if padded := instruction.padding_config.dimensions:
        for field in ("edge_padding_low", "edge_padding_high"):
            _put(row, f"padding_config_{field}", [getattr(d, field) for d in padded])


def _convolution_dimensions(row: np.ndarray, numbers: Message) -> None:
    for field in """input_batch input_feature kernel_input_feature kernel_output_feature
            output_batch output_feature""".split():
        column = NODE_COLUMN[f"convolution_dim_numbers_{field}_dim"]
        row[column] = getattr(numbers, f"{field}_dimension")
    # The output's spatial dimensions have no columns.
    for tensor in ("input", "kernel"):
        spatial = getattr(numbers, f"{tensor}_spatial_dimensions")
        _put(row, f"convolution_dim_numbers_{tensor}_spatial_dims", spatial)


def _edges(module: Message, name: str) -> np.ndarray:
    """int64 [m, 2]: operand edges, and one from each caller to the root of what it calls."""
    start, node, root = 0, [], {}
    for computation in module.computations:
        # Numbers of instructions need only be unique within their computation.
        node.append({i.id: start + k for k, i in enumerate(computation.instructions)})
        root[computation.id] = node[-1].get(computation.root_id)
        start += len(computation.instructions)
    edges = [
        (own[i.id], other)
        for computation, own in zip(module.computations, node)
        for i in computation.instructions
        for other in (
            *(own.get(operand) for operand in i.operand_ids),
            *(root.get(called) for called in i.called_computation_ids),
        )
    ]
    if any(v is None for _, v in edges):
        raise DataError(f"{name}: an instruction uses an operand or computation that is not there")
    key = np.unique(np.array([u * start + v for u, v in edges], np.int64))
    return np.stack([key // start, key % start], axis=1)


def _node_splits(module: Message) -> np.ndarray:
    end, splits = 0, [0]
    for computation in module.computations:
        end += len(computation.instructions)
        if any(word in computation.name for word in _MAJOR_COMPUTATIONS):
            splits.append(end)
    if splits[-1] < end:
        splits.append(end)
    return np.array([splits], np.int64)


def _layout_configs(runs: list[Message], configurable: int, path: str | Path) -> np.ndarray:
    """float32 [c, nc, 18]. Nodes take few different layouts, so each is decoded once."""
    code: dict[bytes, int] = {}
    rows: list[np.ndarray] = []
    codes = np.empty((len(runs), configurable), np.int64)
    for c, run in enumerate(runs):
        nodes = run.module_config.layout_config.nodes
        if len(nodes) != configurable:
            raise DataError(f"{path}: a run configures {len(nodes)} nodes, not {configurable}")
        for j, node in enumerate(nodes):
            key = node.SerializeToString(deterministic=True)
            if key not in code:
                code[key] = len(rows)
                rows.append(_layout_row(node, path))
            codes[c, j] = code[key]
    if not runs:
        return np.empty((0, configurable, len(SLOTS) * MAX_RANK), np.float32)
    return np.stack(rows)[codes]


def _layout_row(node: Message, path: str | Path) -> np.ndarray:
    if len(node.tensors) > len(SLOTS):
        raise DataError(f"{path}: a configuration lays out more than {len(SLOTS)} tensors")
    row = np.full((len(SLOTS), MAX_RANK), UNSET, np.float32)
    for slot, tensor in zip(row, node.tensors):
        dims = tensor.dims[:MAX_RANK]
        slot[: len(dims)] = dims
    return row.ravel()


def _tile_configs(runs: list[Message]) -> np.ndarray:
    """float32 [c, 24]. Unlike in node_feat, the product of an empty list is 0."""
    parts = ("kernel_bounds", "output_bounds", "input_bounds")
    configs = np.zeros((len(runs), len(parts), MAX_RANK + 2), np.int64)
    for config, run in zip(configs, runs):
        for row, part in zip(config, parts):
            bounds = getattr(run.op_config.tile_size_config, part)
            if bounds:
                row[: min(MAX_RANK, len(bounds))] = bounds[:MAX_RANK]
                row[MAX_RANK:] = _totals(bounds)
    return configs.reshape(len(runs), -1).astype(np.float32)
