"""Models and their losses, written for one batch of one client.

>>> import jax, jax.numpy as jnp
>>> from fl_sketch import models
>>> loss = models.classification(models.build("mlp", 10, hidden=(32,)))
>>> params = loss.init(jax.random.key(0), jnp.zeros((1, 8, 8, 1)))
>>> jax.tree.map(jnp.shape, params["dense1"])
{'bias': (32,), 'kernel': (64, 32)}
"""

from fl_sketch.models import huggingface as huggingface
from fl_sketch.models.classifiers import Cnn as Cnn
from fl_sketch.models.classifiers import LeNet as LeNet
from fl_sketch.models.classifiers import Logistic as Logistic
from fl_sketch.models.classifiers import Mlp as Mlp
from fl_sketch.models.classifiers import SigmoidLeNet as SigmoidLeNet
from fl_sketch.models.convolution import conv as conv
from fl_sketch.models.convolution import conv_pool as conv_pool
from fl_sketch.models.convolution import max_pool as max_pool
from fl_sketch.models.losses import TYPES as TYPES
from fl_sketch.models.losses import Loss as Loss
from fl_sketch.models.losses import classification as classification
from fl_sketch.models.losses import supervised as supervised
from fl_sketch.models.registry import build as build
from fl_sketch.models.registry import options_of as options_of
from fl_sketch.models.resnets import ResNet as ResNet
from fl_sketch.models.transformers import Transformer as Transformer
