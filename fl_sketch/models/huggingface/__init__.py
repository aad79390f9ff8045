"""Models that others trained, from folders in the layout of Hugging Face.

`load(folder)` returns a module of Flax Linen with its parameters; configs name the
folder by model.name=hf/FOLDER. Nothing is downloaded.
"""

from fl_sketch.models.huggingface.kinds import Pretrained as Pretrained
from fl_sketch.models.huggingface.kinds import find as find
from fl_sketch.models.huggingface.kinds import load as load
from fl_sketch.models.huggingface.kinds import module as module
from fl_sketch.models.huggingface.kinds import options_of as options_of
from fl_sketch.models.huggingface.kinds import save as save
