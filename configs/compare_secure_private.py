"""Private sums of integers: accuracy against the bits of a number and sketch sizes.

Command: python -m launch.compare --config=configs/compare_secure_private.py:mnist \
--workdir=/tmp/secure_private --data_dir=DATA
Expect: standings for messages of four sizes, at epsilon 2 and 8.

After the colon stands the data set, mnist or fashion_mnist. The clients and the model
are those of configs/compare_private_safl.py, in cohorts of a fixed size, and neighbours
differ in the data of one client. The first method of each size has central Gaussian
noise on floats. The others add up integers with Skellam noise, in shares of all clients
of the cohort. Sketches have a power of two of numbers, since integers are padded to
one. Each size has numbers of bits with which its promise can be kept; 8 bits keep none
of these. `python -m launch.calibrate --numbers=N` finds them.

`mnist,poisson` has the cohorts of configs/compare_private_safl.py, and neighbours that
add or remove a client. Nothing is known of shares of the noise there, so the server
adds the noise to the sum of the integers.
"""

from configs import compare_private_safl
from fl_sketch.core import validate
from fl_sketch.sweep.comparison import Comparison, Method

DATA = ("mnist", "fashion_mnist")
SIZES = {"no sketch": 0, "1/12": 16384, "1/97": 2048, "1/778": 256}  # of 199,210
BITS = {
    2.0: {"no sketch": (16,), "1/12": (14, 16), "1/97": (12, 16), "1/778": (12,)},
    8.0: {"no sketch": (14, 16), "1/12": (12, 16), "1/97": (12, 16), "1/778": (10,)},
}
RATES = {"server.rate": (0.003, 0.01, 0.03)}


def get_comparison(which: str = "mnist"):
    """Returns floats with central noise, and integers, for all sizes and epsilons.

    Args:
      which: the data set; `,poisson` after it for Poisson cohorts.

    Raises:
      ValueError: in one line, for any other text.
    """
    data, _, cohorts = which.partition(",")
    validate.one_of(DATA, data=data)
    validate.one_of(("", "poisson"), cohorts=cohorts)
    integers = {} if cohorts else {"privacy.noise": "skellam"}
    methods = {}
    for epsilon, bits in BITS.items():
        for size, numbers in SIZES.items():
            keys = {"privacy.target_epsilon": epsilon, "privacy.bound": "normalise"}
            if numbers:
                keys["sketch.size"] = numbers
            else:
                keys["algorithm"] = "fedopt"
            name = f"epsilon {epsilon:g}, {size}"
            methods[f"{name}, central Gaussian"] = Method(keys, RATES)
            for each in bits[size]:
                own = integers | {"privacy.bits": each}
                methods[f"{name}, {each} bits"] = Method(keys | own, RATES)
    return Comparison(base(data, cohorts), methods)


def base(data: str, cohorts: str = ""):
    """Returns the config that all methods have in common."""
    config = compare_private_safl.base()
    config.data.name = data
    if not cohorts:
        config.cohort.sampling = "fixed"
        config.privacy.relation = "replace_one"
    return config
