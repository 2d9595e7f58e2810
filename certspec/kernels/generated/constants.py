"""Constants: safety factors of the kernels, as plain numbers. Generated; do not edit.

command:     python -m derivations
derivation:  derivations.kernels.constants
claims:      bound.certificate_lower, bound.kl_upper, bound.log_ratio, bound.normaliser, bound.radius.entropy, bound.threshold, bound.weight, drafter.dual, drafter.entropy.atoms, drafter.entropy.dual, drafter.entropy.feasible, drafter.margin.chord, eval.bregman, eval.difference, eval.strict, kernel.box, kernel.entropy_cells, kernel.entropy_floor, kernel.exp, kernel.exp32, kernel.filter, kernel.filter_rest, kernel.filter_size, kernel.margins, kernel.products, kernel.roundings, kernel.segments, kernel.streamed_exp, kernel.tree_rows, projection.lift, projection.sink, single.dual
domain:      stated with each constant
printer:     repr of the nearest float64
sympy:       1.14.0
expression:  sha256 3c8976a0f55134f73740f2a6d3ab7288df400bbb75652b9a3c912a49b18a054e
body:        sha256 38eb7de7bbe135faba55cca74b547a6c98f153a5d33b3fcfc6686e7386d5ae02
"""
# --- body ---

# u, the unit roundoff of float64: a definition.
# claims: none
UNIT = 1.1102230246251565e-16

# The unit roundoff of float32: a definition.
# claims: none
UNIT32 = 5.960464477539063e-08

# exp, log, log1p and expm1 are within 4 ulp: proved of our own exp, assumed of libraries.
# claims: kernel.exp
FUNCTION_ERROR = 8.881784197001252e-16

# Pays for products of relative errors that sum to less than .0099.
# claims: kernel.products, kernel.segments
ERROR_PRODUCTS = 1.01

# The same in the float32 filters, for errors up to 2^-10 a weight.
# claims: kernel.products, kernel.filter
FILTER_PRODUCTS = 1.02

# Raises means and shares that carry the very errors which they help to bound.
# claims: kernel.products
MEASURED_PRODUCTS = 1.001

# nats; the largest gap of a target's token that errors are counted for: exp(-745) is the last
# float64 number above 0.
# claims: bound.weight, bound.log_ratio
REACH_TARGET = 745.0

# nats; the same for a draft's token whose log-ratio is at most 745.
# claims: bound.log_ratio
REACH_DRAFT = 1490.0

# nats; a weight farther down times its relative error vanishes beside u.
# claims: bound.certificate_lower
REACH_POOL = 32.0

# nats; a streamed sum stops at a gap of 700, of which its reference may take 64.
# claims: kernel.exp
REACH_STREAMED = 600.0

# nats; exp of a lower gap counts as 0: the proved range of our exp ends here.
# claims: kernel.exp
LOWEST_GAP = -700.0

# nats; a row whose first logits lie farther below its maximum is summed again from it. A choice:
# every bound counts the distance itself.
# claims: none
FAR_REFERENCE = 64.0

# Log-ratios below this take the form q - p + p d, as expm1(-d) may overflow there.
# claims: eval.bregman
FAR_BELOW = -30.0

# nats; a KL below it is summed again in the Bregman form, which does not cancel.
# claims: eval.difference, eval.bregman
LEAST_DIFFERENCE = 1e-06

# Weights below this may have underflowed, and nothing relative is claimed for them. No claim:
# 2^-1022/u is 2e-292.
# claims: none
NEGLIGIBLE = 1e-290

# nats; a draft's row that reaches farther has no finite upper bound of KL. No claim: a larger
# bound is a valid one.
# claims: none
FARTHEST_SPAN = 1e+100

# Relative: tokens this far below a threshold are certainly rejected, as thresholds are known
# within far less.
# claims: bound.threshold
CANDIDATE_SLACK = 1e-06

# A drafter's probabilities are raised to at least this, which can only lower the bound.
# claims: drafter.dual
SMALLEST_PROB = 1.1830521861667747e-271

