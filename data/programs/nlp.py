"""Sequence and attention programs, plain JAX: the zoo of source ``nlp``.

A program's name is its definition: ``attention.grad.b4s96d64h4`` is the family
``attention``, a training step, with b=4, s=96, d=64, h=4 handed to the family's function.
Letters: b batch, s or t sequence length, d width, h heads, f hidden width; others are
explained where they occur. A family's function returns ``forward``, the shapes of its
inputs and the shapes of its weights; ``forward(*inputs, *weights)`` gives one array.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from utils.xla.zoo import layer_norm, named_programs, rms_norm

# One assignment of programs to splits, valid in every collection. The families gru,
# biaffine, cross_attention and moe never occur in train.
SPLIT = {
    "attention.b4s96d64h4": "train",
    "attention.b2s130d96h3": "train",
    "attention.b8s50d80h5": "train",
    "attention.grad.b4s64d48h4": "train",
    "encoder.b4s64d64h4": "train",
    "encoder.b2s100d72h6": "train",
    "encoder.grad.b2s80d32h2": "train",
    "decoder.b2s96d64h4g2": "train",
    "decoder.b3s50d96h6g2": "train",
    "decoder.b1s128d64h8g1": "train",
    "swiglu.b8s96d48f128": "train",
    "swiglu.b4s130d64f100": "train",
    "swiglu.grad.b4s100d32f80": "train",
    "lstm.b128t4d48u48": "train",
    "lstm.b100t6d32u40": "train",
    "tcn.b8t128c32l3": "train",
    "tcn.b4t250c24l4": "train",
    "retention.b4s96d64h4n32": "train",
    "retention.b2s200d48h3n50": "train",
    "linear_attention.b8s96d64h4": "train",
    "linear_attention.b4s250d48h6": "train",
    "token_mixer.b8s64d96f48l2": "train",
    "token_mixer.grad.b4s50d64f32l1": "train",
    "fnet.b4s100d64f96": "train",
    "gru.b128t4d40u48": "valid",
    "gru.b60t6d64u50": "valid",
    "biaffine.b4s60d96r32l5": "valid",
    "attention.b3s100d60h6": "valid",
    "decoder.b4s40d80h5g5": "valid",
    "cross_attention.b4s64m96d64h4": "test",
    "cross_attention.b2s50m200d48h3": "test",
    "moe.b4s64d48e4f64": "test",
    "encoder.b3s72d48h4": "test",
    "lstm.b64t5d64u64": "test",
}


def split_heads(x, heads):
    """[b, s, d] -> [b, heads, s, d / heads]"""
    b, s, d = x.shape
    return x.reshape(b, s, heads, d // heads).transpose(0, 2, 1, 3)


def merge_heads(x):
    b, h, s, c = x.shape
    return x.transpose(0, 2, 1, 3).reshape(b, s, h * c)


def attend(q, k, v, causal=False):
    """Softmax attention: q [b, h, s, c], k and v [b, h, m, c] -> [b, h, s, c]."""
    scores = jnp.einsum("bhsc,bhmc->bhsm", q, k) / np.sqrt(q.shape[-1])
    if causal:
        later = jnp.arange(k.shape[2]) > jnp.arange(q.shape[2])[:, None]
        scores = jnp.where(later, -1e9, scores)
    return jnp.einsum("bhsm,bhmc->bhsc", jax.nn.softmax(scores), v)


def attention(b, s, d, h):
    """Multi-head self-attention with one fused projection to queries, keys and values."""

    def forward(x, w_qkv, w_out):
        q, k, v = (split_heads(y, h) for y in jnp.split(x @ w_qkv, 3, axis=-1))
        return merge_heads(attend(q, k, v)) @ w_out

    return forward, [(b, s, d)], [(d, 3 * d), (d, d)]


def encoder(b, s, d, h):
    """Transformer encoder block, norm first, ReLU, hidden width 2d."""

    def forward(x, gain1, w_q, w_k, w_v, w_o, gain2, w_up, w_down):
        y = layer_norm(x, gain1)
        x = x + merge_heads(attend(*(split_heads(y @ w, h) for w in (w_q, w_k, w_v)))) @ w_o
        return x + jax.nn.relu(layer_norm(x, gain2) @ w_up) @ w_down

    return forward, [(b, s, d)], [(d,), *[(d, d)] * 4, (d,), (d, 2 * d), (2 * d, d)]


def rotate(x):
    """Rotary position embedding of [b, h, s, c] (halves, not pairs)."""
    s, half = x.shape[2], x.shape[3] // 2
    angle = jnp.arange(s)[:, None] / 100.0 ** (jnp.arange(half) / half)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    left, right = x[..., :half], x[..., half:]
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)


def decoder(b, s, d, h, g):
    """Decoder block: RMS norm, rotary positions, h query heads on g groups, SwiGLU."""
    c = d // h

    def forward(x, gain1, w_q, w_kv, w_o, gain2, w_gate, w_up, w_down):
        y = rms_norm(x, gain1)
        q = rotate(split_heads(y @ w_q, h)).reshape(b, g, h // g * s, c)
        k, v = (split_heads(z, g) for z in jnp.split(y @ w_kv, 2, axis=-1))
        scores = jnp.einsum("bgsc,bgmc->bgsm", q, rotate(k)) / np.sqrt(c)
        scores = scores.reshape(b, h, s, s)
        scores = jnp.where(jnp.tril(jnp.ones((s, s), bool)), scores, -1e9)
        p = jax.nn.softmax(scores).reshape(b, g, h // g * s, s)
        x = x + merge_heads((p @ v).reshape(b, h, s, c)) @ w_o
        y = rms_norm(x, gain2)
        return x + (jax.nn.silu(y @ w_gate) * (y @ w_up)) @ w_down

    f = 3 * d // 2
    shapes = [(d,), (d, d), (d, 2 * g * c), (d, d), (d,), (d, f), (d, f), (f, d)]
    return forward, [(b, s, d)], shapes


def swiglu(b, s, d, f):
    """Two gated feed-forward blocks."""

    def forward(x, *weights):
        for gate, up, down in (weights[:3], weights[3:]):
            y = x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)
            x = x + (jax.nn.silu(y @ gate) * (y @ up)) @ down
        return x

    return forward, [(b, s, d)], [(d, f), (d, f), (f, d)] * 2


def lstm(b, t, d, u):
    """LSTM of u units, t steps unrolled, inputs projected for all steps at once."""

    def forward(x, w_in, w_state):
        gates = (x.reshape(b * t, d) @ w_in).reshape(b, t, 4 * u)
        state = cell = jnp.zeros((b, u))
        states = []
        for i in range(t):
            new, *sigmoids = jnp.split(gates[:, i] + state @ w_state, 4, axis=-1)
            forget, write, read = (jax.nn.sigmoid(z) for z in sigmoids)
            cell = forget * cell + write * jnp.tanh(new)
            state = read * jnp.tanh(cell)
            states.append(state)
        return jnp.stack(states, axis=1)

    return forward, [(b, t, d)], [(d, 4 * u), (u, 4 * u)]


def gru(b, t, d, u):
    """GRU of u units, t steps unrolled; the last state is projected back to width d."""

    def forward(x, w_in, w_gates, w_new, w_out):
        state = jnp.zeros((b, u))
        for i in range(t):
            seen = x[:, i] @ w_in
            gates = jax.nn.sigmoid(seen[:, : 2 * u] + state @ w_gates)
            reset, update = gates[:, :u], gates[:, u:]
            new = jnp.tanh(seen[:, 2 * u :] + (reset * state) @ w_new)
            state = update * state + (1 - update) * new
        return state @ w_out

    return forward, [(b, t, d)], [(d, 3 * u), (u, 2 * u), (u, u), (u, d)]


def tcn(b, t, c, l):
    """Temporal ConvNet: l dilated causal convolutions of width 3, each with a 1 x 1 mix."""

    def forward(x, *weights):
        for i in range(l):
            kernel, mix, gain = weights[3 * i : 3 * i + 3]
            y = lax.conv_general_dilated(
                rms_norm(x, gain), kernel, (1,), [(2 << i, 0)], rhs_dilation=(1 << i,),
                dimension_numbers=("NWC", "WIO", "NWC"),
            )  # fmt: skip
            x = x + jax.nn.relu(y) @ mix
        return x

    return forward, [(b, t, c)], [(3, c, c), (c, c), (c,)] * l


def retention(b, s, d, h, n):
    """Retention in chunks of n: exact inside a chunk, a decaying state between chunks."""
    chunks, c = s // n, d // h

    def forward(x, w_q, w_k, w_v, w_gate, w_out):
        q, k, v = ((x @ w).reshape(b, chunks, n, h, c) for w in (w_q, w_k, w_v))
        decay = 1 - 2.0 ** (-3 - jnp.arange(h))
        step = jnp.arange(n)
        gap = step[:, None] - step
        mask = jnp.where(gap >= 0, decay[:, None, None] ** jnp.maximum(gap, 0), 0)
        inner = jnp.einsum("bkihc,bkjhc->bkhij", q, k) * mask / np.sqrt(c)
        inner = jnp.einsum("bkhij,bkjhc->bkihc", inner, v)
        fade = decay ** (n - 1 - step)[:, None]  # [n, h]
        writes = jnp.einsum("bkjhc,bkjhe->kbhce", k * fade[..., None], v)
        state, states = jnp.zeros((b, h, c, c)), []
        for i in range(chunks):
            states.append(state)
            state = state * (decay**n)[:, None, None] + writes[i]
        reach = (decay ** (step + 1)[:, None])[..., None]
        outer = jnp.einsum("bkihc,kbhce->bkihe", q * reach, jnp.stack(states)) / np.sqrt(c)
        y = (inner + outer).reshape(b, s, d)
        return (y * jax.nn.silu(x @ w_gate)) @ w_out

    return forward, [(b, s, d)], [(d, d)] * 5


def linear_attention(b, s, d, h):
    """Attention with the feature map elu + 1 in place of the softmax; not causal."""

    def forward(x, w_q, w_k, w_v, w_out):
        q, k, v = (split_heads(x @ w, h) for w in (w_q, w_k, w_v))
        q, k = jax.nn.elu(q) + 1, jax.nn.elu(k) + 1
        memory = jnp.einsum("bhsc,bhse->bhce", k, v)
        norm = jnp.einsum("bhsc,bhc->bhs", q, k.sum(2))
        y = jnp.einsum("bhsc,bhce->bhse", q, memory) / norm[..., None]
        return merge_heads(y) @ w_out

    return forward, [(b, s, d)], [(d, d)] * 4


def token_mixer(b, s, d, f, l):
    """l MLP-mixer blocks: an MLP over positions, then one over channels."""

    def forward(x, *weights):
        for i in range(l):
            gain, mix1, mix2, up, down = weights[5 * i : 5 * i + 5]
            y = jax.nn.relu(layer_norm(x, gain).transpose(0, 2, 1) @ mix1) @ mix2
            x = x + y.transpose(0, 2, 1)
            x = x + jax.nn.relu(layer_norm(x, gain) @ up) @ down
        return x

    return forward, [(b, s, d)], [(d,), (s, f), (f, s), (d, f), (f, d)] * l


def fnet(b, s, d, f):
    """FNet block: a real Fourier transform over positions and channels as four products."""

    def wave(n, function):
        return function(2 * np.pi / n * (jnp.arange(n)[:, None] * jnp.arange(n) % n)) / np.sqrt(n)

    def forward(x, gain1, gain2, up, down):
        even = jnp.einsum("bsd,de,st->bte", x, wave(d, jnp.cos), wave(s, jnp.cos))
        odd = jnp.einsum("bsd,de,st->bte", x, wave(d, jnp.sin), wave(s, jnp.sin))
        x = layer_norm(x + even - odd, gain1)
        return layer_norm(x + jax.nn.relu(x @ up) @ down, gain2)

    return forward, [(b, s, d)], [(d,), (d,), (d, f), (f, d)]


def biaffine(b, s, d, r, l):
    """Biaffine parser: scores of l labels for every (head, dependent) pair of positions."""

    def forward(x, w_head, w_dependent, w_labels):
        head, dependent = jax.nn.gelu(x @ w_head), jax.nn.gelu(x @ w_dependent)
        left = (head @ w_labels).reshape(b, s, l, r)
        scores = jnp.einsum("bilr,bjr->bijl", left, dependent)
        return jax.nn.log_softmax(scores.reshape(b, s, s * l)).reshape(b, s, s, l)

    return forward, [(b, s, d)], [(d, r), (d, r), (r, l * r)]


def cross_attention(b, s, m, d, h):
    """Sequence to sequence: s decoder positions look at m encoder positions, then an MLP."""

    def forward(x, memory, w_q, w_kv, w_out, gain, w_up, w_down):
        k, v = (split_heads(y, h) for y in jnp.split(memory @ w_kv, 2, axis=-1))
        x = x + merge_heads(attend(split_heads(x @ w_q, h), k, v)) @ w_out
        return x + jax.nn.relu(layer_norm(x, gain) @ w_up) @ w_down

    shapes = [(d, d), (d, 2 * d), (d, d), (d,), (d, 2 * d), (2 * d, d)]
    return forward, [(b, s, d), (b, m, d)], shapes


def moe(b, s, d, e, f):
    """Mixture of e experts, softly routed: every expert sees every token."""

    def forward(x, w_route, w_up, w_down, w_out):
        tokens = x.reshape(b * s, d)
        gate = jax.nn.softmax(tokens @ w_route)
        hidden = jax.nn.silu(jnp.einsum("nd,edf->enf", tokens, w_up))
        experts = jnp.einsum("enf,efd->end", hidden, w_down)
        return jnp.einsum("ne,end->nd", gate, experts).reshape(b, s, d) @ w_out + x

    return forward, [(b, s, d)], [(d, e), (e, d, f), (e, f, d), (d, d)]


FAMILIES = {
    f.__name__: f
    for f in (
        attention, encoder, decoder, swiglu, lstm, gru, tcn, retention, linear_attention,
        token_mixer, fnet, biaffine, cross_attention, moe,
    )
}  # fmt: skip
SOURCE = dict.fromkeys(FAMILIES, "nlp")


def programs():
    """Yield (name, function, example arguments)."""
    return named_programs(SPLIT, FAMILIES)
