"""One job for each graph: in this process, or on the workers of a Dask cluster.

Only a run that names a scheduler imports Dask (requirements-dask.txt).
"""

from __future__ import annotations

import os
import platform
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from utils.made_of import mark
from utils.progress import progress

if TYPE_CHECKING:
    from distributed import Client, Future

    from utils.notebook import Run

PATIENCE = "10 s"  # for the scheduler to answer, and for a first worker to be there
PACKAGES = ("distributed", "numpy", "polars", "scikit-learn", "scipy", "xgboost")
BATCH = 500  # jobs sent at a time


class ClusterError(RuntimeError):
    """A Dask cluster that can't do the work. One line."""


def each_graph(run: Run, work: Callable, jobs: Sequence[tuple], what: str) -> list:
    """``[work(run, *job) for job in jobs]`` with a progress bar; the first of a job is its file.

    Where `run.dask` names a scheduler, its workers share the jobs. `work` then has to be a function
    of a module, give nothing large, and leave its results as files that appear whole: a job whose
    worker dies is done again by another, and `run.files` is empty there. The error of a job is
    raised when the other jobs are done; of several that of the first.
    """
    if run.dask and jobs:
        return _on_cluster(run, work, jobs, what)
    return [work(run, *job) for job in progress(jobs, desc=what, unit="graph")]


def _on_cluster(run: Run, work: Callable, jobs: Sequence[tuple], what: str) -> list:
    from distributed import as_completed

    client = connect(run.dask, run.out, run.data)
    work = partial(work, replace(run, files=[]))  # a list of thousands would go with every job
    futures = client.map(work, *zip(*jobs), pure=False, batch_size=BATCH)
    try:
        for _ in progress(as_completed(futures), total=len(jobs), desc=what, unit="graph"):
            pass
        return [_result(run, future, job[0].path) for future, job in zip(futures, jobs)]
    finally:
        client.cancel(futures)  # after Ctrl-C; what is done stays done


def _result(run: Run, future: Future, path: Path):
    from distributed import KilledWorker

    try:
        return future.result()
    except KilledWorker as error:
        why = "the workers that had it died, one after another; usually memory ran out"
        raise ClusterError(f"{path}: {why}") from error
    except CancelledError as error:
        raise ClusterError(f"{run.dask}: the Dask scheduler has gone; run again") from error


def open_client(address: str, out: Path, data: Path) -> Client:
    """A client of the scheduler at `address`.

    Raises ClusterError with one line where Dask is not installed, nothing answers, there is no
    worker, the scheduler or a worker has other code or packages, or a worker doesn't see the
    folders of the run.
    """
    try:
        from distributed import Client
    except ImportError as error:
        how = ".venv/bin/pip install -r requirements-dask.txt"
        raise ClusterError(f"Dask is not installed: {how}") from error
    try:
        client = Client(address, timeout=PATIENCE)
    except (OSError, ValueError) as error:
        raise ClusterError(f"{address}: no Dask scheduler answers there") from error
    try:
        _check(client, address, out, data)
    except BaseException:
        client.close()
        raise
    return client


connect = cache(open_client)  # one client a process


def _check(client: Client, address: str, out: Path, data: Path) -> None:
    expected = made_with()
    try:
        answer = client.run_on_scheduler(difference_here, expected)  # jobs are unpacked there, too
    except (ImportError, AttributeError) as error:  # AttributeError: it has an older utils
        answer = error
    if answer:
        raise ClusterError(f"scheduler {address}: {_in_words(answer)}")
    try:
        client.wait_for_workers(1, timeout=PATIENCE)
    except TimeoutError as error:
        raise ClusterError(f"{address}: this Dask scheduler has no workers") from error
    token = _leave_token(out)
    try:
        answers = client.run(problem_here, token, data, expected, on_error="return")
    finally:
        token.unlink(missing_ok=True)
    bad = [worker for worker, answer in answers.items() if answer]
    for worker in bad[:1]:
        problem = _in_words(answers[worker])
        raise ClusterError(f"worker {worker} (1 of {len(bad)} that can't help): {problem}")


def _in_words(problem: str | Exception) -> str:
    if isinstance(problem, ImportError):
        return f"{problem}: start it with the repository in PYTHONPATH"
    return str(problem)


def _leave_token(out: Path) -> Path:
    """A new file with a name that nobody has asked for: network file systems remember answers."""
    out.mkdir(parents=True, exist_ok=True)
    token = out / f".seen-{secrets.token_hex(8)}"
    token.touch()
    return token


def problem_here(token: Path, data: Path, expected: dict[str, str]) -> str:
    """Why this process can't work on a run, in a few words; empty when it can."""
    for path in (token, data):
        if not path.exists():
            folder = token.parent if path == token else data
            return f"does not see {folder}: all machines have to share it under the same path"
    if not os.access(token.parent, os.W_OK):
        return f"may not write into {token.parent}"
    return difference_here(expected)


def difference_here(expected: dict[str, str]) -> str:
    """What this process has other than `made_with` said elsewhere, in words; empty: nothing."""
    own = made_with()
    for name, wanted in expected.items():
        if own.get(name) != wanted:
            if name == "code":
                return "runs other code than this machine: restart it"
            return f"has {name} {own.get(name)}, this machine {wanted}"
    return ""


@cache  # a worker stays with the code that it began with
def made_with() -> dict[str, str]:
    """What tables depend on besides data: the code of utils, versions of Python and packages."""
    modules = sorted(path.stem for path in Path(__file__).parent.glob("*.py"))
    versions = {name: metadata.version(name) for name in PACKAGES}
    return {"code": mark(" ".join(modules)), "python": platform.python_version()} | versions
