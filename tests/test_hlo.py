"""HLO modules and raw protobuf files: hand-checked values, and the release's own pair of files."""

import os
from pathlib import Path

import numpy as np
import pytest

from utils.dataset import DataError
from utils.hlo import instructions, module_graph, parse_module, read_layout_pb, read_tile_pb
from utils.hlo_proto import CLASSES
from utils.schema import (
    GRAPH_KEYS, LAYOUT_KEYS, NODE_COLUMN, NODE_FEATURES, OPCODE_ID, TILE_COLUMNS, TILE_KEYS,
)

HERE = Path(__file__).parent
REAL = Path(os.environ.get("TPUGRAPHS_DIR", HERE.parent.parent / "shared" / "tpugraphs"))


def real(name):
    path = REAL / name
    if not path.exists():
        pytest.skip(f"{path} is not there: set TPUGRAPHS_DIR to the folder of TpuGraphs files")
    return path


def fixture(name):
    module = parse_module((HERE / "data" / "hlo" / f"{name}.hlo.pb").read_bytes(), name)
    graph = module_graph(module)
    assert graph["node_feat"].dtype == np.float32 and graph["node_opcode"].dtype == np.uint8
    assert graph["edge_index"].dtype == graph["node_splits"].dtype == np.int64
    return module, graph


def features(**columns):
    """A row of node_feat: a number is one column, a list its first entries, a tuple
    (list, sum, product) all columns of a list. Nothing is computed here."""
    row = np.zeros(140, np.float32)
    row[[c.endswith("_product") for c in NODE_FEATURES]] = 1
    for name, value in columns.items():
        if isinstance(value, tuple):
            value, row[NODE_COLUMN[f"{name}_sum"]], row[NODE_COLUMN[f"{name}_product"]] = value
        if isinstance(value, list):
            for i, entry in enumerate(value):
                row[NODE_COLUMN[f"{name}_{i}"]] = entry
        else:
            row[NODE_COLUMN[name]] = value
    return row


def assert_row(row, **columns):
    difference = np.flatnonzero(row != features(**columns))
    assert not len(difference), {NODE_FEATURES[i]: float(row[i]) for i in difference}


def codes(*opcodes):
    return [OPCODE_ID[o] for o in opcodes]


def test_dot():
    module, graph = fixture("dot")
    assert graph["node_opcode"].tolist() == codes("parameter", "parameter", "dot", "multiply")
    # y * y uses y twice: one edge.
    assert graph["edge_index"].tolist() == [[2, 0], [2, 1], [3, 2]]
    assert graph["node_splits"].tolist() == [[0, 4]]
    shape = {"shape_element_type_is_f32": 1, "layout_minor_to_major": [1, 0]}
    x, w, dot, multiply = graph["node_feat"]
    assert_row(x, shape_dimensions=([4, 5], 9, 20), **shape)
    assert_row(w, shape_dimensions=([5, 6], 11, 30), parameter_number=1, **shape)
    assert_row(dot, shape_dimensions=([4, 6], 10, 24), **shape)
    assert_row(multiply, shape_dimensions=([4, 6], 10, 24), is_root=1, **shape)


def test_a_mark_of_named_scope_names_its_node():
    module, _ = fixture("dot")
    nodes = instructions(module)
    marked = [i for i, (_, one) in enumerate(nodes) if "configurable_7" in one.metadata.op_name]
    assert marked == [2]
    assert nodes[2][1].opcode == "dot"
    assert list(nodes[2][1].dot_dimension_numbers.lhs_contracting_dimensions) == [1]


