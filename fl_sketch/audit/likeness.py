"""How like two images are: MSE, PSNR, SSIM; and which is which in a batch.

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

RANGE = 1.0  # images are in [0, 1]
K1, K2, SIGMA = 0.01, 0.03, 1.5  # of SSIM, as its paper has them
REACH = 5  # pixels from the middle of its window of 11 x 11


def mse(true: np.ndarray, found: np.ndarray) -> np.floating:
    """Returns the mean squared error of an image that was `found`, beside the `true`.

    They are arrays of one shape; the pixels found are cut to [0, 1].
    """
    return np.mean((np.asarray(true) - np.clip(found, 0, RANGE)) ** 2)


def psnr(true: np.ndarray, found: np.ndarray) -> np.floating:
    """Returns the peak signal-to-noise ratio in decibels, at most 100.

    It is that of the `mse` of `true` and `found`, two images of one shape.
    """
    return -10 * np.log10(np.maximum(mse(true, found), 1e-10) / RANGE**2)


def ssim(true: np.ndarray, found: np.ndarray) -> float:
    """Returns the structural similarity, the mean over places and channels.

    Places are those around which the window lies inside the image, where there are any.

    Args:
      true: the image as it was, HWC.
      found: the image that was found, HWC; its pixels are cut to [0, 1].

    Reference: Wang et al. (2004), section III.B.
    """
    a, b = np.asarray(true, np.float64), np.clip(found, 0, RANGE).astype(np.float64)

    def blurred(image):
        return ndimage.gaussian_filter(
            image, (SIGMA, SIGMA, 0), radius=(REACH, REACH, 0)
        )

    mean_a, mean_b = blurred(a), blurred(b)
    variance_a = blurred(a * a) - mean_a**2
    variance_b = blurred(b * b) - mean_b**2
    covariance = blurred(a * b) - mean_a * mean_b
    c1, c2 = (K1 * RANGE) ** 2, (K2 * RANGE) ** 2
    above = (2 * mean_a * mean_b + c1) * (2 * covariance + c2)
    below = (mean_a**2 + mean_b**2 + c1) * (variance_a + variance_b + c2)
    places = above / below
    if min(places.shape[:2]) > 2 * REACH:
        places = places[REACH:-REACH, REACH:-REACH]
    return float(np.mean(places))


def assignment(true: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Returns for each `true` image the place among the `found` of the one that is its.

    The gradient of a batch says nothing of the order of its examples. Of all orders it
    is the one with the least mean squared error in all.
    """
    cost = [[mse(a, b) for b in found] for a in true]
    return optimize.linear_sum_assignment(np.array(cost))[1]
