"""A tree that is no tree is refused at construction, with the node's name; a regular tree has the
nodes it says."""

import pytest

import certspec as cs
from certspec.decoding import TreeShape, TreeTopology
from certspec.models.trees import chain


def test_a_chain_hangs_each_token_from_the_one_before():
    assert chain(3) == TreeTopology((-1, 0, 1), (0, 0, 0))
    assert chain(3) == TreeShape(1, 3).topology == TreeShape(1, 3, "full").topology
    assert len(chain(0)) == 0 and chain(0).depth == 0 and chain(0).width == 0


def test_a_greedy_tree_expands_the_spine_only():
    tree = TreeShape(width=3, depth=2).topology
    assert tree.parents == (-1, -1, -1, 0, 0, 0) and tree.ranks == (0, 1, 2, 0, 1, 2)
    assert tree.expanded == ((-1,), (0,))


def test_a_full_tree_expands_every_node():
    tree = TreeShape(width=2, depth=3, growth="full").topology
    assert len(tree) == 2 + 4 + 8 and tree.depth == 3 and tree.width == 2
    assert [len(level) for level in tree.expanded] == [1, 2, 4]


def test_truncation_leaves_the_upper_levels():
    assert TreeShape(2, 5).topology.truncated(2) == TreeShape(2, 2).topology
    assert TreeShape(2, 3, "full").topology.truncated(1) == TreeTopology((-1, -1), (0, 1))
    assert len(TreeShape(2, 3).topology.truncated(0)) == 0


def test_static_paths_are_ordered_by_level_whatever_their_order():
    assert TreeTopology.from_paths([(0, 0), (1,), (0,)]) == TreeTopology((-1, -1, 0), (0, 1, 0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TreeTopology((-1, 5), (0, 0)), "node 1 names parent 5, which is missing"),
        (lambda: TreeTopology((-1, -2), (0, 0)), "node 1 names parent -2, which is missing"),
        (lambda: TreeTopology((1, 0), (0, 0)), "node 0 names parent 1, .*cycle"),
        (lambda: TreeTopology((-1, 1), (0, 0)), "node 1 names parent 1, .*cycle"),
        (lambda: TreeTopology((-1, -1), (0, 0)), "node 1 is listed twice"),
        (
            lambda: TreeTopology((-1, -1), (0, 2)),
            "node 1 is candidate 2 of node -1, but candidate 1",
        ),
        (lambda: TreeTopology((-1,), (-1,)), "node 0 is candidate -1"),
        (lambda: TreeTopology((-1, 0), (0,)), "2 parents and 1 ranks"),
        (lambda: TreeTopology.from_paths([(0,), (0,)]), r"path \(0,\) is listed twice"),
        (
            lambda: TreeTopology.from_paths([(0,), (1, 0)]),
            r"path \(1, 0\) has no parent: \(1,\) is missing",
        ),
        (lambda: TreeTopology.from_paths([()]), "at least one rank"),
        (lambda: TreeTopology.from_paths([(0,), (2,)]), "candidate 1 is not listed"),
        (lambda: TreeShape(0, 4), "width an integer of at least 1, got 0"),
        (lambda: TreeShape(2, 0), "depth an integer of at least 1, got 0"),
        (lambda: TreeShape(2.5, 1), "width an integer of at least 1, got 2.5"),
        (lambda: TreeShape(True, 1), "width an integer of at least 1, got True"),
        (lambda: TreeShape(2, 2, "wide"), "growth: expected one of spine, full, got 'wide'"),
        (lambda: TreeShape(4, 9, "full"), "at most 4096 nodes"),
        (lambda: TreeShape(10**9, 10**9, "full"), "at most 4096 nodes"),
        (lambda: TreeShape(10**6, 10**6), "at most 4096 nodes"),
        (lambda: chain(10**9), "draft_length: expected at most 4096, got"),
        (lambda: chain(True), "draft_length"),
    ],
)
def test_a_tree_that_is_no_tree_is_refused(make, message):
    with pytest.raises(cs.InvalidArgument, match=message):
        make()
