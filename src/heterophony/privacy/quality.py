"""Quality of a reconstruction: PSNR and SSIM of pixels from 0 to 1, and reference images."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from ..core.randomness import seeded

MAX_PSNR = 100.0  # dB, for equal images
SSIM_WINDOW, SSIM_SIGMA = 11, 1.5  # as in the paper on SSIM
SSIM_K1, SSIM_K2 = 0.01, 0.03
REFERENCE_NAMES = ("grey", "mean colour", "noise")


def psnr(a: Tensor, b: Tensor) -> float:
    """Return the peak signal-to-noise ratio in dB; values outside 0 to 1 are clipped."""
    error = (a.double().clamp(0, 1) - b.double().clamp(0, 1)).square().mean().item()
    return min(MAX_PSNR, -10 * math.log10(error)) if error else MAX_PSNR


def ssim(a: Tensor, b: Tensor) -> float:
    """Return the structural similarity: the mean over channels and Gaussian windows.

    An image smaller than the window gets a smaller one.
    """
    a, b = (v.double().clamp(0, 1).unsqueeze(1) for v in (a, b))  # channels one by one
    size = min(SSIM_WINDOW, *a.shape[2:])
    size -= size % 2 == 0
    window = make_gaussian_window(size)

    def blur(v: Tensor) -> Tensor:
        return conv2d(v, window)

    mean_a, mean_b = blur(a), blur(b)
    var_a, var_b = blur(a * a) - mean_a.square(), blur(b * b) - mean_b.square()
    covariance = blur(a * b) - mean_a * mean_b
    c1, c2 = SSIM_K1**2, SSIM_K2**2
    numerator = (2 * mean_a * mean_b + c1) * (2 * covariance + c2)
    denominator = (mean_a.square() + mean_b.square() + c1) * (var_a + var_b + c2)
    return (numerator / denominator).mean().item()


def make_gaussian_window(size: int) -> Tensor:
    offsets = torch.arange(size, dtype=torch.float64) - size // 2
    line = (-offsets.square() / (2 * SSIM_SIGMA**2)).exp()
    line /= line.sum()
    return torch.outer(line, line)[None, None]


def make_reference_images(image: Tensor, *key: object) -> dict[str, Tensor]:
    """Make images that carry no information about this one, or only its mean colour."""
    with seeded(*key):
        noise = torch.rand(image.shape)
    grey, mean = torch.full_like(image, 0.5), image.mean((1, 2), keepdim=True).expand_as(image)
    return dict(zip(REFERENCE_NAMES, (grey, mean, noise), strict=True))
