"""Features of configurations: values by hand, and what must not change them."""

from dataclasses import replace

import numpy as np
import pytest

from hand_graphs import FREE, ODD, PLAIN, dots, layout_graph, random_graph, renumbered
from utils.coding import decode
from utils.layout_features import layout_features, transductive
from utils.layout_rows import byte_count
from utils.node_costs import node_flops
from utils.roles import ROLES, slot_tensors
from utils.schema import OPCODE_ID

TOTAL = 1312.0  # bytes of the six slots of hand_graphs.DOTS
CONFIGS = (
    (PLAIN,) * 6,
    (ODD, PLAIN, PLAIN, PLAIN, PLAIN, PLAIN),
    (FREE, FREE, ODD, FREE, ODD, FREE),
    (FREE,) * 6,
)


def column(features, name):
    return features[name].to_numpy()


def test_values_by_hand():
    features = layout_features(dots(*CONFIGS))

    def check(name, *values):
        assert column(features, name) == pytest.approx(np.array(values)), name

    check("node_byte_count", 0, 256 / TOTAL, 768 / TOTAL, 0)
    check("node_odd_count", 0, 1 / 2, 2 / 2, 0)  # two configurable nodes
    check("node_odd_work", 0, 0.8, 1.0, 0)  # 1024 and 256 of 1280 FLOPs
    check("node_odd_bytes_dot_output", 0, 256 / TOTAL, 0, 0)
    check("node_odd_bytes_dot_kernel", 0, 0, 512 / TOTAL, 0)
    check("node_odd_bytes_convolution_kernel", 0, 0, 0, 0)
    check("node_set_output", 288 / TOTAL, 288 / TOTAL, 0, 0)
    check("node_dot_nn_work", 1.0, 1.0, 0.0, 1.0)  # left contracting last, right free last
    check("node_dot_nt_work", 0.0, 0.0, 0.8, 0.0)  # the first dot's kernel contracting last
    check("node_dot_tn_work", 0.0, 0.0, 0.2, 0.0)  # the second dot's input free last
    check("node_flat_bytes_kernel", 0, 0, 512 / TOTAL, 0)
    check("node_deep_bytes", 0, 0, 0, 0)  # matrices only
    check("node_set_bytes_elementwise", *[256 / TOTAL] * 3, 0)  # the tanh between the dots
    check("node_set_bytes_given", *[768 / TOTAL] * 2, 512 / TOTAL, 0)
    check("node_set_bytes_shared", 0, 0, 0, 0)
    check("node_contracting_minor_bytes_dot_kernel", 0, 0, 512 / TOTAL, 0)
    check("node_minor_kernel", *[(512 * 4 + 128) / TOTAL] * 2, (512 * 3 + 128) / TOTAL,
          (512 * 4 + 128) / TOTAL)  # log2 of 16 or 8, and of 2
    check("node_odd_bytes_max", 0, 256 / TOTAL, 512 / TOTAL, 0)
    check("copy_bytes", 0, 256 / TOTAL, 768 / TOTAL, 0)
    check("copy_count", 0, 1 / 4, 2 / 4, 0)  # four edges
    check("copy_bytes_configurable_input", 0, 256 / TOTAL, 256 / TOTAL, 0)
    check("copy_bytes_given_kernel", 0, 0, 512 / TOTAL, 0)
    check("copy_out_bytes_root", 0, 0, 0, 0)
    check("cfg_output_set", 1, 1, 0, 0)
    check("cfg_output_minor_0", 0, 1 / 2, 0, 0)
    check("cfg_output_minor_1", 1, 1 / 2, 0, 0)
    counts = np.array([0, 256, 768, 0]) / TOTAL
    check("node_rel_byte_count", *((counts - counts.mean()) / counts.std()))


def test_tensors_of_more_than_two_dimensions_have_to_be_moved():
    nodes = [
        ("parameter", (2, 8, 16), (), {}),
        ("exponential", (2, 8, 16), (0,), {}),
        ("parameter", (2, 16, 4), (), {}),
        ("dot", (2, 8, 4), (1, 2), {}),
        ("negate", (2, 8, 16), (1,), {"root": True}),
    ]
    orders = ((2, 1, 0), (1, 2, 0), (2, 0, 1), (0, 1, 2), ())
    features = layout_features(layout_graph(nodes, [{3: ((), order, ())} for order in orders]))
    share = 1024 / (1024 + 512 + 256)
    for name, expected in (
        ("node_deep_bytes", [0, 1, 1, 1, 0]),
        ("node_deep_inversions", [0, 1 / 3, 1 / 3, 1, 0]),
        ("node_deep_minor_bytes", [0, 1, 0, 1, 0]),
        ("node_deep_batch_bytes", [0, 0, 0, 1, 0]),
        ("node_set_bytes_shared", [1, 1, 1, 1, 0]),  # the exponential has two users
        ("node_odd_bytes_elementwise", [0, 1, 1, 1, 0]),
        ("node_odd_bytes_given", [0] * 5),
    ):
        assert column(features, name) == pytest.approx(share * np.array(expected)), name