def test_convolution():
    _, graph = fixture("convolution")
    assert graph["node_opcode"].tolist() == codes("parameter", "parameter", "convolution")
    assert graph["edge_index"].tolist() == [[2, 0], [2, 1]]
    assert_row(
        graph["node_feat"][2],
        is_root=1,
        shape_element_type_is_f32=1,
        # Height: (16 + 1 + 2 - 7) / 2 + 1; width: 23 + 3 - 1 - 4 + 1.
        shape_dimensions=([8, 7, 22, 10], 47, 12_320),
        layout_minor_to_major=[3, 2, 1, 0],
        window_size=([3, 4], 7, 12),
        window_stride=([2, 1], 3, 2),
        window_padding_low=([1, 3], 4, 3),
        window_padding_high=([2, -1], 1, -2),
        window_window_dilation=([3, 1], 4, 3),
        window_base_dilation=([1, 2], 3, 2),
        window_window_reversal_false_count=2,
        # NHWC, HWIO -> NHWC
        convolution_dim_numbers_input_batch_dim=0,
        convolution_dim_numbers_input_feature_dim=3,
        convolution_dim_numbers_input_spatial_dims=[1, 2],
        convolution_dim_numbers_kernel_input_feature_dim=2,
        convolution_dim_numbers_kernel_output_feature_dim=3,
        convolution_dim_numbers_kernel_spatial_dims=[0, 1],
        convolution_dim_numbers_output_batch_dim=0,
        convolution_dim_numbers_output_feature_dim=3,
        feature_group_count=2,
        batch_group_count=1,
    )


def test_slice_dynamic_slice_and_pad():
    """Their lists are cut to two entries; sum and product are over all three."""
    _, graph = fixture("slices")
    opcodes = "parameter", "slice", "parameter", "dynamic-slice", "add", "constant", "pad"
    assert graph["node_opcode"].tolist() == codes(*opcodes)
    # The dynamic slice uses the same start three times.
    edges = [[1, 0], [3, 0], [3, 2], [4, 1], [4, 3], [6, 4], [6, 5]]
    assert graph["edge_index"].tolist() == edges
    shape = {"shape_element_type_is_f32": 1, "layout_minor_to_major": [2, 1, 0]}
    assert_row(
        graph["node_feat"][1],
        shape_dimensions=([2, 2, 7], 11, 28),
        slice_dims_start=([1, 2], 6, 6),
        slice_dims_stride=([2, 3], 6, 6),
        slice_dims_limit=([5, 8], 23, 400),
        **shape,
    )
    assert_row(graph["node_feat"][2], shape_element_type_is_u32=1, parameter_number=1)
    assert_row(
        graph["node_feat"][3],
        shape_dimensions=([2, 2, 7], 11, 28),
        dynamic_slice_sizes=([2, 2], 11, 28),
        **shape,
    )
    assert_row(
        graph["node_feat"][6],
        is_root=1,
        shape_dimensions=([2, 8, 11], 21, 176),
        padding_config_edge_padding_low=([1, 2], 3, 0),
        padding_config_edge_padding_high=([-1, 3], 6, -12),
        **shape,
    )


def test_reduce_has_an_edge_to_the_root_of_what_it_calls():
    module, graph = fixture("reduction")
    sum_of_two = ["parameter", "parameter", "add"]
    main = ["parameter", "transpose", "constant", "reduce"]
    assert graph["node_opcode"].tolist() == codes(*sum_of_two, *main)
    names = [computation.name for computation, _ in instructions(module)]
    assert names == ["region_0.1"] * 3 + ["main.2"] * 4
    edges = [[2, 0], [2, 1], [4, 3], [6, 2], [6, 4], [6, 5]]
    assert graph["edge_index"].tolist() == edges
    roots = graph["node_feat"][:, NODE_COLUMN["is_root"]]
    assert roots.tolist() == [0, 0, 1, 0, 0, 0, 1]
    bf16 = {"shape_element_type_is_bf16": 1}
    assert_row(graph["node_feat"][0], **bf16)  # a scalar: sum 0, product 1
    assert_row(
        graph["node_feat"][4],
        shape_dimensions=([3, 7], 10, 21),
        dimensions=[1, 0],  # the permutation
        layout_minor_to_major=[0, 1],  # a transpose of row-major without moving anything
        **bf16,
    )
    assert_row(
        graph["node_feat"][6],
        is_root=1,
        shape_dimensions=([7], 7, 7),
        dimensions=[0],  # what is summed over
        layout_minor_to_major=[0],
        **bf16,
    )


