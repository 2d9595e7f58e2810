"""Examples to copy: a hub pair, a server."""