def test_transductive_columns_by_hand():
    graph = dots(*CONFIGS)  # each node takes its plain row once, the free row once or twice
    columns = transductive(graph, np.array([5, 1, 1, 3]))
    assert columns["trans_config_log_frequency"] == pytest.approx(np.log([0.5, 0.1, 0.1, 0.3]))
    first, second = np.array([5, 1, 1, 3]) / 10, np.array([6, 6, 1, 3]) / 10
    assert columns["trans_choice_log_frequency"] == pytest.approx(np.log(first * second) / 2)
    least = np.minimum(first, second)
    assert columns["trans_choice_log_frequency_min"] == pytest.approx(np.log(least))


def test_sums_equal_plain_loops(tmp_path):
    graph = random_graph(tmp_path, 7)
    features = layout_features(graph)
    feat = decode(graph).reshape(graph.configs, -1, 3, 6)
    tensors, roles = slot_tensors(graph)
    dims = graph.node_feat[:, 21:27]
    size = 4 * np.where(dims > 0, dims, 1).prod(1)
    flops = node_flops(graph)[graph.config_nodes]
    contracted, nn, odd = np.zeros((3, graph.configs))
    for i in range(graph.configs):
        for j, node in enumerate(graph.config_nodes):
            minors = []
            for k in range(3):
                layout = [int(d) for d in feat[i, j, k] if d >= 0]
                rank = int((dims[tensors[j, k]] > 0).sum()) if tensors[j, k] >= 0 else 0
                minors.append(ROLES[roles[j, k, (layout or [rank - 1])[0]]] if rank else "other")
                odd[i] += layout != sorted(layout, reverse=True)
            if graph.opcode[node] == OPCODE_ID["dot"]:
                contracted[i] += size[tensors[j, 1]] * (minors[1] == "contracting")
                nn[i] += flops[j] * (minors[1:] == ["contracting", "free"])
    total = size[tensors[tensors >= 0]].sum()
    for name, expected in (
        ("node_contracting_minor_bytes_dot_input", contracted / total),
        ("node_dot_nn_work", nn / flops.sum()),
        ("node_odd_count", odd / len(graph.config_nodes)),
        ("node_byte_count", byte_count(graph) / total),
    ):
        assert expected.std() > 0
        assert column(features, name) == pytest.approx(expected, rel=1e-6, abs=1e-7), name


def test_configurations_in_another_order(tmp_path):
    graph = random_graph(tmp_path, 8)
    order = np.random.default_rng(0).permutation(graph.configs)
    count = np.arange(1, graph.configs + 1)
    shuffled = replace(graph, codes=np.asfortranarray(graph.codes[order]))
    expected = layout_features(graph, count)[order].to_numpy()
    assert layout_features(shuffled, count[order]).to_numpy() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("seed", [1, 2])
def test_nodes_with_other_numbers(tmp_path, seed):
    graph = random_graph(tmp_path, 9)
    vectors = np.random.default_rng(0).random((len(graph.opcode), 3))
    expected = layout_features(graph, node_vectors=vectors)
    other = renumbered(replace(graph, node_feat=_named(graph.node_feat)), seed)
    names = other.node_feat[:, 139].astype(int)  # which node it was
    found = layout_features(other, node_vectors=vectors[names])
    assert found.columns == expected.columns
    assert (np.sort(names) != names).any()
    assert found.to_numpy() == pytest.approx(expected.to_numpy(), rel=1e-5, abs=1e-6)


def _named(node_feat):
    """A mark in a column that nothing reads: layout_minor_to_major_5 of tensors below rank 6."""
    marked = node_feat.copy()
    marked[:, 139] = np.arange(len(marked))
    return marked


def test_columns_do_not_depend_on_the_graph(tmp_path):
    one = layout_features(dots(*CONFIGS))
    other = layout_features(random_graph(tmp_path, 1))
    assert one.columns == other.columns and one.schema == other.schema
    assert len(set(one.columns)) == len(one.columns)
    assert np.isfinite(other.to_numpy()).all()


def test_constants_and_groups():
    graph = dots(*CONFIGS)
    vectors = np.arange(12.0).reshape(6, 2)
    features = layout_features(
        graph, None, {"depth": 3.0, "stat_width": 2.0}, vectors, {"mp_mean_0": 0.5}
    )
    assert column(features, "stat_depth").tolist() == [3.0] * 4
    assert column(features, "stat_width").tolist() == [2.0] * 4
    assert column(features, "mp_mean_0").tolist() == [0.5] * 4
    # 512 odd bytes at node 2 (vector 4, 5) and 256 at node 5 (vector 10, 11)
    assert column(features, "mp_odd_0")[2] == pytest.approx((512 * 4 + 256 * 10) / TOTAL)
    assert column(features, "mp_odd_1")[2] == pytest.approx((512 * 5 + 256 * 11) / TOTAL)
    groups = {name.split("_")[0] for name in features.columns}
    assert groups == {"node", "copy", "loop", "cfg", "trans", "stat", "mp"}
