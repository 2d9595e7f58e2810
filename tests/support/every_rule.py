"""A rule of every type."""

import certspec as cs

EVERY_RULE = [
    cs.StrictGreedy(),
    cs.TopM(2),
    cs.Tree(2),
    cs.Additive(0.2),
    cs.Multiplicative(0.1),
    cs.Gated(3, additive=0.2),
    cs.Entropy(0.3, 0.3),
    cs.Absolute(0.1),
]
