"""How rows were decided is reported: which path scored each, and where the error bounds leave a
rule open."""

import numpy as np

import certspec as cs
from proofs_check.hunts.rows import boundary_drafts, target_rows


def test_float64_backends_report_that_every_row_took_the_rigorous_path(backend):
    rows = np.random.default_rng(0).normal(size=(7, 30))
    scored = cs.certify(rows, rows, backend=backend)
    assert scored.path_counts == {"fast": 0, "rigorous": 7}
    assert scored.paths.shape == (7,)


def test_a_decided_rule_is_not_undecided(backend):
    target = np.log(np.array([[0.6, 0.29, 0.11]]))  # no token on a threshold
    draft = np.log(np.array([[0.2, 0.7, 0.1]]))
    scored = cs.certify(
        np.concatenate([target, target]), np.concatenate([target, draft]), backend=backend
    )
    assert not scored.undecided.any()
    assert scored.at(0).certified.tolist() == [True, False]


def test_a_draft_on_the_boundary_is_undecided(backend):
    target = np.log(np.array([[0.5, 0.3, 0.2]]))
    draft = np.log(
        np.array([[0.4, 0.4, 0.2]])
    )  # the cheapest draft that lets the second token win: KL = C
    scored = cs.certify(target, draft, cs.StrictGreedy(), backend=backend)
    assert scored.undecided.tolist() == [[True]] and not scored.certified[0, 0]


def test_infinite_divergences_and_certificates_are_decided(backend):
    target, draft = np.zeros((1, 4)), np.zeros((1, 4))
    draft[0, 3] = -np.inf
    scored = cs.certify(
        target, draft, [cs.StrictGreedy(), cs.Tree(4), cs.Additive(0.9)], backend=backend
    )
    assert not scored.undecided.any()


def test_target_only_certificates_have_paths_but_leave_nothing_undecided(backend):
    scored = cs.certify(np.zeros((2, 5)), None, backend=backend)
    assert scored.undecided is None and scored.path_counts["rigorous"] == 2


def test_few_adversarial_rows_are_undecided():
    generator = np.random.default_rng(4)
    target = target_rows(generator, "normal", 2000, 32)
    undecided = cs.certify(target, boundary_drafts(generator, target)).undecided
    assert 0 < undecided.sum() < 0.05 * undecided.size


def test_ties_and_tokens_far_from_the_threshold_are_decided(backend):
    tied, wide = np.zeros((1, 4)), np.array([[3.0, 1.0, 0.0]])
    for rule in (cs.Additive(0.3), cs.Multiplicative(0.1), cs.Absolute(0.2), cs.Additive(0.0)):
        assert not cs.certify(tied, tied, rule, backend=backend).undecided.any(), rule
    for rule in (cs.Additive(0.3), cs.Multiplicative(0.1), cs.Absolute(0.2), cs.Entropy(0.09, 0.3)):
        assert not cs.certify(wide, wide, rule, backend=backend).undecided.any(), rule
