"""Run one notebook with papermill in a process of its own, and watch its kernel while it runs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nbformat
import psutil

from utils.notebook_files import KERNEL

PAUSE = 0.3  # seconds between two looks at the kernel
GRACE = 10.0  # seconds for an interrupted cell to remove what it has half written
PATIENCE = 120.0  # seconds after the kernel's end in which papermill must end too
PAPERMILL = "import json, sys, papermill; papermill.execute_notebook(**json.loads(sys.argv[1]))"
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "POLARS_MAX_THREADS",
)


@dataclass(frozen=True)
class Outcome:
    """How the run of one notebook ended."""

    status: str  # "done", "failed" or "kernel died"
    seconds: float
    peak_mb: float  # largest resident memory of the kernel and its children
    message: str  # what went wrong, several lines; empty when done


def run_notebook(
    source: Path,
    target: Path,
    parameters: dict[str, object],
    root: Path,
    jobs: int | None = None,
    tick: Callable[[float], None] = lambda seconds: None,
) -> Outcome:
    """Execute `source` into `target` with the kernel's working directory at `root`.

    The executed notebook is kept whatever happens. `tick` is called with the seconds so far.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    call = {
        # Papermill writes both paths into the notebook: relative ones name no machine's folders.
        "input_path": _below(source, root),
        "output_path": _below(target, root),
        "parameters": parameters,
        "kernel_name": KERNEL,
        "progress_bar": False,
        # The usual limits (60 s and 4 s) end runs on a busy machine; a dead kernel is seen anyway.
        "start_timeout": 600,
        "iopub_timeout": 120,
    }
    command = [sys.executable, "-c", PAPERMILL, json.dumps(call)]
    start = time.monotonic()
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command,
            cwd=root,
            env=_environment(jobs),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            peak, hung = _watch(process, start, tick)
        finally:
            end_tree(process)
        log.seek(0)
        text = log.read()
    seconds = time.monotonic() - start
    if process.returncode == 0:
        return Outcome("done", seconds, peak, "")
    if hung or "DeadKernelError" in text:
        return Outcome("kernel died", seconds, peak, _death(target, peak))
    message = failing_cell(target) or "\n".join(text.strip().splitlines()[-15:])
    return Outcome("failed", seconds, peak, message)


def _below(path: Path, root: Path) -> str:
    return str(path.relative_to(root) if path.is_relative_to(root) else path)


def _environment(jobs: int | None) -> dict[str, str]:
    """The kernel named python3 must be that of this interpreter, not one of the user's."""
    environment = os.environ | {"JUPYTER_PREFER_ENV_PATH": "1"}
    environment.pop("JUPYTER_PATH", None)
    if jobs:
        environment |= {name: str(jobs) for name in THREAD_VARIABLES}
    return environment


def _watch(process: subprocess.Popen, start: float, tick) -> tuple[float, bool]:
    """Wait for the end; (peak memory of the kernel in MB, whether papermill missed its death)."""
    kernel, peak, seen_alive = None, 0.0, start
    while True:
        try:
            process.wait(PAUSE)
            return peak, False
        except subprocess.TimeoutExpired:
            now = time.monotonic()
        tick(now - start)
        kernel = kernel or _find_kernel(process.pid)
        memory = _memory_mb(kernel) if kernel else 0.0
        peak = max(peak, memory)
        if memory or not kernel:
            seen_alive = now
        elif now - seen_alive > PATIENCE:
            return peak, True


def _find_kernel(parent: int) -> psutil.Process | None:
    try:
        for child in psutil.Process(parent).children(recursive=True):
            if any("ipykernel" in word for word in child.cmdline()):
                return child
    except psutil.Error:
        pass  # it ended while we looked
    return None


def _memory_mb(kernel: psutil.Process) -> float:
    """Resident memory of the kernel (its high-water mark) and of its children; 0.0 when dead."""
    try:
        if not kernel.is_running() or kernel.status() == psutil.STATUS_ZOMBIE:
            return 0.0
        total = _high_water(kernel.pid) or kernel.memory_info().rss
        children = kernel.children(recursive=True)
    except psutil.Error:
        return 0.0
    for child in children:
        try:
            total += child.memory_info().rss
        except psutil.Error:
            continue
    return total / 2**20


def _high_water(pid: int) -> int:
    """Bytes of the largest resident memory so far, where the system tells it (Linux), else 0."""
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.M)
    except OSError:
        return 0
    return int(found.group(1)) * 1024 if found else 0


def end_tree(process: subprocess.Popen) -> None:
    """End papermill and its kernel if they still run: the cell is interrupted, then all killed."""
    if process.poll() is not None:
        return
    kernel = _find_kernel(process.pid)
    try:
        if kernel and _memory_mb(kernel):
            kernel.send_signal(signal.SIGINT)
            process.wait(GRACE)
    except (psutil.Error, subprocess.TimeoutExpired):
        pass  # it is gone, or deaf
    finally:  # also when the user can't wait
        kill_tree(process)


def kill_tree(process: subprocess.Popen) -> None:
    """Kill a process and all below it, unless it has ended."""
    if process.poll() is not None:
        return
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.Error:
        family = []
    for member in (process, *family):
        try:
            member.kill()
        except psutil.Error:
            continue
    process.wait()


def _death(target: Path, peak: float) -> str:
    memory = psutil.virtual_memory().total / 2**20
    started = [c for c in _code_cells(target) if c.metadata.get("papermill", {}).get("start_time")]
    return (
        "The kernel died. The usual reason is that memory ran out and the system ended it "
        f"(its peak was {peak:,.0f} MB, the machine has {memory:,.0f} MB).\n"
        "Fewer configurations or collections at a time need less."
        + (f"\n\n{_quote(started[-1])}" if started else "")
    )


def failing_cell(target: Path) -> str:
    """Source and error of the first cell with an error in an executed notebook; '' if none."""
    for cell in _code_cells(target):
        for output in cell.outputs:
            if output.output_type == "error":
                lines = _plain("\n".join(output.traceback)).rstrip().splitlines()
                tail = "\n".join(lines[-12:]) or f"{output.ename}: {output.evalue}"
                return f"{_quote(cell)}\n\n{tail}"
    return ""


def _quote(cell) -> str:
    number = f"[{cell.execution_count}]" if cell.execution_count else ""
    source = "\n".join(f"    {line}" for line in cell.source.splitlines())
    return f"The cell {number}:\n{source}"


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)  # without terminal colours


def _code_cells(path: Path) -> list:
    try:
        notebook = nbformat.read(path, as_version=4)
    except Exception:  # papermill was killed while it wrote, or never wrote
        return []
    return [cell for cell in notebook.cells if cell.cell_type == "code"]
