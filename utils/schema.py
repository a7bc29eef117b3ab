"""Names, keys and dtypes of TpuGraphs files: the one place that knows column numbers.

The public release has one ``.npz`` per graph. ``node_feat`` has 140 columns, a layout
configuration 18 (three layouts of six columns) and a tile configuration 24.
"""

from __future__ import annotations

import numpy as np

LAYOUT_COLLECTIONS = (
    "layout:xla:default",
    "layout:xla:random",
    "layout:nlp:default",
    "layout:nlp:random",
)
TILE_COLLECTION = "tile:xla"
COLLECTIONS = (*LAYOUT_COLLECTIONS, TILE_COLLECTION)
SPLITS = ("train", "valid", "test")

MAX_RANK = 6  # lists of dimensions are cut to six entries
SLOTS = ("output", "input", "kernel")  # the three layouts of a layout configuration
UNSET = -1  # padding in node_config_feat; six of them: the compiler decides

# Key -> (dtype, shape); a letter is a free size, shared between the keys of one file.
GRAPH_KEYS: dict[str, tuple[type, tuple]] = {
    "node_feat": (np.float32, ("n", 140)),
    "node_opcode": (np.uint8, ("n",)),
    "edge_index": (np.int64, ("m", 2)),
}
LAYOUT_KEYS = GRAPH_KEYS | {
    "node_config_ids": (np.int64, ("nc",)),
    "node_config_feat": (np.float32, ("c", "nc", 18)),
    "config_runtime": (np.int64, ("c",)),
    "node_splits": (np.int64, (1, "s")),
}
TILE_KEYS = GRAPH_KEYS | {
    "config_feat": (np.float32, ("c", 24)),
    "config_runtime": (np.int64, ("c",)),
    "config_runtime_normalizers": (np.int64, ("c",)),
}
# Our own measured files add the repeated measurements; other readers ignore the key.
OPTIONAL_KEYS: dict[str, tuple[type, tuple]] = {"config_runtime_rounds": (np.int64, ("c", "r"))}

ELEMENT_TYPES = (
    "invalid_type pred s8 s16 s32 s64 u8 u16 u32 u64 f16 f32 f64 bf16 c64 c128 "
    "tuple opaque_type token"
).split()
ELEMENT_BYTES = (0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 2, 8, 16, 0, 0, 0)  # of ELEMENT_TYPES


def _listed(name: str, entries: int = MAX_RANK, totals: tuple[str, ...] = ("sum", "product")):
    return [f"{name}_{i}" for i in range(entries)] + [f"{name}_{t}" for t in totals]


NODE_FEATURES: tuple[str, ...] = (
    "is_root",
    "element_size_in_bits",
    *(f"shape_element_type_is_{t}" for t in ELEMENT_TYPES),
    *_listed("shape_dimensions"),
    "shape_tuple_shapes_size",
    "parameter_number",
    *_listed("dimensions", totals=()),
    *_listed("window_size"),
    *_listed("window_stride"),
    *_listed("window_padding_low"),
    *_listed("window_padding_high"),
    *_listed("window_window_dilation"),
    *_listed("window_base_dilation"),
    *_listed("window_window_reversal", totals=("true_count", "false_count")),
    "convolution_dim_numbers_input_batch_dim",
    "convolution_dim_numbers_input_feature_dim",
    *_listed("convolution_dim_numbers_input_spatial_dims", 4, ()),
    "convolution_dim_numbers_kernel_input_feature_dim",
    "convolution_dim_numbers_kernel_output_feature_dim",
    *_listed("convolution_dim_numbers_kernel_spatial_dims", 4, ()),
    "convolution_dim_numbers_output_batch_dim",
    "convolution_dim_numbers_output_feature_dim",
    "feature_group_count",
    "batch_group_count",
    *_listed("slice_dims_start", 2),
    *_listed("slice_dims_stride", 2),
    *_listed("slice_dims_limit", 2),
    *_listed("dynamic_slice_sizes", 2),
    *_listed("padding_config_edge_padding_low", 2),
    *_listed("padding_config_edge_padding_high", 2),
    "is_stable",
    *_listed("layout_minor_to_major", totals=()),
)
NODE_COLUMN: dict[str, int] = {name: i for i, name in enumerate(NODE_FEATURES)}

LAYOUT_COLUMNS: tuple[str, ...] = tuple(f"{s}_layout_{i}" for s in SLOTS for i in range(MAX_RANK))
TILE_COLUMNS: tuple[str, ...] = tuple(
    c for part in ("kernel", "output", "input") for c in _listed(f"{part}_bounds")
)

OPCODES: tuple[str, ...] = tuple(
    """unknown abs add add-dependency after-all all-reduce all-to-all atan2 batch-norm-grad
    batch-norm-inference batch-norm-training bitcast bitcast-convert broadcast call ceil cholesky
    clamp collective-permute count-leading-zeros compare complex concatenate conditional constant
    convert convolution copy copy-done copy-start cosine custom-call divide domain dot
    dynamic-slice dynamic-update-slice exponential exponential-minus-one fft floor fusion gather
    get-dimension-size set-dimension-size get-tuple-element imag infeed iota is-finite log
    log-plus-one and not or xor map maximum minimum multiply negate outfeed pad parameter
    partition-id popcnt power real recv recv-done reduce reduce-precision reduce-window remainder
    replica-id reshape reverse rng rng-get-and-update-state rng-bit-generator round-nearest-afz
    rsqrt scatter select select-and-scatter send send-done shift-left shift-right-arithmetic
    shift-right-logical sign sine slice sort sqrt subtract tanh trace transpose triangular-solve
    tuple tuple-select while cbrt all-gather collective-permute-start collective-permute-done
    logistic dynamic-reshape all-reduce-start all-reduce-done reduce-scatter all-gather-start
    all-gather-done opt-barrier async-start async-update async-done round-nearest-even
    stochastic-convert tan""".split()
)
OPCODE_ID: dict[str, int] = {name: i for i, name in enumerate(OPCODES)}
CONFIGURABLE = ("convolution", "dot", "reshape")
