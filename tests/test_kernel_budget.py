"""The kernel notebook on a generated release in miniature, within 60 seconds and 1 GB."""

import sys

import kernel_runs
import numpy as np

from utils import synthetic
from utils.dataset import index

LAYOUTS = ("layout:xla:default", "layout:xla:random", "layout:nlp:default", "layout:nlp:random")
SECONDS, MEMORY_GB = 60, 1.0


def write_miniature(folder):
    """20 layout graphs of up to 5,000 configurations, five a collection, and 100 tile kernels."""
    for configs, graphs in ((5000, {"train": 3}), (3000, {"valid": 1, "test": 1})):
        synthetic.write_data(folder, 1, graphs, configs, 6, 0, collections=LAYOUTS)
    tiles = {"train": 80, "valid": 10, "test": 10}
    synthetic.write_data(folder, 2, tiles, 120, 4, 0, collections=("tile:xla",))


def test_a_release_in_miniature_stays_within_60_seconds_and_1_gb(tmp_path):
    data = tmp_path / "predict-ai-model-runtime" / "npz_all" / "npz"
    write_miniature(data)
    files = index(data)
    assert sum(not file.tile for file in files) == 20 and sum(file.tile for file in files) == 100
    given = [f'DATA_DIR="{tmp_path / "predict-ai-model-runtime"}"', "THREADS=2"]
    given += [f"HOURS={SECONDS / 3600}", f"MEMORY_GB={MEMORY_GB}"]
    found = kernel_runs.run(sys.executable, tmp_path / "kernel", *given)
    sizes = {f.id: len(np.load(f.path)["config_runtime"]) for f in files if f.split == "test"}
    kernel_runs.check_rows(found["rows"], sizes)
    assert found["peak_gb"] < MEMORY_GB
    assert found["seconds"] < SECONDS
    assert any("configurations of a graph at most" in text for text in found["left_out"])
    assert all(text in found["printed"] for text in found["left_out"])
    assert [result["collection"] for result in found["results"]] == [*LAYOUTS, "tile:xla"]
