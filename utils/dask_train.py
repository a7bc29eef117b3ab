"""Train the pairwise ranker on a Dask cluster: every worker reads the tables of its own graphs.

XGBoost on several workers draws rows and finds the bins of a column on each of them, so the trees
depend on how many there are, and are not those of a fit in one process, only as good. The same
seed on as many workers gives the same trees; a fit on one worker gives those of `ranking.fit`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from utils import ranking
from utils.cluster import ClusterError
from utils.dataset import DataError
from utils.ranking import Ranker
from utils.train_stream import Part, column_ranges, training_data, varying_columns

if TYPE_CHECKING:
    from dask.array import Array
    from distributed import Client, Future

TRIES = 3  # XGBoost gives up when a worker dies, so the fit as a whole is tried again
COME_BACK = 60  # seconds in which lost workers may come back before it goes on without them
NOTICE = 10  # seconds for the scheduler to notice what XGBoost may notice first


def fit(
    client: Client,
    model: str,
    parts: Sequence[Part],
    rows: Sequence[int],
    names: Sequence[str],
    seed: int = 0,
) -> Ranker:
    """Fit `rank_pairwise`, or an ablation of it, on the rows of all graphs together.

    `parts` are called on the workers, twice, and have to give the same each time; `rows` says how
    many rows each gives, `names` are those of their columns. A graph is never divided between
    workers. Raises DataError when there is nothing to learn from, ClusterError when workers died
    in each of `TRIES` tries.
    """
    for left in reversed(range(TRIES)):
        workers = workers_in_order(client)
        try:
            return _fit_once(client, workers, model, parts, rows, names, seed)
        except DataError:
            raise
        except Exception as error:  # many kinds, by what XGBoost or Dask were doing
            if not _lost(client, workers):
                raise
            if not left:
                why = f"workers died in each of {TRIES} tries to train"
                raise ClusterError(f"{model}: {why}") from error
        with suppress(TimeoutError):
            client.wait_for_workers(len(workers), timeout=COME_BACK)


def workers_in_order(client: Client) -> list[str]:
    """Addresses of the workers, in the order in which XGBoost numbers them."""
    about = client.scheduler_info()["workers"]
    if not about:
        raise ClusterError("the Dask scheduler has no workers any more")
    return sorted(about, key=lambda at: f"[xgboost.dask-{about[at]['name']}]:{at}")


def _lost(client: Client, workers: Sequence[str]) -> bool:
    """Has one of the workers gone, or does it within a few seconds?"""
    end = time.monotonic() + NOTICE
    while set(workers) <= set(client.scheduler_info()["workers"]):
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True


def shares_of(rows: Sequence[int], workers: int) -> list[np.ndarray]:
    """Which graphs, by number, each worker gets: neighbours, about the same number of rows."""
    middle = np.cumsum(rows) - np.asarray(rows) / 2
    worker = (middle / max(1, sum(rows)) * workers).astype(int)
    return [np.flatnonzero(worker == one) for one in np.unique(worker)]


def _fit_once(
    client: Client,
    workers: Sequence[str],
    model: str,
    parts: Sequence[Part],
    rows: Sequence[int],
    names: Sequence[str],
    seed: int,
) -> Ranker:
    from xgboost import dask as xgboost_dask

    shares = shares_of(rows, len(workers))
    given = [[parts[i] for i in share] for share in shares]
    # Where a worker has gone, another one takes its place rather than waiting for it forever.
    places = [{"workers": [at], "allow_other_workers": True, "pure": False} for at in workers]
    ranges = [
        client.submit(column_ranges, model, own, len(names), **place)
        for own, place in zip(given, places)
    ]
    low, high, found = zip(*client.gather(ranges))
    columns = varying_columns(model, names, np.fmin.reduce(low), np.fmax.reduce(high))
    # One piece a worker: Dask may move one of several to a worker that is idle at the moment.
    pieces = [
        client.submit(_joined, own, share[0], columns, **place)
        for own, share, place in zip(given, shares, places)
    ]
    features, label, graph = (
        _array(client, pieces, which, found, width, places)
        for which, width in enumerate((len(columns), None, None))
    )
    data = xgboost_dask.DaskQuantileDMatrix(
        client, features, label, qid=graph, max_bin=ranking.RANK_PARAMETERS["max_bin"]
    )
    settings = ranking.rank_settings(sum(found), seed, threads=0)
    del settings["nthread"]  # as many as the worker has
    trained = xgboost_dask.train(client, settings, data, ranking.RANK_TREES)
    return Ranker(model, tuple(names[i] for i in columns), trained["booster"])


def _joined(
    parts: Sequence[Part], first: int, columns: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`training_data` of several graphs, the first of which has the number `first`."""
    each = [training_data(part, graph, columns) for graph, part in enumerate(parts, first)]
    features, label, graph = zip(*each)
    return np.concatenate(features), np.concatenate(label), np.concatenate(graph)


def _array(
    client: Client,
    pieces: Sequence[Future],
    which: int,
    rows: Sequence[int],
    width: int | None,
    places: Sequence[dict],
) -> Array:
    """One of the arrays that each piece holds, as a Dask array [sum of rows] or [.., width]."""
    from dask import array

    shape = () if width is None else (width,)
    dtype = (np.float32, np.float64, np.int64)[which]
    return array.concatenate(
        [
            array.from_delayed(
                client.submit(itemgetter(which), piece, **place), (count, *shape), dtype
            )
            for piece, count, place in zip(pieces, rows, places)
        ]
    )
