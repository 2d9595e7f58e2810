"""The logits processor on hand-made contexts in Runner V2's layout, and as Runner V1 sees it."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import certspec as cs
from certspec.models.vllm.processor import RelaxedGreedy
from certspec.models.vllm.request_rules import read_rules
from tests.support.toy_vllm import END_THINK, THINK, params

VOCAB = 50


def context(slots, local, fed, positions=None):
    """vLLM's LogitsContext of rows that belong to ``slots``, the ``local``-th of their requests."""
    order = list(dict.fromkeys(slots))
    return SimpleNamespace(
        expanded_idx_mapping=torch.tensor(slots),
        idx_mapping=torch.tensor(order),
        idx_mapping_np=np.array(order),
        expanded_local_pos=torch.tensor(local),
        input_ids=torch.tensor(fed),
        pos=torch.tensor(positions or local),
    )


def rows_and_fed(slots, ranks, seed=0):
    """Logits, and what each row was fed: after row r the draft has its ``ranks[r]``-th best."""
    logits = 2 * torch.randn(len(slots), VOCAB, generator=torch.Generator().manual_seed(seed))
    order = logits.argsort(-1, descending=True)
    fed = [7] + [int(order[row, rank]) for row, rank in enumerate(ranks[:-1])]
    return logits, fed


def processor(rules, states=None):
    found = RelaxedGreedy(None, states)
    changes = {slot: found.add_request(slot, params(extra)) for slot, extra in rules.items()}
    return found, changes


def test_each_request_of_a_batch_has_its_own_rule():
    slots, local = [5] * 5 + [2] * 5 + [7], [*range(5), *range(5), 0]
    ranks = [0, 1, 2, 3, 4] * 2 + [0]
    logits, fed = rows_and_fed(slots, ranks)
    asked = {5: {"certspec_rule": "top:3"}, 2: None, 7: {"certspec_rule": "top:4"}}
    relaxed, changes = processor(asked)
    assert changes == {5: True, 2: False, 7: True}
    after = relaxed.apply(logits.clone(), context(slots, local, fed))
    changed = [row for row in range(11) if not torch.equal(after[row], logits[row])]
    assert changed == [0, 1, 2]  # row 3 has rank 4, row 4 no draft; then strict; then no draft
    assert after.argmax(-1)[:3].tolist() == fed[1:4]


def test_a_recycled_slot_forgets_its_rule():
    relaxed, _ = processor({5: {"certspec_rule": "top:3"}})
    assert relaxed.add_request(5, params()) is False
    logits, fed = rows_and_fed([5, 5], [1, 0])
    assert torch.equal(relaxed.apply(logits.clone(), context([5, 5], [0, 1], fed)), logits)


def test_placeholders_and_the_next_requests_first_token_are_no_drafts():
    relaxed, _ = processor({slot: {"certspec_rule": f"top:{VOCAB}"} for slot in (1, 2)})
    logits, fed = rows_and_fed([1, 1, 2], [1, 1, 1])
    fed[1] = -1
    assert torch.equal(relaxed.apply(logits.clone(), context([1, 1, 2], [0, 1, 0], fed)), logits)


def test_a_rule_for_thinking_holds_between_the_tokens_in_the_text_and_in_the_draft():
    extra = {"certspec_thinking_rule": "top:4", "certspec_thinking_tokens": f"{THINK},{END_THINK}"}
    history = torch.zeros(4, 16, dtype=torch.int64)
    history[3, :5] = torch.tensor([9, THINK, 8, 8, 7])  # thinking when the rows begin
    states = SimpleNamespace(all_token_ids=SimpleNamespace(gpu=history))
    relaxed, _ = processor({3: extra}, states)
    logits, fed = rows_and_fed([3] * 5, [1, 1, 1, 1, 0])
    logits[1, END_THINK] = logits[1].max() - 0.01  # drafted second: it ends thinking
    fed[2] = END_THINK
    after = relaxed.apply(logits.clone(), context([3] * 5, [*range(5)], fed, [*range(4, 9)]))
    changed = [row for row in range(5) if not torch.equal(after[row], logits[row])]
    assert changed == [0, 1]


def test_admission_refuses_with_a_value_error_and_lets_the_others_pass():
    for good in (params(), params({"certspec_rule": "medusa"}), params(None, temperature=1.0)):
        RelaxedGreedy.validate_params(good)
    for bad in (params({"certspec_rule": "x"}), params({"certspec_rule": "top:2"}, 1.0)):
        with pytest.raises(ValueError, match="certspec"):
            RelaxedGreedy.validate_params(bad)


def test_runner_v1_gets_a_processor_that_does_nothing():
    made = RelaxedGreedy(SimpleNamespace(), torch.device("cpu"), False)
    made.update_state(None)
    logits = torch.randn(2, 5)
    assert made.is_argmax_invariant() and made.apply(logits) is logits


def test_relaxed_rows_are_within_the_rule_and_all_of_them():
    rule = read_rules({"certspec_rule": "entropy:0.09,0.3"}, 0.0).outside
    relaxed, _ = processor({0: {"certspec_rule": rule.label}})
    logits, fed = rows_and_fed([0] * 40, [n % 8 for n in range(40)])
    after = relaxed.apply(logits.clone(), context([0] * 40, [*range(40)], fed))
    drafts = torch.nn.functional.one_hot(torch.tensor(fed[1:]), VOCAB).double()
    accepted = cs.certify(logits[:-1].double(), drafts, rule).accepted[0]
    assert torch.equal(after[:-1].argmax(-1) == torch.tensor(fed[1:]), accepted)


def test_the_plugin_loads_without_vllm_and_importing_certspec_loads_neither():
    code = (
        "import sys; sys.modules['vllm'] = None\n"
        "import certspec; assert not any('vllm' in n for n in sys.modules if n != 'vllm')\n"
        "import certspec.models.vllm as plugin; plugin.register()\n"
        "assert 'torch' not in sys.modules\n"
        "from certspec.models.vllm.processor import RelaxedGreedy; print(RelaxedGreedy.__name__)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "RelaxedGreedy"
