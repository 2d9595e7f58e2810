"""Examples to copy: a hub pair, the bundled pair in a notebook, a server."""
