"""Saved logits read as whole rows, and refused where they were processed or hold no
distribution."""

import numpy as np
import pytest

import certspec as cs
from certspec.logs.reading import read_log

LOGITS = np.random.default_rng(0).normal(0.0, 3.0, (5, 40)).astype(np.float32)


def check(positions):
    assert [(p.sequence, p.position) for p in positions] == [(0, n) for n in range(5)]
    for position, row in zip(positions, LOGITS.astype(float), strict=True):
        exact = row - np.log(np.exp(row).sum())
        assert position.logprobs == pytest.approx(np.sort(exact)[::-1], abs=1e-6)
        assert position.keys[0] == row.argmax() and position.num_tokens == 40 == position.num_ranked


def test_numpy_files_read_as_whole_rows(tmp_path):
    np.savez(tmp_path / "log.npz", logits=LOGITS, token_ids=np.arange(5))
    np.save(tmp_path / "log.npy", LOGITS)
    check(list(read_log(tmp_path / "log.npz")))
    check(list(read_log(tmp_path / "log.npy")))


def test_torch_files_and_generates_tuple_read_as_whole_rows(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"logits": torch.from_numpy(LOGITS)}, tmp_path / "log.pt")
    check(list(read_log(tmp_path / "log.pt")))
    torch.save(tuple(torch.from_numpy(row[None]) for row in LOGITS), tmp_path / "steps.pt")
    check(list(read_log(tmp_path / "steps.pt")))


def test_safetensors_files_read_as_whole_rows_in_bfloat16_too(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    save_file({"logits": torch.from_numpy(LOGITS)}, tmp_path / "log.safetensors")
    check(list(read_log(tmp_path / "log.safetensors")))
    save_file({"logits": torch.from_numpy(LOGITS).bfloat16()}, tmp_path / "half.safetensors")
    assert len(list(read_log(tmp_path / "half.safetensors"))) == 5


def test_a_pickle_that_runs_code_is_refused(tmp_path):
    import pickle

    class Attack:
        def __reduce__(self):
            return print, ("run",)

    (tmp_path / "log.pt").write_bytes(pickle.dumps(Attack(), protocol=2))
    with pytest.raises(cs.UnreadableInput, match="not a file of tensors alone"):
        list(read_log(tmp_path / "log.pt"))


@pytest.mark.parametrize(
    "change, reason",
    [
        (lambda rows: rows.__setitem__((3, 7), np.nan), "row 3: nan at column 7"),
        (lambda rows: rows.__setitem__((2, 1), np.inf), "row 2: inf at column 1"),
        (lambda rows: rows.__setitem__(4, -np.inf), "row 4: only -inf"),
        (
            lambda rows: rows.__setitem__((slice(None), slice(10, None)), -np.inf),
            "processed by top-k or top-p",
        ),
    ],
)
def test_rows_without_a_distribution_are_refused_by_row(tmp_path, change, reason):
    rows = LOGITS.copy()
    change(rows)
    np.savez(tmp_path / "log.npz", logits=rows)
    with pytest.raises(cs.UnreadableInput, match=reason):
        list(read_log(tmp_path / "log.npz"))


def test_scores_are_refused_because_processors_have_changed_them(tmp_path):
    np.savez(tmp_path / "log.npz", scores=LOGITS)
    with pytest.raises(cs.UnreadableInput, match="logits processors"):
        list(read_log(tmp_path / "log.npz"))


def test_a_file_that_is_no_archive_is_refused(tmp_path):
    for name in ("a.npz", "a.safetensors", "a.pt", "a.npy"):
        (tmp_path / name).write_bytes(b"nonsense")
        with pytest.raises(cs.UnreadableInput, match=name):
            list(read_log(tmp_path / name))
