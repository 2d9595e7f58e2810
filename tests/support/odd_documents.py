"""JSON documents changed at random, for fuzzes. ``CERTSPEC_FUZZ=20000`` in the environment makes
them that long; without it a fuzz tries 120."""

import copy
import math
import os

from hypothesis import HealthCheck, settings

IS_REDUCED = "CERTSPEC_FUZZ" not in os.environ
AS_LONG_AS_ASKED = settings(
    max_examples=int(os.environ.get("CERTSPEC_FUZZ", "120")),
    deadline=None,
    derandomize=IS_REDUCED,
    suppress_health_check=list(HealthCheck),
)

ODD = [
    None,
    True,
    False,
    0,
    -1,
    3_000_000_000,
    10**22,
    0.0,
    -0.0,
    1.5,
    -1e308,
    1e308,
    math.inf,
    -math.inf,
    math.nan,
    "",
    "a",
    "\ud83d",
    "-Infinity",
    "NaN",
    "token_id:7",
    "token_id:9999999999",
    "bytes:\\xe2",
    "\ufffd",
    [],
    {},
    [[]],
    [{}],
    [None],
    {"a": 1},
    [-0.5, 3, None],
    10**400,
    "0.5",
    -9999.0,
    -100,
]


def places(value, path=()):
    """The paths to every part of a document."""
    yield path
    children = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, child in children:
        yield from places(child, (*path, key))


def parent_of(document, path):
    for key in path[:-1]:
        document = document[key]
    return document


def change(document, draw):
    """One random change of the document, in place."""
    paths = [path for path in places(document) if path]
    if not paths:
        return
    path = draw.choice(paths)
    parent, key = parent_of(document, path), path[-1]
    how = draw.randrange(6)
    if how == 0:
        del parent[key]
    elif how == 1 and isinstance(parent, list):
        parent.insert(key, copy.deepcopy(parent[key]))
    elif how == 2 and isinstance(parent, dict):
        parent[str(draw.choice(ODD))] = parent.pop(key)
    elif how == 3:
        other = draw.choice(paths)
        parent[key] = copy.deepcopy(parent_of(document, other)[other[-1]])
    else:
        parent[key] = copy.deepcopy(draw.choice(ODD))
