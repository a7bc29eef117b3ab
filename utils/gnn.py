"""Train and use the deep opponent of the trees: the network of `utils.gnn_network`.

One network a collection is trained by comparing configurations of the same graph. Weights are
kept as plain arrays, without pickle.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from utils.dataset import DataError
from utils.files import save_npz, write_json
from utils.gnn_graphs import GnnGraph
from utils.gnn_network import Network, Settings, Tensors, tensors
from utils.metrics import kendall_tau

GNN_VERSION = 1  # raised whenever the network or its inputs change: a saved one is refused
TRAIN_NUMBERS = 1 << 22  # float32 of one tensor [n, b, h]; some 30 of them are kept for a step
SCORE_NUMBERS = 1 << 20
LEAST_TRAIN, CHECKED = 8, 256  # configurations: of a step at least, of a held-out graph at most
LEAST_STEPS = 10  # of an epoch: with few graphs each is met several times


@dataclass(frozen=True)
class Trained:
    """A network and how its training went."""

    settings: Settings
    network: Network
    history: list[dict] = field(default_factory=list)  # epoch, loss, tau of the held-out graphs
    epochs: int = 0  # that led to these weights


def fit(
    graphs: Sequence[GnnGraph],
    settings: Settings = Settings(),
    held_out: Sequence[GnnGraph] = (),
    seed: int = 0,
    threads: int = 2,
    device: str = "cpu",
    stop_at: int | None = None,
) -> Trained:
    """Train on some graphs; the weights with the best mean tau on `held_out` are kept.

    Without held-out graphs training ends with the last epoch, or after `stop_at` of them under the
    same schedule. The same graphs, settings and seed give the same network on the same processor.
    Raises DataError when no graph has two different targets.
    """
    graphs = sorted(graphs, key=lambda g: (g.file.id, g.file.split))
    graphs = [graph for graph in graphs if len(np.unique(graph.target)) > 1]
    if not graphs:
        raise DataError("gnn: no graph with configurations to tell apart")
    torch.set_num_threads(threads)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _fit(graphs, settings, held_out, np.random.default_rng(seed), device, stop_at)


def _fit(graphs, settings: Settings, held_out, rng, device: str, stop_at: int | None) -> Trained:
    first = graphs[0]
    network = Network(settings, first.node.shape[1], first.row.shape[1], first.codes is None)
    _set_scales(network, graphs)
    network.to(device).train()
    ready = [tensors(graph, device) for graph in graphs]
    rounds = -(-LEAST_STEPS // len(graphs))
    steps = settings.epochs * rounds * len(graphs)
    optimizer = torch.optim.AdamW(network.parameters(), settings.rate, weight_decay=settings.decay)
    rise = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min((s + 1) / rise, 0.5 + 0.5 * np.cos(np.pi * min(1.0, s / steps)))
    )
    history, best, waited = [], (-np.inf, 0, None), 0
    every = max(1, settings.epochs // settings.looks)
    last = min(settings.epochs, stop_at or settings.epochs)
    for epoch in range(1, last + 1):
        losses = []
        for i in np.concatenate([rng.permutation(len(graphs)) for _ in range(rounds)]):
            losses.append(_step(network, optimizer, graphs[i], ready[i], settings, rng, device))
            schedule.step()
        history.append({"epoch": epoch, "loss": float(np.mean(losses)), "tau": None})
        if held_out and (epoch % every == 0 or epoch == last):
            tau = mean_tau(Trained(settings, network), held_out, device)
            history[-1]["tau"], waited = tau, waited + 1
            if tau > best[0]:
                weights = {k: v.detach().clone() for k, v in network.state_dict().items()}
                best, waited = (tau, epoch, weights), 0
            if waited >= settings.patience:
                break
    if best[2] is not None:
        network.load_state_dict(best[2])
    network.eval()
    return Trained(settings, network, history, best[1] or last)


def _set_scales(network: Network, graphs: Sequence[GnnGraph]) -> None:
    """Centre and spread of the columns over all training graphs; constants are left out."""
    for name in ("node", "row"):
        parts = [getattr(graph, name) for graph in graphs]
        count = sum(map(len, parts))
        mean = sum(part.sum(0, dtype=np.float64) for part in parts) / count
        scale = np.sqrt(sum(((part - mean) ** 2).sum(0) for part in parts) / count)
        scale = np.where(scale < 1e-6, np.inf, np.maximum(scale, 0.05))
        getattr(network, f"{name}_mean").copy_(torch.from_numpy(mean))
        getattr(network, f"{name}_scale").copy_(torch.from_numpy(scale))


def _step(network, optimizer, graph: GnnGraph, ready: Tensors, settings, rng, device) -> float:
    """One batch of a graph's configurations; returns the loss."""
    size = min(settings.batch, graph.configs)
    if graph.codes is not None:
        most = TRAIN_NUMBERS // (settings.hidden * len(graph.opcode))
        size = min(size, max(LEAST_TRAIN, most))
    chosen = rng.choice(graph.configs, size, replace=False)
    score = network(ready, _rows(graph, chosen, device))
    log = np.log(np.maximum(graph.target[chosen], 1e-300))
    target = torch.from_numpy(log - log.min()).to(score)  # float32 keeps small differences
    loss = listmle(score, target) if settings.loss == "listmle" else hinge(score, target, settings)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def hinge(score: Tensor, target: Tensor, settings: Settings) -> Tensor:
    """Mean over pairs i slower than j of max(0, margin - (score i - score j)); 0 without a pair.

    target: logarithms. `weighted`: pairs count by the root of the difference of their targets.
    """
    gap = (target[:, None] - target[None]).clamp(min=0)
    weight = gap.sqrt() if settings.weighted else (gap > 0).to(score)
    loss = functional.relu(settings.margin - (score[:, None] - score[None]))
    return (weight * loss).sum() / weight.sum().clamp(min=1e-12)