# nats; a token that is not masked counts as at most this far below the first: a radius is then
# less, never infinite.
# claims: drafter.dual, projection.lift, projection.sink
FARTHEST_PRESENT = 670.0

# nats; smaller probabilities may underflow, and errors count them as of this size.
# claims: bound.radius.entropy
VANISHING_LOG_PROB = -620.0

# Stands in for what is smaller under a logarithm or in a quotient: the result is multiplied by 0
# or replaced, or it is an atom's size, and a larger one is valid.
# claims: drafter.entropy.atoms
SMALLEST_ARGUMENT = 1e-300

# A streamed weight is off by 8 u + 1.31 u |gap|: its gap's rounding, u |gap|, and log 2 rounded,
# .302 u |gap|.
# claims: kernel.streamed_exp
WIDENING = 1.31

# nats; one more exponential, of 8 u, in the place of as much mean gap.
# claims: kernel.exp, bound.normaliser
MOVED_GAP = 8.0

# Roundings a term of torch's sums besides one for each 128 columns. Assumed of torch.
# claims: none
TORCH_SUM_DEPTH = 64

# Roundings a term of numpy's sums besides log2 of the columns: pairwise, over blocks of 128 in 8
# lanes. Assumed of numpy.
# claims: kernel.roundings
NUMPY_SUM_DEPTH = 32

# In units of 2^-24: polynomial and table instead of exp 5.17, operations 2.1, r rounded .09.
# claims: kernel.exp32
EXP32_ERROR = 7.4

# In units of 2^-24 a nat of |z|: log 2 rounded to float32.
# claims: kernel.exp32
REDUCTION = 0.0462

# Roundings of a term on its way through the filter's sums: a product with its addition, 15 of the
# vectors that follow, 1 of 8 lanes to 4; and fewer than 2^18 in float64, of 2^-29 each.
# claims: kernel.exp32
ADDITIONS = 17.01

# |z| of a row that the filter takes: the proved range of its exp.
# claims: kernel.exp32
LARGEST_LOGIT = 4096.0

# nats; a row whose KL or normaliser a filter does not know this well is left to float64. A choice:
# the bound itself is what is compared.
# claims: none
WIDEST = 0.001

# Of the draft's share: sum p|d| is at most sum p d and this.
# claims: kernel.filter_rest
DRAFT_SHARE = 0.75

# Relative, of the sizes that a filtered row's float64 numbers have: pays for 255 roundings. That
# there are fewer (a few logarithms and exponentials of 8 u, products, moves of the sums) is read
# from the code, not proved.
# claims: kernel.roundings
FILTER_ROUNDINGS = 2.842170943040401e-14

# In units of u a float64 addition: 1 of the sum, or 1.4 (1 + |E d|) of p|d|, which is at most KL +
# sqrt(2 KL).
# claims: kernel.filter_size
TERM_ROUNDINGS = 1.5

# Relative, of a pool's value from above: (n + 14) u, as below it, for pools of up to 50 tokens. No
# claim speaks of the bound above; it decides whether a rejection is sure, never a certificate.
# claims: bound.certificate_lower
POOL_ROUNDINGS = 7.105427357601002e-15

# The same, of the pool's mass: its weights' gaps, up to 745 u, and (2 n + 34) u for pools of up to
# 111 tokens.
# claims: bound.certificate_lower, bound.weight
POOL_MASS_ROUNDINGS = 1.1113332476497817e-13

# Relative: lowers a threshold by what its own evaluation rounds. Pays for 63 roundings; that there
# are fewer is read from the code.
# claims: kernel.roundings, bound.threshold
THRESHOLD_ROUNDINGS = 7.105427357601002e-15

# ex2.approx.f32, relative: the PTX manual's word, taken. The worst of all float32 numbers in
# [-126, 0] on an H100 was 1.44e-7.
# claims: none
EXP2_ERROR = 2.384185791015625e-07

# |fl32(log2 e)/log2 e - 1|.
# claims: kernel.segments
CONSTANT_ERROR = 1.34e-08

