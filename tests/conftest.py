"""One torch thread, as in every engine: what tests compute by hand then has the same bits."""

import signal

import torch

torch.set_num_threads(1)

# Who is started in the background by a shell ignores Ctrl-C, and so would every command that a
# test starts and then interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