def listmle(score: Tensor, target: Tensor) -> Tensor:
    """Negative log likelihood, a place, of the true order from the slowest on (Xia et al. 2008)."""
    ordered = score[torch.argsort(target, descending=True, stable=True)]
    return (torch.logcumsumexp(ordered.flip(0), 0).flip(0) - ordered).mean()


def _rows(graph: GnnGraph, configs: np.ndarray, device: str) -> Tensor:
    rows = configs if graph.codes is None else graph.rows_of(configs)
    return torch.from_numpy(np.ascontiguousarray(rows, np.int64)).to(device)


def mean_tau(trained: Trained, graphs: Sequence[GnnGraph], device: str = "cpu") -> float:
    """Mean tau over graphs, of their first CHECKED configurations."""
    scores = [predict(trained, g, device=device, most=CHECKED) for g in graphs]
    return float(np.mean([kendall_tau(g.target[: len(s)], s) for g, s in zip(graphs, scores)]))


@torch.no_grad()
def predict(
    trained: Trained, graph: GnnGraph, batch: int = 0, device: str = "cpu", most: int | None = None
) -> np.ndarray:
    """Scores of a graph's configurations (the first `most` of them), float64, larger = slower.

    batch: configurations at once, 0: as many as fit SCORE_NUMBERS. It changes nothing but the last
    digits, except with `cross`, where the configurations of a batch look at each other.
    """
    network, ready = trained.network, tensors(graph, device)
    training = network.training
    network.eval()
    width = 1 if graph.codes is None else len(graph.opcode)
    batch = batch or max(1, SCORE_NUMBERS // (width * trained.settings.hidden))
    configs = np.arange(graph.configs)[:most]
    parts = [
        network(ready, _rows(graph, configs[start : start + batch], device)).double().cpu().numpy()
        for start in range(0, len(configs), batch)
    ]
    network.train(training)
    return np.concatenate(parts)


def save_model(trained: Trained, stem: Path, **facts) -> None:
    """Write `stem`.npz (the weights, plain arrays) and `stem`.json (settings, version, `facts`)."""
    stem, network = Path(stem), trained.network
    weights = {name: value.cpu().numpy() for name, value in network.state_dict().items()}
    save_npz(stem.with_name(stem.name + ".npz"), **weights)
    about = {"model": "gnn", "gnn_version": GNN_VERSION, "tile": network.tile}
    about |= {"settings": asdict(trained.settings), "epochs": trained.epochs}
    write_json(stem.with_name(stem.name + ".json"), about | facts)


def load_model(stem: Path) -> Trained:
    """Read what `save_model` wrote. Raises DataError for another version of the network."""
    stem = Path(stem)
    path = stem.with_name(stem.name + ".json")
    about = json.loads(path.read_text(encoding="utf-8"))
    version = about.get("gnn_version")
    if version != GNN_VERSION:
        raise DataError(f"{path}: made for version {version}, this is {GNN_VERSION}: train again")
    settings = Settings(**about["settings"])
    with np.load(stem.with_name(stem.name + ".npz"), allow_pickle=False) as arrays:
        weights = {name: torch.from_numpy(arrays[name]) for name in arrays}
    widths = (len(weights["node_mean"]), len(weights["row_mean"]))
    network = Network(settings, *widths, about["tile"])
    network.load_state_dict(weights)
    return Trained(settings, network.eval(), epochs=about["epochs"])
