"""One torch thread, as in every engine: what tests compute by hand then has the same bits."""

import torch

torch.set_num_threads(1)
