"""Costs of nodes against hand-worked examples and, where present, real TpuGraphs files."""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from utils.contraction import contraction, convolution_flops, convolution_operands, dot_contraction
from utils.node_costs import bytes_read, node_bytes, node_elements, node_flops, node_traffic
from utils.schema import NODE_COLUMN, OPCODE_ID
from utils.tensors import node_rank, operand_edges, operand_pair

REAL = Path(os.environ.get("TPUGRAPHS_DIR", Path(__file__).parents[2] / "shared" / "tpugraphs"))


def make_graph(nodes, edges):
    """nodes: (opcode, element type, dimensions, {column: value})."""
    feat = np.zeros((len(nodes), 140), dtype=np.float32)
    for row, (_, kind, dims, extra) in zip(feat, nodes):
        row[NODE_COLUMN[f"shape_element_type_is_{kind}"]] = 1
        row[NODE_COLUMN["shape_dimensions_0"] :][: len(dims)] = dims
        row[NODE_COLUMN["shape_dimensions_sum"]] = sum(dims)
        row[NODE_COLUMN["shape_dimensions_product"]] = np.prod(dims, dtype=np.int64)
        for name, value in extra.items():
            row[NODE_COLUMN[name]] = value
    return SimpleNamespace(
        node_feat=feat,
        opcode=np.array([OPCODE_ID[n[0]] for n in nodes], dtype=np.uint8),
        edges=np.array(edges, dtype=np.int64).reshape(-1, 2),
    )


def test_bytes_and_rank_of_every_kind_of_tensor():
    graph = make_graph(
        [
            ("parameter", "f32", (3, 5), {}),
            ("convert", "bf16", (3, 5), {}),
            ("constant", "pred", (), {}),
            ("tuple", "tuple", (), {}),
            ("iota", "s64", (4, 0, 2), {}),
            ("rng", "c64", (1, 2, 1), {}),
        ],
        [],
    )
    assert node_elements(graph).tolist() == [15, 15, 1, 0, 0, 2]
    assert node_bytes(graph).tolist() == [60, 30, 1, 0, 0, 16]
    assert node_rank(graph).tolist() == [2, 2, 0, 0, 3, 3]


def test_elements_above_2_to_24_are_exact():
    graph = make_graph([("parameter", "s8", (4097, 4099), {})], [])
    assert int(graph.node_feat[0, NODE_COLUMN["shape_dimensions_product"]]) != 4097 * 4099
    assert node_elements(graph)[0] == 4097 * 4099


def test_elements_of_rank_7_come_from_the_product_column():
    graph = make_graph([("parameter", "f32", (2, 2, 2, 2, 2, 2), {})], [])
    graph.node_feat[0, NODE_COLUMN["shape_dimensions_product"]] = 192  # a seventh dimension of 3
    assert node_elements(graph)[0] == 192


@pytest.mark.parametrize(
    ("lhs", "rhs", "out", "expected"),
    [
        ((8, 3), (3, 5), (8, 5), (3, 1)),
        ((3, 5), (8, 3), (8, 5), (3, 1)),  # operands in the other order
        ((7, 8, 3), (7, 3, 5), (7, 8, 5), (3, 7)),  # one batch dimension
        ((32, 128, 16, 64), (32, 128, 16, 64), (32, 16, 128, 128), (64, 512)),  # attention scores
        ((32, 16, 128, 128), (32, 16, 128, 128), (16, 16), (524288, 1)),  # three contracted
        ((32, 128, 1024), (32, 128, 16, 64), (1024, 16, 64), (4096, 1)),  # weight gradient
        ((6,), (6,), (), (6, 1)),  # inner product
        ((4,), (5,), (4, 5), (1, 1)),  # outer product
        ((4, 4, 4, 4), (4, 4, 4, 4), (4, 4, 4, 4), (4, 16)),  # ambiguous: batched wins
        ((2, 3), (5, 7), (2, 7), None),
    ],
)
def test_contraction_from_shapes(lhs, rhs, out, expected):
    assert contraction(lhs, rhs, out) == expected


def test_costs_of_a_small_network():
    graph = make_graph(
        [
            ("parameter", "f32", (8, 3), {}),  # 0
            ("parameter", "f32", (3, 5), {}),  # 1
            ("dot", "f32", (8, 5), {}),  # 2
            ("tanh", "f32", (8, 5), {}),  # 3
            ("constant", "f32", (), {}),  # 4
            ("add", "f32", (), {"is_root": 1}),  # 5: root of the reducer
            ("reduce", "f32", (8,), {}),  # 6
            ("slice", "f32", (2,), {}),  # 7
            ("dot", "f32", (8, 8), {}),  # 8: tanh times itself, one edge
            ("dynamic-update-slice", "f32", (8,), {}),  # 9: writes node 7 into node 6
            ("tuple", "tuple", (), {"is_root": 1}),  # 10
        ],
        [(2, 0), (2, 1), (3, 2), (6, 3), (6, 4), (6, 5), (7, 6), (8, 3)]
        + [(9, 6), (9, 7), (9, 4), (10, 8), (10, 9)],
    )
    flops = [0, 0, 2 * 8 * 5 * 3, 40, 0, 1, 40 - 8, 0, 2 * 64 * 5, 0, 0]
    assert node_flops(graph).tolist() == flops
    # The edge 6 -> 5 calls the reducer and carries no tensor; 10 only groups.
    assert (6, 5) not in set(map(tuple, operand_edges(graph).tolist()))
    assert bytes_read(graph).tolist() == [0, 0, 96 + 60, 160, 0, 0, 164, 8, 160, 12, 0]
    assert node_traffic(graph)[[2, 3, 4, 7, 9, 10]].tolist() == [316, 320, 0, 16, 24, 0]
    first, last = operand_pair(graph)
    assert (first[2], last[2], first[8], last[8], first[0]) == (0, 1, 3, 3, -1)


