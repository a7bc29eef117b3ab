"""The kernel zoo of the tile collection: single fused operations, as small JAX functions.

``kernels()`` yields ``(name, function, example_args, tiling)``. A name is ``<family>.<variant>``;
the variant gives the sizes by the letters of the tiling (``m256_k512_n384``), so the shapes of
the arguments need not be written down. Sizes are and are not multiples of 8, 16 and 128, and the
untiled kernel runs for about 0.05 to 1 ms on one thread.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from utils.xla.tiles import Tiling, Window


# Convolutions and pools. The tile loop calls ``core`` on input that is padded already.
def _convolution(
    axes: str, windows: dict[str, Window], finish: Callable | None = None, summed: str = "i"
) -> tuple[Callable, Tiling]:
    """A convolution over the letters of ``windows``; depthwise where nothing is summed."""
    spatial = len(windows)
    layout = {1: ("NWC", "WIO", "NWC"), 2: ("NHWC", "HWIO", "NHWC")}[spatial]

    def convolve(x, kernel, padding):
        return lax.conv_general_dilated(
            x,
            kernel,
            [w.stride for w in windows.values()],
            padding,
            rhs_dilation=[w.dilation for w in windows.values()],
            dimension_numbers=layout,
            feature_group_count=1 if summed else x.shape[-1],
        )

    def core(x, kernel, *_):
        return convolve(x, kernel, [(0, 0)] * spatial)

    def function(x, kernel, *rest):
        y = convolve(x, kernel, [(w.low, w.high) for w in windows.values()])
        return finish(y, x, kernel, *rest) if finish else y

    tiling = Tiling(axes, windows, kernel=True, summed=summed, core=core, finish=finish)
    return function, tiling


def _pool(window: Window, kind: str) -> tuple[Callable, Tiling]:
    """Maximum or mean over square windows of [batch, height, width, channel]."""
    start, combine = {"max": (-jnp.inf, lax.max), "mean": (0.0, lax.add)}[kind]
    scale = 1.0 if kind == "max" else 1.0 / window.size**2

    def reduce(x, low, high):
        padding = ((0, 0), (low, high), (low, high), (0, 0))
        size, stride = window.size, window.stride
        y = lax.reduce_window(
            x, start, combine, (1, size, size, 1), (1, stride, stride, 1), padding
        )
        return y if kind == "max" else y * scale

    tiling = Tiling(
        "nhwc->nhwc",
        {"h": window, "w": window},
        fill=float(start),
        core=lambda x: reduce(x, 0, 0),
    )
    return lambda x: reduce(x, window.low, window.high), tiling


def _norm(x, axis: int = -1):
    mean = x.mean(axis, keepdims=True)
    return (x - mean) * lax.rsqrt(((x - mean) ** 2).mean(axis, keepdims=True) + 1e-5)


def _rms(x, scale):
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale


def _softmax(x, axis: int = -1):
    e = jnp.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def _rotate(x, cos, sin):
    a, b = jnp.split(x, 2, axis=-1)
    return x * cos + jnp.concatenate([-b, a], axis=-1) * sin


def _bias_relu(y, x, kernel, bias):
    return jnp.maximum(y + bias, 0)


def _residual(y, x, kernel, skip):
    return jnp.tanh(y) + skip


SAME3, SAME5, VALID3, HALF3 = Window(3, 1, 1, 1), Window(5, 1, 2, 2), Window(3), Window(3, 2, 0, 1)
IMAGE = "nhwi,KLio->nhwo"
BIAS, SKIP = "nhwi,KLio,o->nhwo", "nhwi,KLio,nhwo->nhwo"  # a convolution and what follows


def _square(window: Window) -> dict[str, Window]:
    return {"h": window, "w": window}


# (family, prefix of the variant, (function, tiling), sizes of the variants)
ZOO: list[tuple[str, str, tuple[Callable, Tiling], str]] = [
    ("dot", "", (lambda x, w: x @ w, Tiling("mk,kn->mn")),
     "m256_k384_n256 m200_k300_n500 m64_k1024_n256 m512_k96_n640 m130_k257_n390"),
    ("dot_gelu", "", (lambda x, w, b: jax.nn.gelu(x @ w + b), Tiling("mk,kn,n->mn")),
     "m128_k256_n512 m100_k400_n300 m384_k64_n192 m96_k768_n136"),
    ("dot_residual", "", (lambda x, w, r: x @ w + r, Tiling("mk,kn,mn->mn")),
     "m256_k256_n256 m180_k320_n240 m72_k512_n600 m320_k128_n129"),
    ("dot_scale", "", (lambda x, w, s: jnp.tanh(x @ w * s[:, None]), Tiling("mk,kn,m->mn")),
     "m192_k384_n256 m250_k100_n410 m128_k640_n128 m77_k256_n512"),
    ("dot_transposed", "lhs", (lambda x, w: x.T @ w, Tiling("km,kn->mn")),
     "m256_k256_n384 m150_k500_n200"),
    ("dot_transposed", "rhs", (lambda x, w: x @ w.T, Tiling("mk,nk->mn")),
     "m256_k128_n512 m210_k330_n170"),
    ("batched_dot", "", (lambda x, w: x @ w, Tiling("bmk,bkn->bmn")),
     "b8_m128_k64_n128 b12_m100_k50_n100"),
    ("batched_dot", "scores", (lambda q, k: jnp.einsum("bmk,bnk->bmn", q, k) * 0.125,
                               Tiling("bmk,bnk->bmn")),
     "b8_m128_k64_n160 b6_m150_k48_n200"),
    ("gated_dot", "", (lambda x, w, v: jax.nn.silu(x @ w) * (x @ v), Tiling("mk,kn,kn->mn")),
     "m128_k256_n256 m90_k300_n310 m256_k128_n200"),
    ("conv", "s1", _convolution(IMAGE, _square(SAME3)),
     "n1_h28_w28_i64_o64 n2_h15_w15_i48_o96 n4_h14_w14_i32_o40"),
    ("conv", "s2", _convolution(IMAGE, _square(HALF3)),
     "n2_h28_w28_i32_o64 n1_h33_w33_i24_o72"),
    ("conv", "k5", _convolution(IMAGE, _square(SAME5)), "n1_h32_w32_i16_o32"),
    ("conv_bias_relu", "s1", _convolution(BIAS, _square(SAME3), _bias_relu),
     "n1_h32_w32_i32_o64 n2_h20_w20_i40_o50"),
    ("conv_bias_relu", "valid", _convolution(BIAS, _square(VALID3), _bias_relu),
     "n1_h30_w30_i64_o48 n2_h22_w19_i36_o64"),
    ("conv_residual", "", _convolution(SKIP, _square(SAME3), _residual),
     "n1_h24_w24_i64_o64 n3_h13_w13_i48_o80 n1_h40_w40_i24_o24"),
    ("conv1x1", "", _convolution(IMAGE, _square(Window(1))),
     "n4_h14_w14_i128_o256 n1_h28_w28_i96_o130 n2_h28_w28_i64_o128 "
     "n2_h17_w17_i192_o100"),
    ("depthwise", "s1", _convolution("nhwc,KLIc->nhwc", _square(SAME3), summed=""),
     "n1_h16_w16_c64 n2_h9_w11_c100"),
    ("depthwise", "s2", _convolution("nhwc,KLIc->nhwc", _square(HALF3), summed=""),
     "n2_h7_w7_c160"),
    ("conv1d", "d1", _convolution("nti,Kio->nto", {"t": SAME5}),
     "n4_t128_i64_o64 n2_t300_i48_o72"),
    ("conv1d", "d4", _convolution("nti,Kio->nto", {"t": Window(3, 1, 8, 0, 4)}),
     "n4_t200_i64_o64"),
    ("row_sum", "", (lambda x: x.sum(1), Tiling("mk->m")),
     "m512_k1024 m1500_k400 m633_k777 m4096_k160"),
    ("row_max", "", (lambda x: jnp.abs(x).max(1), Tiling("mk->m")), "m512_k512 m700_k250"),
    ("row_norm", "", (lambda x, y: jnp.sqrt(((x - y) ** 2).sum(1)), Tiling("mk,mk->m")),
     "m256_k640 m500_k333 m1024_k128"),
    ("col_sum", "", (lambda x: x.sum(0), Tiling("km->m")),
     "k512_m1024 k300_m1000 k1024_m256 k200_m2500"),
    ("middle_sum", "", (lambda x: x.sum(1), Tiling("akb->ab")), "a32_k64_b128 a50_k30_b200"),
    ("softmax", "row", (_softmax, Tiling("mN->mN")), "m256_N256 m300_N150 m64_N1000 m513_N100"),
    ("softmax", "column", (lambda x: _softmax(x, 0), Tiling("Nm->Nm")), "N128_m512 N100_m333"),
    ("layer_norm", "", (lambda x, g, b: _norm(x) * g + b, Tiling("mN,N,N->mN")),
     "m256_N512 m300_N300 m1000_N96 m128_N1024"),
    ("rms_norm", "", (_rms, Tiling("mN,N->mN")), "m512_N512 m800_N200 m300_N1000"),
    ("log_sum_exp", "", (lambda x: jax.nn.logsumexp(x, 1), Tiling("mk->m")),
     "m256_k512 m300_k200 m1000_k100"),
    ("transpose_add", "", (lambda x, y: x.T + y, Tiling("mn,nm->nm")),
     "m512_n512 m300_n700 m1024_n128 m250_n999"),
    ("permute", "", (lambda x, s: jnp.transpose(x, (0, 2, 1, 3)) * s, Tiling("bshd,d->bhsd")),
     "b4_s128_h8_d64 b5_s150_h6_d50 b2_s256_h16_d32"),
    ("chain", "tanh", (lambda x, y: jnp.tanh(x * y + 0.5) * x - y, Tiling("mn,mn->mn")),
     "m256_n512 m300_n300 m1000_n100"),
    ("chain", "exp", (lambda x, y: jnp.exp(-x * x) + jnp.sqrt(jnp.abs(y)), Tiling("mn,mn->mn")),
     "m128_n1024 m500_n210"),
    ("chain", "cheap", (lambda x, y, z: x * y + z, Tiling("mn,mn,mn->mn")),
     "m512_n512 m600_n350"),
    ("affine", "", (lambda x, g, b: jnp.maximum(x * g + b, 0), Tiling("nhwc,c,c->nhwc")),
     "n4_h28_w28_c128 n2_h50_w50_c60 n5_h14_w18_c256"),
    ("outer", "", (lambda x, y: x[:, None] * y + jnp.abs(x[:, None] - y), Tiling("m,n->mn")),
     "m1024_n512 m400_n1300 m2000_n250"),
    ("outer", "exp", (lambda x, y: jnp.exp(-jnp.square(x[:, None] - y)), Tiling("m,n->mn")),
     "m256_n512 m330_n270"),
    ("select", "", (lambda x, y: jnp.where(x > y, x, 0.1 * y), Tiling("mn,mn->mn")),
     "m512_n512 m700_n300 m123_n1234"),
    ("clip", "", (lambda x, b: jnp.clip(x + b, -1, 1), Tiling("mn,n->mn")),
     "m512_n640 m900_n310"),
    ("argmax", "", (lambda x: jnp.argmax(x, 1), Tiling("mk->m")), "m256_k256 m500_k130 m1000_k64"),
    ("pool", "max", _pool(Window(3, 2, 0, 1), "max"), "n2_h28_w28_c64 n1_h25_w25_c80"),
    ("pool", "mean", _pool(Window(2, 2), "mean"), "n2_h28_w28_c64 n4_h15_w15_c100"),
    ("embedding", "", (lambda table, i: jnp.take(table, i, axis=0, mode="clip"),
                       Tiling("Vd,t->td")),
     "V5000_d256_t1500 V1000_d100_t4000 V2000_d512_t800"),
    ("cumsum", "", (lambda x: jnp.cumsum(x, 1), Tiling("mN->mN")), "m128_N256 m200_N100 m512_N64"),
    ("rotary", "", (_rotate, Tiling("bsD,sD,sD->bsD")),
     "b8_s128_D64 b6_s150_D80 b2_s512_D128"),
]
INTEGER = {"embedding": {1: "V"}}  # arguments that are indices, and the letter they index


HELD_OUT = {  # families that train does not contain
    "batched_dot": "valid", "depthwise": "valid", "rms_norm": "valid", "select": "valid",
    "gated_dot": "test", "conv1d": "test", "permute": "test", "log_sum_exp": "test",
}
FROM_TRAIN_FAMILIES = {  # single variants of families that train does contain
    "dot.m130_k257_n390": "valid",
    "dot_gelu.m100_k400_n300": "valid",
    "conv.s1_n4_h14_w14_i32_o40": "valid",
    "conv1x1.n1_h28_w28_i96_o130": "valid",
    "row_sum.m633_k777": "valid",
    "softmax.row_m300_N150": "valid",
    "transpose_add.m250_n999": "valid",
    "chain.exp_m500_n210": "valid",
    "dot.m512_k96_n640": "test",
    "dot_residual.m180_k320_n240": "test",
    "conv_residual.n3_h13_w13_i48_o80": "test",
    "conv_bias_relu.valid_n2_h22_w19_i36_o64": "test",
    "col_sum.k300_m1000": "test",
    "layer_norm.m300_N300": "test",
    "outer.m400_n1300": "test",
    "pool.mean_n4_h15_w15_c100": "test",
}


def _sizes(tiling: Tiling, variant: str) -> dict[str, int]:
    """``m256_k512`` -> {"m": 256, "k": 512}; the kernel's own sizes come from the windows."""
    sizes = {letter: int(size) for letter, size in re.findall(r"([A-Za-z])(\d+)", variant)}
    windows = {letter: w.size for letter, w in zip("KL", tiling.windows.values())}
    return {"I": 1} | windows | sizes


