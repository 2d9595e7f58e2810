"""One thread a test process: the workers already fill the cores, and threads that spin beside each other waste them.
Set before torch and numba are imported; a test of threads asks for its own number."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
