"""The hunt for false certificates counts what it says, goes on where it stopped, and its 50-digit judge sees a bound
that is wrong by a hair."""

import json

import numpy as np
import pytest

import certspec as cs
from proofs_check.adversaries import hunt, judge_exactly

CELLS = (("numba", "float32", 0.5), ("torch", "bfloat16", 0.5))
RULES = [cs.StrictGreedy(), cs.Entropy(epsilon=0.09, delta=0.3), cs.Tree(2)]


def test_no_pair_of_a_small_hunt_is_falsely_certified():
    state = hunt(4000, CELLS, vocab=12, rules=RULES, sample=2)
    for cell in state["cells"].values():
        assert cell["pairs"] >= 2000 and cell["certified"] > 0 and cell["judged_exactly"] > 0
        assert cell["false_certificates"] == cell["false_bounds"] == cell["false_by_50_digits"] == 0
        assert sum(map(sum, cell["near"])) > 0


def test_a_hunt_goes_on_where_it_stopped(tmp_path):
    path = tmp_path / "state.json"
    whole = hunt(3000, CELLS, vocab=12, rules=RULES, sample=1)

    class Interrupted(Exception):
        pass

    def interrupt(name, cell, wanted):
        if cell["batches"] == 3:
            raise Interrupted

    with pytest.raises(Interrupted):
        hunt(3000, CELLS, vocab=12, rules=RULES, sample=1, state_path=path, say=interrupt)
    assert json.loads(path.read_text())["cells"]["numba float32"]["batches"] == 3
    assert hunt(3000, CELLS, vocab=12, rules=RULES, sample=1, state_path=path) == whole


def test_a_hunt_with_other_arguments_does_not_mix_its_counts_in(tmp_path):
    path = tmp_path / "state.json"
    hunt(100, CELLS[:1], vocab=8, rules=RULES, sample=0, state_path=path)
    with pytest.raises(ValueError, match="give another file"):
        hunt(100, CELLS[:1], vocab=9, rules=RULES, sample=0, state_path=path)


@pytest.mark.parametrize("rule", [cs.StrictGreedy(), cs.Additive(0.3), cs.TopM(2), cs.Tree(3)])
def test_the_judge_refutes_bounds_on_the_wrong_side(rule):
    generator = np.random.default_rng(2)
    target = np.sort(generator.normal(size=9))[::-1] * 2
    draft = target + generator.normal(size=9) * 0.1
    scored = cs.certify(target, draft, rule)
    names = ("kl", "kl_upper", "certificate", "certificate_lower", "accepted", "certified")
    arrays = {name: np.array(getattr(scored, name)) for name in names}
    assert judge_exactly(rule, 0, target, draft, arrays, 0)
    assert not judge_exactly(rule, 0, target, draft, {**arrays, "kl_upper": arrays["kl"] * (1 - 1e-12)}, 0)
    if np.isfinite(arrays["certificate"]).all():
        raised = {**arrays, "certificate_lower": arrays["certificate"] * (1 + 1e-12)}
        assert not judge_exactly(rule, 0, target, draft, raised, 0)
