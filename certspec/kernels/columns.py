"""Names of the columns that kernels of several backends write and that others read.

A kernel returns several numbers of a row in one array, so that a row is one store. For example the
Triton kernels' ``scalars`` (rows, TOP_PROBS + K) hold KL at ``scalars[:, KL]``, and the probability
of the target's best token at ``scalars[:, TOP_PROBS]``. In a Triton kernel a name is wrapped first:
``_ENTROPY = tl.constexpr(ENTROPY)``."""

from __future__ import annotations

# ``scalars`` of the Triton kernels, nats and probabilities; probabilities of the top ranks follow
KL, KL_UPPER, ENTROPY, PROB_MARGIN, DRAFT_TOKEN_PROB, TOP_PROBS = range(6)
# ``errors`` of the Triton kernels: of the sum of weights (relative), of the entropy (nats); and how
# many these are
NORMALISER_ERROR, ENTROPY_ERROR, NUM_ERRORS = range(3)
# ``certificates`` and ``verdicts``, (2, rules, rows)
EXACT, LOWER = range(2)
ACCEPTED, CERTIFIED = range(2)
# top ids, (2, rows, K)
TARGET, DRAFT = range(2)
