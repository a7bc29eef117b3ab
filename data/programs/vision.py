"""Image, graph, table and point-cloud programs, plain JAX: the zoo of source ``xla``.

A program's name is its definition: ``mlp.grad.b500d96f64l2`` is the family ``mlp``, a
training step, with b=500, d=96, f=64, l=2 handed to the family's function. Letters: b batch,
i image side, c channels, d width, f hidden width, p patch side, l layers, n nodes or points;
others are explained where they occur. A family's function returns ``forward``, the shapes of
its inputs (or the inputs themselves) and the shapes of its weights;
``forward(*inputs, *weights)`` gives one array.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from utils.xla.zoo import layer_norm, named_programs

# One assignment of programs to splits, valid in every collection. The families unet,
# capsule, dlrm and pointnet never occur in train.
SPLIT = {
    "mlp.b1000d96f64l3": "train",
    "mlp.b500d130f100l4": "train",
    "mlp.grad.b500d64f48l3": "train",
    "convnet.b4i32c16": "train",
    "convnet.b2i52c12": "train",
    "convnet.grad.b4i20c8": "train",
    "resnet.b4i28c32": "train",
    "resnet.b2i40c48": "train",
    "mobilenet.b4i28c24": "train",
    "mobilenet.b2i50c16": "train",
    "mixer.b4i64p8d64f48": "train",
    "mixer.b8i40p4d48f40": "train",
    "mixer.grad.b4i32p4d32f40": "train",
    "gcn.b4n128d48f64": "train",
    "gcn.b2n250d36f40": "train",
    "gcn.grad.b4n100d32f32": "train",
    "vit.b4i64p8d64h4": "train",
    "vit.b2i50p5d72h6": "train",
    "autoencoder.b8i32c8f32": "train",
    "autoencoder.grad.b4i24c8f24": "train",
    "bilinear.b8i20c12f40": "train",
    "bilinear.b4i30c10f30": "train",
    "nerf.b40n25f64": "train",
    "nerf.b16n96f48": "train",
    "sinkhorn.b4n96d32": "train",
    "unet.b2i40c12": "valid",
    "capsule.b16n72d8k10": "valid",
    "capsule.b10n50d12k16": "valid",
    "mixer.b3i60p6d80f50": "valid",
    "gcn.b3n180d64f48": "valid",
    "dlrm.b250k10d16f64": "test",
    "dlrm.b128k26d20f50": "test",
    "pointnet.b8n130f48": "test",
    "mlp.b720d80f120l3": "test",
    "vit.b6i40p5d48h4": "test",
}


def conv(x, kernel, stride=1, groups=1):
    """[b, i, i, c] with [k, k, c / groups, o] -> [b, i / stride, i / stride, o]"""
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", feature_group_count=groups,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )  # fmt: skip


def max_pool(x):
    """Halve both sides of [b, i, i, c]."""
    b, i, _, c = x.shape
    return x.reshape(b, i // 2, 2, i // 2, 2, c).max((2, 4))


def patches(x, p):
    """[b, i, i, c] -> [b, (i / p)**2, p * p * c]"""
    b, i, _, c = x.shape
    x = x.reshape(b, i // p, p, i // p, p, c).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(b, (i // p) ** 2, p * p * c)


def mlp(b, d, f, l):
    """Perceptron d -> f -> ... -> d with l hidden layers; bias and ReLU in each."""

    def forward(x, *weights):
        *hidden, out = zip(weights[::2], weights[1::2], strict=True)
        for w, bias in hidden:
            x = jax.nn.relu(x @ w + bias)
        return x @ out[0] + out[1]

    widths = [d, *[f] * l, d]
    layers = [s for m, n in zip(widths, widths[1:]) for s in ((m, n), (n,))]
    return forward, [(b, d)], layers


def convnet(b, i, c):
    """Two 3 x 3 convolutions with pooling, then two dense layers."""

    def forward(x, k1, k2, w1, w2):
        x = max_pool(jax.nn.relu(conv(x, k1)))
        x = max_pool(jax.nn.relu(conv(x, k2)))
        x = jax.nn.relu(x.reshape(b, -1) @ w1)
        return jax.nn.log_softmax(x @ w2)

    flat = (i // 4) ** 2 * 2 * c
    return forward, [(b, i, i, 3)], [(3, 3, 3, c), (3, 3, c, 2 * c), (flat, 32), (32, 10)]


def resnet(b, i, c):
    """Two bottleneck blocks: 1 x 1 down to c / 4, 3 x 3, 1 x 1 up, each with a shortcut."""

    def forward(x, *weights):
        for down, kernel, up in (weights[:3], weights[3:]):
            y = jax.nn.relu(x.reshape(b, i * i, c) @ down)
            y = jax.nn.relu(conv(y.reshape(b, i, i, c // 4), kernel))
            x = jax.nn.relu(x + (y.reshape(b, i * i, c // 4) @ up).reshape(b, i, i, c))
        return x

    n = c // 4
    return forward, [(b, i, i, c)], [(c, n), (3, 3, n, n), (n, c)] * 2


def depthwise(x, kernel):
    """3 x 3 depthwise convolution as nine shifted products: fast on CPUs, unlike the grouped one.

    x [b, i, i, c], kernel [9, c].
    """
    i = x.shape[1]
    x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    taps = [x[:, r : r + i, s : s + i] for r in range(3) for s in range(3)]
    return sum(tap * k for tap, k in zip(taps, kernel, strict=True))


def mobilenet(b, i, c):
    """Inverted residual: 1 x 1 up to 2c, 3 x 3 depthwise, squeeze and excite, 1 x 1 down."""

    def forward(x, up, kernel, squeeze, excite, down):
        y = jax.nn.relu(x.reshape(b, i * i, c) @ up).reshape(b, i, i, 2 * c)
        y = jax.nn.relu(depthwise(y, kernel))
        gate = jax.nn.sigmoid(jax.nn.relu(y.mean((1, 2)) @ squeeze) @ excite)
        y = (y * gate[:, None, None]).reshape(b, i * i, 2 * c) @ down
        return x + y.reshape(b, i, i, c)

    return forward, [(b, i, i, c)], [(c, 2 * c), (9, 2 * c), (2 * c, 8), (8, 2 * c), (2 * c, c)]


def mixer(b, i, p, d, f):
    """Patches, one MLP-mixer block (over positions, then channels), a linear readout."""
    s = (i // p) ** 2

    def forward(x, embed, gain1, mix1, mix2, gain2, up, down, readout):
        x = patches(x, p) @ embed
        y = layer_norm(x, gain1).transpose(0, 2, 1)
        x = x + (jax.nn.gelu(y @ mix1) @ mix2).transpose(0, 2, 1)
        x = x + jax.nn.gelu(layer_norm(x, gain2) @ up) @ down
        return x.mean(1) @ readout

    shapes = [(3 * p * p, d), (d,), (s, f), (f, s), (d,), (d, f), (f, d), (d, 10)]
    return forward, [(b, i, i, 3)], shapes


def gcn(b, n, d, f):
    """Graph convolution, three layers, on b graphs of n nodes with dense adjacency."""

    def forward(x, adjacency, w1, w2, w3):
        adjacency = jax.nn.sigmoid(adjacency)
        adjacency = adjacency / adjacency.sum(-1, keepdims=True)
        for w in (w1, w2):
            x = jax.nn.relu(adjacency @ (x @ w))
        return jax.nn.log_softmax(adjacency @ (x @ w3))

    return forward, [(b, n, d), (b, n, n)], [(d, f), (f, f), (f, 10)]


def vit(b, i, p, d, h):
    """Vision transformer: patch embedding, attention with h heads, MLP, mean readout."""
    s = (i // p) ** 2

    def forward(x, embed, position, w_qkv, w_out, w_up, w_down):
        x = patches(x, p) @ embed + position
        qkv = (x @ w_qkv).reshape(b, s, 3, h, d // h)
        q, k, v = qkv.transpose(2, 0, 3, 1, 4)
        scores = jnp.einsum("bhsc,bhmc->bhsm", q, k) / np.sqrt(d // h)
        y = jnp.einsum("bhsm,bhmc->bshc", jax.nn.softmax(scores), v)
        x = x + y.reshape(b, s, d) @ w_out
        return (x + jax.nn.gelu(x @ w_up) @ w_down).mean(1)

    shapes = [(3 * p * p, d), (s, d), (d, 3 * d), (d, d), (d, d), (d, d)]
    return forward, [(b, i, i, 3)], shapes


def autoencoder(b, i, c, f):
    """Strided convolutions down to a code of width f, and back by depth to space."""
    q = i // 4

    def forward(x, k1, k2, w_code, w_open, k3, k4):
        y = jax.nn.relu(conv(x, k1, stride=2))
        y = jax.nn.relu(conv(y, k2, stride=2)).reshape(b, q * q * 2 * c)
        y = jax.nn.relu(jnp.tanh(y @ w_code) @ w_open).reshape(b, q, q, 2 * c)
        for kernel in (k3, k4):
            y = conv(y, kernel)
            side, depth = y.shape[1], y.shape[3] // 4
            y = y.reshape(b, side, side, 2, 2, depth).transpose(0, 1, 3, 2, 4, 5)
            y = y.reshape(b, 2 * side, 2 * side, depth)
        return jax.nn.sigmoid(y)

    n = q * q * 2 * c
    shapes = [(3, 3, 3, c), (3, 3, c, 2 * c), (n, f), (f, n), (3, 3, 2 * c, 4 * c), (3, 3, c, 12)]
    return forward, [(b, i, i, 3)], shapes


def bilinear(b, i, c, f):
    """Bilinear pooling: outer products of two feature maps, signed root, unit length."""

    def forward(x, kernel, w1, w2, w_out):
        x = jax.nn.relu(conv(x, kernel)).reshape(b, i * i, c)
        left, right = jax.nn.relu(x @ w1), jnp.tanh(x @ w2)
        y = jnp.einsum("bne,bng->beg", left, right).reshape(b, f * f) / (i * i)
        y = jnp.sign(y) * jnp.sqrt(jnp.abs(y) + 1e-6)
        return (y * lax.rsqrt((y * y).sum(-1, keepdims=True))) @ w_out

    return forward, [(b, i, i, 3)], [(3, 3, 3, c), (c, f), (c, f), (f * f, 10)]


def nerf(b, n, f):
    """Radiance field: waves of n points on b rays, an MLP with a skip, then compositing."""

    def forward(points, w1, w2, w3, w_density, w_colour):
        angle = (points[..., None] * 2.0 ** jnp.arange(4)).reshape(b, n, 12)
        x = jnp.concatenate([points, jnp.sin(angle), jnp.cos(angle)], axis=-1)
        y = jax.nn.relu(jax.nn.relu(x @ w1) @ w2)
        y = jax.nn.relu(jnp.concatenate([y, x], axis=-1) @ w3)
        density = jax.nn.softplus((y @ w_density).reshape(b, n)) / n
        seen = jnp.exp(-jnp.cumsum(density, axis=1)) * (1 - jnp.exp(-density))
        return jnp.einsum("bn,bnk->bk", seen, jax.nn.sigmoid(y @ w_colour))

    return forward, [(b, n, 3)], [(27, f), (f, f), (f + 27, f), (f, 1), (f, 3)]


def sinkhorn(b, n, d):
    """Soft matching of two embedded point sets: six rounds of row and column scaling."""

    def forward(x, y, w):
        left, right = jnp.tanh(x @ w), jnp.tanh(y @ w)
        scores = 4 * jnp.einsum("bid,bjd->bij", left, right) / np.sqrt(d)
        kernel = jnp.exp(scores - scores.max((1, 2), keepdims=True))
        v = jnp.full((b, n, 1), 1 / n)
        for _ in range(6):
            u = 1 / (kernel @ v) / n
            v = 1 / (kernel.transpose(0, 2, 1) @ u) / n
        plan = u * kernel * v.reshape(b, 1, n)
        return plan @ right - left

    return forward, [(b, n, d), (b, n, d)], [(d, d)]


def unet(b, i, c):
    """U-Net of depth two: down by pooling, up by repetition, a skip joined by channels."""

    def forward(x, k1, k2, mix, k3, w_out):
        skip = jax.nn.relu(conv(x, k1))
        y = jax.nn.relu(conv(max_pool(skip), k2)) @ mix
        y = jnp.repeat(jnp.repeat(y, 2, axis=1), 2, axis=2)
        y = jax.nn.relu(conv(jnp.concatenate([skip, y], axis=-1), k3))
        return jax.nn.sigmoid(y.reshape(b, i * i, c) @ w_out)

    shapes = [(3, 3, 3, c), (3, 3, c, 2 * c), (2 * c, c), (3, 3, 2 * c, c), (c, 2)]
    return forward, [(b, i, i, 3)], shapes


def capsule(b, n, d, k):
    """Capsules: n inputs vote for k outputs; two rounds of routing by agreement."""

    def squash(x):
        size = (x * x).sum(-1, keepdims=True)
        return x * size / ((1 + size) * jnp.sqrt(size + 1e-6))

    def forward(x, w):
        votes = jnp.einsum("bnd,ndke->bnke", squash(x), w.reshape(n, d, k, d))
        logits = jnp.zeros((b, n, k))
        for _ in range(2):
            out = squash(jnp.einsum("bnk,bnke->bke", jax.nn.softmax(logits), votes))
            logits = logits + jnp.einsum("bnke,bke->bnk", votes, out)
        return squash(jnp.einsum("bnk,bnke->bke", jax.nn.softmax(logits), votes))

    return forward, [(b, n, d)], [(n * d, k * d)]


def dlrm(b, k, d, f):
    """Recommendation: k embeddings and a dense vector meet in all pairs, then an MLP."""
    rows = 500
    ids = np.random.default_rng(k).integers(rows, size=(b, k), dtype=np.int32)

    def forward(ids, dense, table, w1, w2, w_pairs, w3, w_out):
        dense = jax.nn.relu(jax.nn.relu(dense @ w1) @ w2)
        x = jnp.concatenate([dense[:, None], table[ids]], axis=1) @ w_pairs
        pairs = jnp.einsum("bid,bjd->bij", x, x).reshape(b, (k + 1) ** 2)
        y = jax.nn.relu(jnp.concatenate([dense, pairs], axis=-1) @ w3)
        return jax.nn.sigmoid(y @ w_out)

    shapes = [(rows, d), (13, f), (f, d), (d, d), (d + (k + 1) ** 2, f), (f, 1)]
    return forward, [ids, (b, 13)], shapes


def pointnet(b, n, f):
    """PointNet: points turned by a learned frame, a shared MLP, a maximum over points."""

    def forward(x, w_frame, w_turn, w1, w2, w3, w_out):
        frame = jax.nn.relu(x @ w_frame).max(1) @ w_turn
        x = x @ (frame.reshape(b, 3, 3) + jnp.eye(3))
        local = jax.nn.relu(jax.nn.relu(x @ w1) @ w2)
        whole = jax.nn.relu(local @ w3).max(1)
        whole = jnp.broadcast_to(whole[:, None], (b, n, 2 * f))
        return jnp.concatenate([local, whole], axis=-1).reshape(b * n, 3 * f) @ w_out

    shapes = [(3, f), (f, 9), (3, f), (f, f), (f, 2 * f), (3 * f, 5)]
    return forward, [(b, n, 3)], shapes


FAMILIES = {
    f.__name__: f
    for f in (
        mlp, convnet, resnet, mobilenet, mixer, gcn, vit, autoencoder, bilinear, nerf, sinkhorn,
        unet, capsule, dlrm, pointnet,
    )
}  # fmt: skip
SOURCE = dict.fromkeys(FAMILIES, "xla")


def programs():
    """Yield (name, function, example arguments)."""
    return named_programs(SPLIT, FAMILIES)
