"""From a formula to source text: evaluation forms, printers, and the files they make."""
