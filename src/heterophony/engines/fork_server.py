"""Turn off garbage collection in the fork server, which imports this first: whatever it imports stays."""

import gc

gc.disable()