# Below -127 a float32 2^x is flushed to zero: a property of the format.
# claims: none
LOWEST_EXPONENT = 127.0

# Per unit of |x| and of |M|, where a row is summed again in float64: log2 e, the product with it
# and the difference lose 3 u |x| + 2 u |M|.
# claims: kernel.segments
EXACT_EXPONENT_ERROR = 4.440892098500626e-16

# float64's exp2, relative: within 2 ulp, assumed of the library.
# claims: none
EXACT_EXP2_ERROR = 4.440892098500626e-16

# The error of the farthest float64 exponential that is not zero, x >= -1076.
# claims: kernel.segments
EXACT_FARTHEST_ERROR = 4.547473508864641e-13

# Relative, 18 u: the float64 exponentials and sums of a row's kept tokens, as read from the code;
# what their logits' sizes add is in DIVERGENCE_ROUNDINGS and REFERENCE_ROUNDINGS.
# claims: kernel.roundings
KEPT_ERROR = 2e-15

# nats; keeps a mean that bounds an error from falling below 0 by its own rounding. No claim: it is
# multiplied by an error below 1e-3.
# claims: none
TAIL_SLACK = 1e-12

# Relative, of the sizes of means, logarithms and references: pays for 63 roundings. That there are
# fewer is read from the code, not proved.
# claims: kernel.roundings
DIVERGENCE_ROUNDINGS = 7.105427357601002e-15

# A nat of the largest logit: the normaliser is brought from the reference to it.
# claims: kernel.roundings
REFERENCE_ROUNDINGS = 8.881784197001252e-16

# Nats beside the largest logit, for the exponential and the products that bring it there.
# claims: kernel.roundings
REFERENCE_NATS = 8.0

# The reference's own: a normaliser in a product or quotient.
# claims: bound.threshold
NORMALISER_ROUNDINGS = 4.440892098500626e-16

# The reference's own: a scale and its sum with an offset.
# claims: bound.threshold
SCALE_ROUNDINGS = 2.220446049250313e-16

# The reference's own: a nat of the reach of a log-ratio.
# claims: bound.log_ratio
RATIO_ROUNDINGS = 3.3306690738754696e-16

# The reference's own: what the terms of KL add to eta.
# claims: bound.kl_upper
SLOPE_ROUNDINGS = 3.1086244689504383e-15

# The reference's own: a term of KL, its sum included.
# claims: bound.kl_upper
TERM_SUM_ROUNDINGS = 4.440892098500626e-15

# The reference's own: the formula of the bound itself.
# claims: bound.kl_upper
ROOT_ROUNDINGS = 1.7763568394002505e-15

# The reference's own, in units of u: a term of E_p[max z - z].
# claims: bound.threshold
ENTROPY_COUNT = 12

# The reference's own, in units of u: a probability.
# claims: bound.threshold
PROBABILITY_COUNT = 10

# The reference's own, in units of u: a raised mean, besides one a token.
# claims: bound.certificate_lower
MEAN_COUNT = 3

# The reference's own, in units of u: a token that joins a pool, besides one a token.
# claims: single.dual
JOIN_COUNT = 4

# The reference's own, in units of u: a pool's value, besides one a token.
# claims: bound.certificate_lower
VALUE_COUNT = 16

# The reference's own, in units of u: a pool's mass, besides two a token.
# claims: bound.certificate_lower
MASS_COUNT = 40

# Relative, of a float64 weight down to 745 nats: 65/64 (745 + 8) u is 8.5e-14.
# claims: bound.weight
WEIGHT_ERROR = 2e-13

# What the float64 backends keep in entropies (nats) and probabilities (relative): seen in tests,
# proved by no claim.
# claims: none
RIGOROUS_ERROR = 1e-11

# nats, 90,000 u: above what a floor and log delta round, of logarithms up to 745.
# claims: kernel.entropy_floor
FLOOR_SLACK = 1e-11

