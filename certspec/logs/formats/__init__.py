"""One file a format of logs, each with ``matches`` and ``positions``; ``tensors`` reads arrays."""
