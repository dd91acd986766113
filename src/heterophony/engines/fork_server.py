"""Turn off garbage collection in the fork server, which imports this module first: all its imports stay."""

import gc

gc.disable()