def test_sort_and_tuple():
    module, graph = fixture("sorting")
    assert graph["node_opcode"].tolist()[14:] == codes(
        "compare", "parameter", "parameter", "sort", "get-tuple-element", "get-tuple-element",
        "tuple",
    )
    edges = graph["edge_index"]
    assert edges[edges[:, 0] >= 15].tolist() == [
        [17, 14], [17, 15], [17, 16], [18, 17], [19, 17], [20, 18], [20, 19],
    ]
    pair = {"shape_element_type_is_tuple": 1, "shape_tuple_shapes_size": 2}
    assert_row(graph["node_feat"][17], dimensions=[1], is_stable=1, **pair)
    assert_row(graph["node_feat"][20], is_root=1, **pair)
    assert instructions(module)[19][1].tuple_index == 1


@pytest.mark.parametrize("name", ["dot", "convolution", "slices", "reduction", "sorting"])
def test_edges_are_sorted_without_repeats_and_go_back(name):
    _, graph = fixture(name)
    edges = [tuple(edge) for edge in graph["edge_index"].tolist()]
    assert edges == sorted(set(edges))
    assert all(u > v for u, v in edges)


def small_module(*computations):
    """A module of computations (name, opcodes); each instruction uses the one before it."""
    module = CLASSES["HloModuleProto"](name="small")
    for number, (name, opcodes) in enumerate(computations):
        computation = module.computations.add(name=name, id=number, root_id=len(opcodes) - 1)
        for i, opcode in enumerate(opcodes):
            computation.instructions.add(opcode=opcode, id=i, operand_ids=range(max(i - 1, 0), i))
    return module


def test_numbers_of_instructions_may_repeat_in_other_computations():
    module = small_module(("sum", ["parameter", "abs"]), ("main", ["parameter", "map"]))
    module.computations[1].instructions[1].called_computation_ids.append(0)
    assert module_graph(module)["edge_index"].tolist() == [[1, 0], [3, 1], [3, 2]]


def test_node_splits_are_the_ends_of_entry_and_loop_computations():
    module = small_module(
        ("add.1", ["parameter"] * 3),
        ("while_body.2", ["parameter"] * 5),
        ("while_cond.2", ["parameter"] * 2),
        ("max.3", ["parameter"] * 3),
        ("cluster_1", ["parameter"] * 4),
    )
    assert module_graph(module)["node_splits"].tolist() == [[0, 8, 10, 17]]
    module.computations.add(name="main").instructions.add(opcode="tuple", id=0)
    assert module_graph(module)["node_splits"].tolist() == [[0, 8, 10, 17, 18]]


def test_long_lists_large_products_and_unknown_things():
    module = small_module(("main", ["parameter", "no-such-opcode"]))
    one, other = module.computations[0].instructions
    one.shape.dimensions.extend([2, 1, 1, 1, 1, 3, 7])
    one.shape.element_type = 21  # S4 has no column
    other.shape.dimensions.extend([4097, 4097])
    graph = module_graph(module)
    assert_row(graph["node_feat"][0], shape_dimensions=([2, 1, 1, 1, 1, 3], 16, 42))
    # 4097^2 = 16,785,409 is odd and above 2^24: the nearest float32 is even.
    assert graph["node_feat"][1, NODE_COLUMN["shape_dimensions_product"]] == 16_785_408
    assert graph["node_opcode"].tolist() == [OPCODE_ID["parameter"], 0]
    assert graph["node_feat"][1, 2] == 1  # element type 0 is "invalid type", which has a column


def test_unknown_fields_are_skipped():
    data = (HERE / "data" / "hlo" / "dot.hlo.pb").read_bytes()
    unknown = b"\xfa\x3f\x02hi"  # field 1023, two bytes
    graph, same = module_graph(parse_module(data)), module_graph(parse_module(data + unknown))
    assert all(np.array_equal(graph[key], same[key]) for key in graph)


def layout_file(path, runs, ids=(1, 0)):
    """Raw layout data of two nodes; a run is (error, runtime, layouts of the two nodes)."""
    module = small_module(("main", ["parameter", "reshape"]))
    data = CLASSES["ModuleTuningData"](module=module, config_index_to_node=ids)
    for error, runtime, nodes in runs:
        run = data.runs.add(error=error)
        run.profile.compute_time_ns = runtime
        for tensors in nodes:
            node = run.module_config.layout_config.nodes.add()
            for dims in tensors:
                node.tensors.add(dims=dims)
    path.write_bytes(data.SerializeToString())
    return path


