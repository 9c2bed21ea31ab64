"""Shared by all tests: the folder's own modules can be imported by name; signals arrive as by default."""

import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

# A CI may have been started with signals ignored (nohup, a background job), and children inherit that: what tests of
# signals are about would then never arrive.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
