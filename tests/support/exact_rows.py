"""Fifty-digit truth for small rows: probabilities, divergences, and certificates by enumeration of
every pool, from the definition of rejection. Shares nothing with the library but the rules'
parameters."""

from itertools import combinations

import mpmath
import numpy as np
from mpmath import mpf

mpmath.mp.dps = 50


def probabilities(logits):
    """Exact softmax of stored logits, as 50-digit numbers."""
    values = [None if value == -np.inf else mpf(float(value)) for value in logits]
    highest = max(value for value in values if value is not None)
    weights = [mpf(0) if value is None else mpmath.exp(value - highest) for value in values]
    total = mpmath.fsum(weights)
    return [weight / total for weight in weights]


def divergence(target_probs, draft_probs):
    terms = []
    for target_prob, draft_prob in zip(target_probs, draft_probs, strict=True):
        if target_prob > 0:
            if draft_prob == 0:
                return mpf("inf")
            terms.append(target_prob * mpmath.log(target_prob / draft_prob))
    return mpmath.fsum(terms)


def ranks(logits):
    """Ids by (-logit, id)."""
    return sorted(range(len(logits)), key=lambda token: (-float(logits[token]), token))


def rejected_tokens(threshold, logits, target_probs):
    """The tokens that a single-token rule rejects, by its definition."""
    order = ranks(logits)
    entropy = -mpmath.fsum(
        p * mpmath.log(p + mpf(threshold.smoothing)) for p in target_probs if p > 0
    )
    tau = mpf(threshold.cap)
    if threshold.scale or np.isfinite(threshold.offset):
        tau = min(tau, mpf(threshold.scale) * target_probs[order[0]] + mpf(threshold.offset))
    if np.isfinite(threshold.entropy_scale):
        tau = min(tau, mpf(threshold.entropy_scale) * mpmath.exp(-entropy))
    if threshold.offset == -np.inf:
        tau = mpf("-inf")
    below = [p <= tau if threshold.strictly_above else p < tau for p in target_probs]
    gate = threshold.top_m or len(order)
    return {token for rank, token in enumerate(order) if rank >= gate or below[token]}


def single_token_certificate(target_probs, rejected):
    """min KL over drafts in which a rejected token attains the maximum: every pool is tried,
    feasible ones compete."""
    best = mpf("inf")
    tokens = range(len(target_probs))
    for competitor in rejected:
        others = [token for token in tokens if token != competitor]
        for size in range(len(others) + 1):
            for chosen in combinations(others, size):
                pool = {competitor, *chosen}
                level = mpmath.fsum(target_probs[token] for token in pool) / len(pool)
                if level > 0 and all(
                    target_probs[token] <= level for token in tokens if token not in pool
                ):
                    best = min(best, _pool_cost(target_probs, pool, level))
    return best


def tree_certificate(target_probs, first, width):
    """min KL over drafts in which ``width`` tokens reach the draft probability of token
    ``first``."""
    best = mpf("inf")
    others = [token for token in range(len(target_probs)) if token != first]
    for competitors in combinations(others, width):
        for size in range(width + 1):
            for chosen in combinations(competitors, size):
                pool = {first, *chosen}
                level = mpmath.fsum(target_probs[token] for token in pool) / len(pool)
                if all(target_probs[token] >= level for token in competitors if token not in pool):
                    best = min(best, _pool_cost(target_probs, pool, level))
    return best


def _pool_cost(target_probs, pool, level):
    return mpmath.fsum(
        target_probs[token] * mpmath.log(target_probs[token] / level)
        for token in pool
        if target_probs[token] > 0
    )


def rule_truth(rule, logits):
    """(certificate, set of rejected tokens or None for a tree) of one rule on one row."""
    target_probs = probabilities(logits)
    if rule.threshold is None:
        first = ranks(logits)[0]
        return tree_certificate(target_probs, first, rule.tree_width), None
    rejected = rejected_tokens(rule.threshold, logits, target_probs)
    return single_token_certificate(target_probs, rejected), rejected