# Relative, 9,000 u: lowers what an entropy rule's margin is worth by more than the cost of its
# pairs rounds, 4,000 u.
# claims: kernel.entropy_cells, kernel.margins
MARGIN_ROUNDING = 1e-12

# Relative, 1,024 u: lowers what every margin is worth by more than its evaluation rounds, 980 u at
# most (trees near margin 1; 400 u elsewhere).
# claims: kernel.margins, kernel.tree_rows
MARGIN_SLACK = 1.1368683772161603e-13

# Relative: what the use of a level is lowered and raised by before it is compared with 1, and the
# tilt of a pair with it.
# claims: kernel.margins, drafter.margin.chord
CHORD_SLACK = 7.105427357601002e-15

# nats; a margin's bound below it counts as 0, as numbers that underflow lose more than u.
# claims: kernel.margins
MARGIN_FLOOR = 9.332636185032189e-302

# Relative, 512 u, beside the error bounds themselves: a token nearer to its threshold is decided
# on exact numbers, not in float64. Certifies nothing, and no claim rests on it.
# claims: none
FLAG_RESOLUTION = 5.684341886080802e-14

# Relative, 2^23 u: a token farther from its threshold is decided by float64, the others one by
# one, exactly. No claim: softmax and entropy of float64 err by less than 2^17 u.
# claims: none
FLAG_WINDOW = 9.313225746154785e-10

# nats; what rounding may take from the logarithm of an atom's size: u times 2^17, for logarithms
# below 2^10.
# claims: drafter.entropy.atoms
ATOM_ROOM = 1.4551915228366852e-11

# Relative, a nat: raises the largest share that the entropy part rejects by 64 u.
# claims: drafter.entropy.feasible
SHARE_ROUNDING = 7.105427357601002e-15

# Shares above this are bounded by the divergence of one token against the rest.
# claims: drafter.entropy.dual
NEAR_ONE = 0.9999999999990905

# nats: exp, sums and pools of a list in float64; nothing is claimed below this much slack. Pays
# for 127 roundings of numbers of size 1, as read from the code.
# claims: kernel.roundings
LUMPED_ERROR = 1.4210854715202004e-14

# Relative: a list's probabilities may sum to this much above 1 before they are refused. A check of
# input: no claim.
# claims: none
MASS_SLACK = 1e-12

# How far given probabilities may sum from 1, or a given tail lie below 0, before they are refused.
# A check of input: no claim.
# claims: none
INPUT_SLACK = 1e-06

# Below this, four terms of the series stand for phi: they leave out x^8/45 of it.
# claims: eval.strict
SERIES_REACH = 0.01

# nats; a box of logits is widened by it, which pays for what float64 rounded in weights down to
# 745 nats (8.5e-14 relative) and in the probabilities made of them.
# claims: bound.weight
ROBUST_WIDENING = 9.094947017729282e-13

# In units of u, besides one a token: what a box's printed formulas round, and the sums, products
# and logarithms of its value, these as read from the code.
# claims: kernel.box, kernel.roundings
ROBUST_ROUNDINGS = 64

# In units of u: powers, roots and sums of at most 256 ranks of a pool in another divergence, and
# the logarithms around them, as read from the code.
# claims: kernel.roundings
OTHER_ROUNDINGS = 512

# Of the probability of a set of tokens, a choice: rows sum to 1 within half of it, the other half
# is far above what a sum of a million terms rounds.
# claims: none
SET_ERROR = 9.094947017729282e-13

# In units of u: sums, products and logarithms of a line below a divergence, each at most 4 ulp, as
# read from the code.
# claims: kernel.roundings
SAMPLING_ROUNDINGS = 32

# The spacing of that dtype at 1.
# claims: none
LAST_PLACE_FLOAT64 = 2.220446049250313e-16

# The spacing of that dtype at 1.
# claims: none
LAST_PLACE_FLOAT32 = 1.1920928955078125e-07

# The spacing of that dtype at 1.
# claims: none
LAST_PLACE_FLOAT16 = 0.0009765625

# The spacing of that dtype at 1.
# claims: none
LAST_PLACE_BFLOAT16 = 0.0078125
