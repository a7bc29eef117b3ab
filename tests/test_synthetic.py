"""The generated files have the schema's shape and the costs that they say they have."""

import numpy as np
import pytest
from scipy.stats import kendalltau

from utils import synthetic
from utils.schema import CONFIGURABLE, LAYOUT_KEYS, NODE_COLUMN, OPCODE_ID, OPTIONAL_KEYS, TILE_KEYS


def check_keys(arrays: dict[str, np.ndarray], keys: dict) -> None:
    sizes: dict[str, int] = {}
    for key, (dtype, shape) in keys.items():
        assert arrays[key].dtype == dtype, key
        for name, size in zip(shape, arrays[key].shape, strict=True):
            assert sizes.setdefault(name, size) == size if isinstance(name, str) else name == size


@pytest.mark.parametrize("source", ["nlp", "xla"])
@pytest.mark.parametrize("search", ["random", "default"])
def test_layout_files_follow_the_schema(source, search):
    arrays, truth = synthetic.layout_graph(3, source, search)
    check_keys(arrays, LAYOUT_KEYS | OPTIONAL_KEYS)
    assert truth.shape == arrays["config_runtime"].shape
    assert (arrays["edge_index"][:, 0] > arrays["edge_index"][:, 1]).all()
    configurable = {OPCODE_ID[name] for name in CONFIGURABLE}
    assert set(arrays["node_opcode"][arrays["node_config_ids"]]) <= configurable
    feat = arrays["node_config_feat"]
    assert feat.min() == -1 and feat.max() <= 5
    distinct = len(np.unique(feat.reshape(len(feat), -1), axis=0))
    assert distinct < len(feat), "some configurations repeat"
    roots = np.flatnonzero(arrays["node_feat"][:, NODE_COLUMN["is_root"]])
    assert roots.tolist() == [len(arrays["node_opcode"]) - 1]


def test_without_noise_the_runtime_is_the_bytes_of_odd_slots_and_copies():
    arrays, truth = synthetic.layout_graph(0, "nlp", "random", layers=1, configs=200, noise=0)
    (dot,) = arrays["node_config_ids"]
    size = NODE_COLUMN["shape_dimensions_product"]
    weight, x = (int(arrays["node_feat"][i, size]) for i in (1, 0))
    slots = 4 * np.array([arrays["node_feat"][dot, size], x, weight])
    odd = arrays["node_config_feat"][:, 0, ::6] == 0  # {0,1}: not row-major
    base = 4 * arrays["node_feat"][:, size].sum()
    np.testing.assert_allclose(truth, base + odd @ slots)
    np.testing.assert_array_equal(arrays["config_runtime"], np.rint(truth))


def test_tile_files_follow_the_schema_and_noise_blurs_the_order():
    arrays, truth = synthetic.tile_graph(5, configs=50, noise=0.01)
    check_keys(arrays, TILE_KEYS | OPTIONAL_KEYS)
    assert len(set(arrays["config_runtime_normalizers"])) == 1
    assert truth.max() / truth.min() > 1.5
    assert kendalltau(arrays["config_runtime"], truth).statistic > 0.8


def test_the_same_seed_gives_the_same_file_and_another_seed_another():
    first, again, other = (synthetic.layout_graph(seed)[0] for seed in (1, 1, 2))
    for key in first:
        np.testing.assert_array_equal(first[key], again[key])
    assert first["node_config_feat"].shape != other["node_config_feat"].shape or (
        first["config_runtime"] != other["config_runtime"]
    ).any()


def test_a_written_folder_hides_test_labels_and_keeps_the_solution(tmp_path):
    synthetic.write_data(tmp_path, configs=10)
    files = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*.npz"))
    assert len(files) == 5 * 8 + 1
    train = {p.name.split(".")[0] for p in (tmp_path / "layout/xla/random/train").iterdir()}
    test = tmp_path / "layout/xla/random/test"
    assert any(p.name.split(".")[0] not in train for p in test.iterdir())
    solution = np.load(tmp_path / "solution.npz")
    for path in test.iterdir():
        with np.load(path) as hidden:
            assert (hidden["config_runtime"] == 0).all() and "config_runtime_rounds" not in hidden
        name = f"layout:xla:random:{path.stem}"
        assert (solution[name] > 0).all() and solution[f"{name}/rounds"].shape == (10, 4)
    for path in (tmp_path / "tile/xla/test").iterdir():
        with np.load(path) as hidden:
            assert (hidden["config_runtime_normalizers"] == 1).all()