def conv_graph(size, kernel, out, *, stride=1, low=0, high=0, base=1, window=None, swap=False):
    """A 1-D convolution [batch, position, feature] x [window, in, out]."""
    window = kernel[0] if window is None else window
    extra = {"window_size_0": window, "window_stride_0": stride, "window_size_product": window}
    extra |= {"window_padding_low_0": low, "window_padding_high_0": high}
    extra |= {"window_base_dilation_0": base, "window_window_dilation_0": 1}
    extra |= {"feature_group_count": 1, "batch_group_count": 1}
    prefix = "convolution_dim_numbers_"
    numbers = {"input_batch_dim": 0, "input_spatial_dims_0": 1, "input_feature_dim": 2}
    numbers |= {"kernel_spatial_dims_0": 0, "kernel_input_feature_dim": 1}
    numbers |= {"kernel_output_feature_dim": 2, "output_batch_dim": 0, "output_feature_dim": 2}
    extra |= {prefix + name: value for name, value in numbers.items()}
    operands = [("parameter", "f32", size, {}), ("parameter", "f32", kernel, {})]
    operands = operands[::-1] if swap else operands
    return make_graph([*operands, ("convolution", "f32", out, extra)], [(2, 0), (2, 1)])


def test_convolution_flops_skip_padding_and_dilation_holes():
    valid = conv_graph((2, 10, 3), (3, 3, 4), (2, 8, 4))
    assert convolution_flops(valid)[1].tolist() == [2 * 2 * 4 * 3 * (8 * 3)]
    same = conv_graph((2, 10, 3), (3, 3, 4), (2, 10, 4), low=1, high=1)
    assert convolution_flops(same)[1].tolist() == [2 * 2 * 4 * 3 * (10 * 3 - 2)]
    strided = conv_graph((2, 10, 3), (2, 3, 4), (2, 5, 4), stride=2)
    assert convolution_flops(strided)[1].tolist() == [2 * 2 * 4 * 3 * (5 * 2)]
    # Input of 3 elements spread to 5 positions: of 4 x 2 pairs every second meets an element.
    dilated = conv_graph((2, 3, 3), (2, 3, 4), (2, 4, 4), base=2)
    assert convolution_flops(dilated)[1].tolist() == [2 * 2 * 4 * 3 * 4]


def test_kernel_is_found_in_either_operand_order():
    for swap in (False, True):
        graph = conv_graph((2, 10, 3), (3, 3, 4), (2, 8, 4), swap=swap)
        nodes, tensor, kernel = convolution_operands(graph)
        assert (nodes[0], tensor[0], kernel[0]) == ((2, 1, 0) if swap else (2, 0, 1))
        assert node_flops(graph)[2] == 2 * 2 * 4 * 3 * 24


def real_graph(name):
    path = REAL / "npz" / name
    if not path.exists():
        pytest.skip(f"no real TpuGraphs file at {path}")
    with np.load(path, allow_pickle=False) as z:
        return SimpleNamespace(
            node_feat=z["node_feat"], opcode=z["node_opcode"], edges=z["edge_index"]
        )


def test_real_dots_all_have_a_contraction():
    graph = real_graph("layout/nlp/default/test/3a0c5517a87df8d82fd637b83298a3ba.npz")
    nodes, contracted, batch = dot_contraction(graph)
    assert len(nodes) == 800
    first, last = operand_pair(graph)
    size = node_elements(graph)
    # lhs rhs / out = B K^2 holds for every dot, whatever the order of its operands.
    product = size[first[nodes]] * size[last[nodes]] / size[nodes]
    np.testing.assert_array_equal(product, batch * contracted**2)
    assert set(batch) == {1.0, 512.0}


def test_real_kernels_match_their_windows():
    graph = real_graph("layout/xla/default/train/unet3d.npz")
    nodes, tensor, kernel = convolution_operands(graph)
    assert len(nodes) == 53
    # multiply-adds without padding are an upper bound: 2 x elements x window x input features
    naive = 2 * node_elements(graph)[nodes] * graph.node_feat[nodes, 44].astype(float)
    feature = NODE_COLUMN["convolution_dim_numbers_kernel_input_feature_dim"]
    at = graph.node_feat[nodes, feature].astype(int)
    naive *= graph.node_feat[kernel, 21 + at]
    flops = convolution_flops(graph)[1]
    assert (flops <= naive).all() and (flops > 0).all()
    # A forward 3x3x3 convolution with 'same' padding on 128^3: (3 x 128 - 2)^3 valid pairs.
    assert flops[0] == 2 * 2 * 32 * 1 * (3 * 128 - 2) ** 3
