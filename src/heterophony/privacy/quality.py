"""How much of an image is recovered: PSNR and SSIM, of values from 0 to 1, and what is nothing."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from ..core.randomness import seeded

MAX_PSNR = 100.0  # dB, of images that are equal
SSIM_WINDOW, SSIM_SIGMA = 11, 1.5  # of SSIM, as its authors have them
SSIM_K1, SSIM_K2 = 0.01, 0.03
REFERENCE_NAMES = ("grey", "mean colour", "noise")


def psnr(a: Tensor, b: Tensor) -> float:
    """In dB, over channels, rows and columns alike; values outside 0 to 1 are cut."""
    error = (a.double().clamp(0, 1) - b.double().clamp(0, 1)).square().mean().item()
    return min(MAX_PSNR, -10 * math.log10(error)) if error else MAX_PSNR


def ssim(a: Tensor, b: Tensor) -> float:
    """The mean over all places of a Gaussian window, and over channels.

    The window is smaller where the image is smaller than it.
    """
    a, b = (v.double().clamp(0, 1).unsqueeze(1) for v in (a, b))  # channels one by one
    size = min(SSIM_WINDOW, *a.shape[2:])
    size -= size % 2 == 0
    window = make_gaussian_window(size)

    def blur(v: Tensor) -> Tensor:
        return conv2d(v, window)

    mean_a, mean_b = blur(a), blur(b)
    var_a, var_b = blur(a * a) - mean_a.square(), blur(b * b) - mean_b.square()
    both = blur(a * b) - mean_a * mean_b
    c1, c2 = SSIM_K1**2, SSIM_K2**2
    above = (2 * mean_a * mean_b + c1) * (2 * both + c2)
    below = (mean_a.square() + mean_b.square() + c1) * (var_a + var_b + c2)
    return (above / below).mean().item()


def make_gaussian_window(size: int) -> Tensor:
    at = torch.arange(size, dtype=torch.float64) - size // 2
    line = (-at.square() / (2 * SSIM_SIGMA**2)).exp()
    line /= line.sum()
    return torch.outer(line, line)[None, None]


def make_reference_images(image: Tensor, *key: object) -> dict[str, Tensor]:
    """Images that know nothing, or one colour, of this one."""
    with seeded(*key):
        noise = torch.rand(image.shape)
    grey, mean = torch.full_like(image, 0.5), image.mean((1, 2), keepdim=True).expand_as(image)
    return dict(zip(REFERENCE_NAMES, (grey, mean, noise), strict=True))
