"""Commands that are terminated leave nothing half written."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from half_written import half_written

ROOT = Path(__file__).resolve().parent.parent
# They print, or start no process and write no file that is worth keeping whole.
WITHOUT = {"benchmark_worker", "kernel", "options", "rank", "repeatability", "runner"}
COMMANDS = [
    path
    for path in sorted((ROOT / "utils").rglob("*.py"))
    if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("path", COMMANDS, ids=[path.stem for path in COMMANDS])
def test_a_command_that_writes_ends_cleanly(path):
    last = path.read_text(encoding="utf-8").split('if __name__ == "__main__":')[1]
    assert ("run_command(main" in last) != (path.stem in WITHOUT)


def test_a_terminated_command_leaves_nothing_half_written(tmp_path):
    command = [sys.executable, "-m", "utils.benchmark_read", "--keep", tmp_path / "large.npz"]
    command += ["--nodes", "20", "--graph-nodes", "100", "--configs", "5000000"]
    process = subprocess.Popen(command, cwd=ROOT, text=True, stderr=subprocess.PIPE)
    assert half_written(tmp_path, process)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=300)
    assert (process.returncode, said) == (130, "interrupted\n")
    assert list(tmp_path.iterdir()) == []