def test_layout_file(tmp_path):
    runs = [
        (False, 70, [[[1, 0], [4, 0]], []]),
        (True, 0, [[], []]),
        (False, 60, [[], [[], [2], [0, 1, 2, 3, 4, 5, 6]]]),
    ]
    data = read_layout_pb(layout_file(tmp_path / "a.pb", runs))
    unset = [-1] * 6
    first = [1, 0, -1, -1, -1, -1, 4, 0, -1, -1, -1, -1, *unset]
    last = [*unset, 2, -1, -1, -1, -1, -1, 0, 1, 2, 3, 4, 5]
    assert data["node_config_feat"].tolist() == [[first, unset * 3], [unset * 3, last]]
    assert data["config_runtime"].tolist() == [70, 60]
    assert data["node_config_ids"].tolist() == [1, 0]
    assert {key: value.dtype for key, value in data.items()} == {
        key: dtype for key, (dtype, _) in LAYOUT_KEYS.items()
    }


def test_layout_file_without_good_runs(tmp_path):
    data = read_layout_pb(layout_file(tmp_path / "a.pb", [(True, 0, [[], []])]))
    assert data["node_config_feat"].shape == (0, 2, 18) and data["config_runtime"].shape == (0,)


def tile_file(path, *kernels):
    """Raw tile data; a kernel is a list of runs (is default, runtime, output bounds)."""
    data = CLASSES["TuningData"]()
    for runs in kernels:
        tuned = data.modules.add(module=small_module(("main", ["parameter", "copy"])))
        for default, runtime, bounds in runs:
            run = tuned.runs.add(is_default=default, error=runtime == 0)
            run.profile.compute_time_ns = runtime
            run.op_config.tile_size_config.SetInParent()
            run.op_config.tile_size_config.output_bounds.extend(bounds)
    path.write_bytes(data.SerializeToString())
    return path


def test_tile_file(tmp_path):
    good = [(False, 90, [2, 5]), (False, 0, [8, 8]), (True, 40, [1] * 7), (True, 44, [])]
    alone = [(True, 40, [1])]
    kernel, = read_tile_pb(tile_file(tmp_path / "a.pb", good, alone))
    assert {key: value.dtype for key, value in kernel.items()} == {
        key: dtype for key, (dtype, _) in TILE_KEYS.items()
    }
    assert kernel["config_runtime"].tolist() == [90, 40, 44]
    assert kernel["config_runtime_normalizers"].tolist() == [40, 40, 40]
    first = TILE_COLUMNS.index("output_bounds_0")
    assert kernel["config_feat"][:, first : first + 8].tolist() == [
        [2, 5, 0, 0, 0, 0, 7, 10],
        [1, 1, 1, 1, 1, 1, 7, 1],
        [0, 0, 0, 0, 0, 0, 0, 0],  # the product of an empty list is 0 here
    ]
    assert not kernel["config_feat"][:, :first].any()
    assert not kernel["config_feat"][:, first + 8 :].any()


def test_bad_files_get_one_line_that_names_them(tmp_path):
    def message(read, path):
        with pytest.raises(DataError) as error:
            read(path)
        assert "\n" not in str(error.value) and str(path) in str(error.value)
        return str(error.value)

    text = tmp_path / "text.pb"
    text.write_bytes(b"these are not the bytes")
    empty = tmp_path / "empty.pb"
    empty.write_bytes(b"")
    for read in read_layout_pb, read_tile_pb, lambda p: parse_module(p.read_bytes(), str(p)):
        assert "not a serialized" in message(read, text)
        message(read, empty)
    assert "No such file" in message(read_layout_pb, tmp_path / "absent.pb")

    bad = tmp_path / "bad.pb"
    run = (False, 5, [[], []])
    assert "past the last" in message(read_layout_pb, layout_file(bad, [run], ids=(0, 2)))
    assert "configures 2 nodes, not 1" in message(read_layout_pb, layout_file(bad, [run], ids=[0]))
    four = (False, 5, [[[0]] * 4, []])
    assert "more than 3 tensors" in message(read_layout_pb, layout_file(bad, [four]))
    assert "no default run" in message(read_tile_pb, tile_file(bad, [(False, 9, [1])] * 2))

    module = small_module(("main", ["parameter", "abs"]))
    module.computations[0].instructions[1].operand_ids.append(7)
    with pytest.raises(DataError, match="^my module: .* not there$"):
        module_graph(module, "my module")