def example_args(
    tiling: Tiling, sizes: dict[str, int], seed: int, indices: dict[int, str]
) -> tuple[np.ndarray, ...]:
    """Normal float32 arrays whose shapes follow from the letters; ``indices``: see INTEGER."""
    rng = np.random.default_rng(seed)
    args = []
    for number, letters in enumerate(tiling.arguments):
        shape = [sizes[a] for a in letters]
        if number == 0:
            for i, a in enumerate(letters):
                if w := tiling.windows.get(a):
                    shape[i] = w.reads(shape[i]) - w.low - w.high
        if number in indices:
            args.append(rng.integers(sizes[indices[number]], size=shape, dtype=np.int32))
        else:
            args.append(rng.standard_normal(shape, dtype=np.float32))
    return tuple(args)


def _name(family: str, prefix: str, sizes: str) -> str:
    return f"{family}.{prefix}_{sizes}" if prefix else f"{family}.{sizes}"


SPLIT: dict[str, str] = {
    name: HELD_OUT.get(family) or FROM_TRAIN_FAMILIES.get(name, "train")
    for family, prefix, _, variants in ZOO
    for name in [_name(family, prefix, sizes) for sizes in variants.split()]
}


def kernels() -> Iterator[tuple[str, Callable, tuple, Tiling]]:
    """Yield (name, function, example_args, tiling) of every kernel; same arrays in every run."""
    for family, prefix, (function, tiling), variants in ZOO:
        for sizes in variants.split():
            name = _name(family, prefix, sizes)
            indices, seed = INTEGER.get(family, {}), zlib.crc32(name.encode())
            yield name, function, example_args(tiling, _sizes(tiling, sizes), seed, indices), tiling
