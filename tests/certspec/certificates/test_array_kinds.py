"""Every kind of array that holds its numbers is read as these numbers; the others are refused by
name."""

import numpy as np
import pytest
import torch

import certspec as cs

GENERATOR = np.random.default_rng(6)
TARGET, DRAFT = GENERATOR.normal(size=(2, 5, 40)) * 3
RULES = [cs.StrictGreedy(), cs.Additive(0.3), cs.Tree(2)]
FIELDS = ("kl", "kl_upper", "certificate", "certificate_lower", "accepted", "target_top_ids")


def read_only(rows, folder):
    locked = rows.copy()
    locked.flags.writeable = False
    return locked


def memory_mapped(rows, folder):
    path = folder / f"{len(list(folder.iterdir()))}.npy"
    np.save(path, rows)
    return np.load(path, mmap_mode="r")


def unaligned(rows, folder):
    room = np.zeros(rows.nbytes + 1, np.uint8)[1:]
    shifted = room.view(rows.dtype).reshape(rows.shape)
    shifted[:] = rows
    return shifted


def every_other(rows, folder):
    return np.repeat(rows, 2, axis=1)[:, ::2]


KINDS = {
    "read-only": read_only,
    "big-endian": lambda rows, folder: rows.astype(rows.dtype.newbyteorder(">")),
    "Fortran": lambda rows, folder: np.asfortranarray(rows),
    "memory-mapped": memory_mapped,
    "unaligned": unaligned,
    "every other column": every_other,
    "backwards": lambda rows, folder: rows[::-1, ::-1].copy()[::-1, ::-1],
    "masked without a mask": lambda rows, folder: np.ma.masked_array(rows),
}


@pytest.mark.parametrize("backend", ["numba", "reference", "torch", "numba float32"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.filterwarnings("error")
def test_an_array_of_any_kind_gives_what_a_plain_one_of_its_numbers_gives(backend, dtype, tmp_path):
    name, _, precision = backend.partition(" ")
    settings = {"backend": name, "precision": precision or None}
    target, draft = TARGET.astype(dtype), DRAFT.astype(dtype)
    expected = cs.certify(target, draft, RULES, **settings)
    itself = cs.certify(target, target, RULES, **settings)
    for kind, make in KINDS.items():
        odd = make(target, tmp_path)
        for sides in ((odd, draft), (target, make(draft, tmp_path)), (odd, odd)):
            found = cs.certify(*sides, RULES, **settings)
            wanted = itself if sides[1] is odd else expected
            for field in FIELDS:
                assert np.array_equal(getattr(found, field), getattr(wanted, field)), (kind, field)
        same = cs.drafter_certificate(odd, cs.Tree(2))
        assert np.array_equal(same, cs.drafter_certificate(target, cs.Tree(2))), kind


@pytest.mark.parametrize("backend", ["numba", "reference", "torch"])
def test_one_row_broadcast_to_many_is_read_as_many(backend):
    spread = np.broadcast_to(TARGET[:1], TARGET.shape)
    flat = np.broadcast_to(np.float64(1.5), (5, 40))
    found = cs.certify(spread, DRAFT, RULES, backend=backend)
    assert np.array_equal(found.kl, cs.certify(spread.copy(), DRAFT, RULES, backend=backend).kl)
    assert (cs.certify(flat, flat, RULES, backend=backend).certificate[0] == 0.0).all()


@pytest.mark.parametrize(
    "options",
    [
        {"backend": "torch"},
        {"logit_error": 0.05},
        {"divergence": "tv"},
        {"draft_vocabulary": [0]},
        {"backend": "numba"},
    ],
    ids=str,
)
def test_what_is_reversed_along_a_length_of_1_is_read_too(options):
    """numpy takes it for contiguous, and torch refused its stride."""
    for rows in (TARGET[:2][::-1][1:], TARGET[:3, :1][:, ::-1]):
        columns = 1 if "draft_vocabulary" in options else rows.shape[1]
        draft = rows[:, :columns]
        found = cs.certify(rows, draft, RULES, **options)
        expected = cs.certify(rows.copy(), draft.copy(), RULES, **options)
        assert np.array_equal(found.certificate_lower, expected.certificate_lower)


def test_what_was_not_to_be_written_is_neither_written_nor_unlocked():
    locked = read_only(TARGET, None)
    cs.certify(locked, DRAFT)
    assert not locked.flags.writeable and np.array_equal(locked, TARGET)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda rows: torch.complex(rows, rows).conj().imag, "negative bit"),
        (lambda rows: rows.to_sparse(), "layout sparse_coo"),
        (lambda rows: rows.to_sparse_csr(), "layout sparse_csr"),
        (lambda rows: rows.to("meta"), "a meta tensor"),
        (lambda rows: torch.nested.nested_tensor([rows[0], rows[1, :9]]), "a nested tensor"),
        (lambda rows: np.ma.masked_less(rows.numpy(), 0.0), "masked entries"),
        (lambda rows: rows.tolist(), "got list"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_an_array_that_does_not_hold_its_numbers_is_refused_by_name(make, named):
    odd = make(torch.from_numpy(TARGET))
    good = TARGET if not isinstance(odd, torch.Tensor) else torch.from_numpy(TARGET)
    head = good[:4, :]
    for call in (
        lambda: cs.certify(odd, good),
        lambda: cs.certify(good, odd),
        lambda: cs.certify(odd, None, lumped=True),
        lambda: cs.drafter_certificate(odd, cs.StrictGreedy()),
        lambda: cs.drafter_certificate_lower(odd, cs.StrictGreedy()),
        lambda: cs.reverse_certificate(odd, cs.StrictGreedy()),
        lambda: cs.certify_hidden(odd, head),
    ):
        with pytest.raises(cs.InvalidLogits, match=named):
            call()


def test_a_call_inside_vmap_is_refused_by_name():
    with pytest.raises(cs.InvalidLogits, match=r"target_logits: .* vmap"):
        torch.vmap(lambda rows: cs.certify(rows, rows).kl)(torch.zeros(3, 2, 5))
    fake_mode = torch._subclasses.fake_tensor.FakeTensorMode
    with fake_mode(), pytest.raises(cs.InvalidLogits, match="a meta tensor"):
        cs.certify(torch.zeros(2, 5), None)