def test_real_layout_file_equals_its_npz():
    raw = read_layout_pb(real("pb/layout/unet_3d.4x4.bf16.pb"))
    with np.load(real("npz/layout/xla/default/valid/unet_3d.4x4.bf16.npz")) as file:
        npz = {key: file[key] for key in file.files}
    assert raw.keys() == npz.keys() == LAYOUT_KEYS.keys()
    for key in "node_feat", "node_opcode", "edge_index", "node_config_ids", "node_splits":
        assert raw[key].dtype == npz[key].dtype
        assert np.array_equal(raw[key], npz[key]), key  # the edges even in the same order

    # 10 of 122 runs failed. The npz has more runs than the raw file, in another order.
    def runs(data):
        return {
            (config.tobytes(), runtime)
            for config, runtime in zip(data["node_config_feat"], data["config_runtime"].tolist())
        }

    assert raw["node_config_feat"].dtype == npz["node_config_feat"].dtype
    assert raw["config_runtime"].shape == (112,) and raw["config_runtime"].dtype == np.int64
    assert runs(raw) <= runs(npz)


def test_real_tile_file():
    kernels = read_tile_pb(real("pb/tile/op_tuning_data.pb"))
    assert [len(k["config_runtime"]) for k in kernels] == [
        61, 579, 16, 16, 16, 23, 10, 11, 5, 3, 3, 2, 3, 2, 2,
    ]
    for kernel in kernels:
        assert kernel.keys() == TILE_KEYS.keys()
        assert {key: kernel[key].dtype for key in kernel} == {
            key: dtype for key, (dtype, _) in (GRAPH_KEYS | TILE_KEYS).items()
        }
        # The default tile size was run first, and its runtime is the normalizer.
        assert (kernel["config_runtime_normalizers"] == kernel["config_runtime"][0]).all()
    assert [int(k["config_runtime"][0]) for k in kernels[:3]] == [57_188, 151_565, 94_192]


def bounds_and_tiles(kernel):
    """Largest output bounds, and the hardware tiles of the root's shape in physical order."""
    row = kernel["node_feat"][-1]
    rank = int((row[21:27] > 0).sum())
    physical = row[134 : 134 + rank].astype(int)[::-1]
    sizes = row[21:27][physical]
    tiles = np.ceil(sizes / np.array([1] * (rank - 2) + [8, 128]))
    return kernel["config_feat"][:, 8 : 8 + rank].max(0).tolist(), tiles.tolist()


def test_tile_bounds_are_in_physical_order_and_count_hardware_tiles():
    kernels = read_tile_pb(real("pb/tile/op_tuning_data.pb"))
    # [32, 5, 5, 256], minor to major 3, 0, 2, 1: only in the order 1, 2, 0, 3 do they fit.
    assert bounds_and_tiles(kernels[7]) == ([5, 5, 4, 2], [5, 5, 4, 2])
    # [4096, 1000], minor to major 0, 1: 1000 in tiles of 8, then 4096 in tiles of 128.
    assert bounds_and_tiles(kernels[2]) == ([125, 32], [125, 32])


def test_normalizer_of_real_npz_is_the_runtime_of_its_first_configuration():
    """The first run is the default one in the raw file; so it is in the labelled npz files."""
    for name in (
        "train/retinanet.2x2.fp32_-342c949e14733d96",
        "valid/inception_v3_batch_128_train_426e203f19335d17",
    ):
        with np.load(real(f"npz/tile/xla/{name}.npz")) as file:
            assert (file["config_runtime_normalizers"] == file["config_runtime"][0]).all()
