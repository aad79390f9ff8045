"""How alike two images are (MSE, PSNR, SSIM), and the pairs of images in a batch.

>>> import numpy as np
>>> true = np.zeros((4, 12, 12, 1)); true[2] = 1
>>> float(psnr(true[0], true[0] + 0.1).round(2))
20.0
>>> order = assignment(true, true[::-1])
>>> bool((true[::-1][order] == true).all())
True
"""

import numpy as np
from scipy import ndimage, optimize

K1, K2, SIGMA = 0.01, 0.03, 1.5  # the constants of SSIM in its paper
REACH = 5  # pixels from the middle of its window of 11 x 11


def mse(true: np.ndarray, found: np.ndarray) -> np.floating:
    """Returns the mean squared error of an image, whose pixels are cut to [0, 1]."""
    return np.mean((np.asarray(true) - np.clip(found, 0, 1)) ** 2)


def psnr(true: np.ndarray, found: np.ndarray) -> np.floating:
    """Returns the peak signal-to-noise ratio in decibels by `mse`, at most 100."""
    return -10 * np.log10(np.maximum(mse(true, found), 1e-10))


def ssim(true: np.ndarray, found: np.ndarray) -> float:
    """Returns the structural similarity of two HWC images: its mean over all places.

    Only windows inside the image count, if there are any. The pixels of `found` are cut
    to [0, 1].

    Reference: Wang et al. (2004), section III.B.
    """
    a, b = np.asarray(true, np.float64), np.clip(found, 0, 1).astype(np.float64)

    def blurred(image):
        return ndimage.gaussian_filter(
            image, (SIGMA, SIGMA, 0), radius=(REACH, REACH, 0)
        )

    mean_a, mean_b = blurred(a), blurred(b)
    variance_a = blurred(a * a) - mean_a**2
    variance_b = blurred(b * b) - mean_b**2
    covariance = blurred(a * b) - mean_a * mean_b
    c1, c2 = K1**2, K2**2
    above = (2 * mean_a * mean_b + c1) * (2 * covariance + c2)
    below = (mean_a**2 + mean_b**2 + c1) * (variance_a + variance_b + c2)
    places = above / below
    if min(places.shape[:2]) > 2 * REACH:
        places = places[REACH:-REACH, REACH:-REACH]
    return float(np.mean(places))


def assignment(true: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Returns for each `true` image the number of its image among the `found`.

    The gradient of a batch does not depend on the order of its examples. This is the
    order of least mean squared error.
    """
    cost = [[mse(a, b) for b in found] for a in true]
    return optimize.linear_sum_assignment(np.array(cost))[1]
