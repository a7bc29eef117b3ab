"""The generated release in miniature: its shape, and what is said of a job that was killed."""

import sys
import time

import numpy as np

from utils import miniature
from utils.dataset import check_files, index


def test_the_data_have_the_shape_that_is_asked_for(tmp_path):
    shape = {30: {"train": 2, "valid": 1, "test": 1}, 20: {"train": 1, "valid": 0, "test": 0}}
    data = miniature.write_miniature(tmp_path, shape, {"train": 3, "valid": 0, "test": 1}, 4)
    files = index(data)
    assert check_files(files) == [] and len(files) == 5 * 4 + 4
    sizes = [len(np.load(f.path)["config_runtime"]) for f in files if not f.tile]
    assert sorted(sizes) == [20] * 4 + [30] * 16
    assert not (data / "solution.npz").exists()
    graphs = sum(sum(split.values()) for split in miniature.SHAPE.values())
    assert 4 * graphs >= 60 and max(miniature.SHAPE) == 20_000
    assert sum(miniature.TILES.values()) >= 300


def test_memory_is_that_of_all_processes_and_enough_kills_them(tmp_path):
    hold = "x = bytearray(60_000_000); open({!r}, 'w').close(); import time; time.sleep(600)"
    inner = hold.format(str(tmp_path / "there"))
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    begin = time.monotonic()
    there = tmp_path / "there"
    seen = []

    def enough():
        seen.append(there.exists())
        return len(seen) > 3 and all(seen[-3:])

    status, peak = miniature.run_job([sys.executable, "-c", outer], enough)
    assert status == -9 and time.monotonic() - begin < 500
    assert peak > 60  # that of the inner one counts
    status, peak = miniature.run_job([sys.executable, "-c", "raise SystemExit(3)"])
    assert status == 3
