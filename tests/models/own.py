"""Models of one's own that are not the same in training, as a config may name them."""

import flax.linen as nn


class Normed(nn.Module):
    classes: int

    @nn.compact
    def __call__(self, x, train=False):
        x = nn.Dense(6, name="first")(x.reshape(len(x), -1))
        x = nn.relu(nn.BatchNorm(not train, momentum=0.9, name="norm")(x))
        return nn.Dense(self.classes, name="last")(x)


class Dropped(nn.Module):
    classes: int

    @nn.compact
    def __call__(self, x, train=False):
        x = nn.relu(nn.Dense(16, name="first")(x.reshape(len(x), -1)))
        x = nn.Dropout(0.5, deterministic=not train)(x)
        return nn.Dense(self.classes, name="last")(x)


normed, dropped = Normed, Dropped
