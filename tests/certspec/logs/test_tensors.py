"""Saved logits read as whole rows, and refused where they were processed or hold no
distribution."""

import numpy as np
import pytest

import certspec as cs
from certspec.logs.findings import Finding, Findings
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
    with pytest.raises(cs.UnreadableInput, match="not a file of tensors alone") as refused:
        list(read_log(tmp_path / "log.pt"))
    assert "weights_only" not in str(refused.value)  # torch's advice is to run its code


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


def _cut_archive(path):
    np.savez(path, logits=LOGITS)
    path.write_bytes(path.read_bytes()[:300])


def _damaged_archive(path):
    np.savez(path, logits=LOGITS)
    damaged = bytearray(path.read_bytes())
    damaged[300] ^= 255
    path.write_bytes(bytes(damaged))


def _torch_file(make):
    import torch

    return lambda path: torch.save(make(torch.from_numpy(LOGITS)), path)


NO_LOGITS = {
    "a cut archive.npz": (_cut_archive, "not a zip file"),
    "an archive with a wrong bit.npz": (_damaged_archive, "Bad CRC-32"),
    "no rows.npy": (lambda path: np.save(path, LOGITS[:0]), "at least one row, found none"),
    "no columns.npy": (lambda path: np.save(path, LOGITS[:, :0]), "at least one column, got none"),
    "two widths.npz": (
        lambda path: np.savez(path, logits=LOGITS, states=LOGITS[:, :7]),
        "'states': expected 40 columns like array 'logits', got 7",
    ),
    "sparse.pt": (_torch_file(lambda rows: rows.to_sparse()), "got a sparse_coo one"),
    "without numbers.pt": (_torch_file(lambda rows: rows.to("meta")), "got a meta one"),
    "steps of two shapes.pt": (
        _torch_file(lambda rows: (rows[:2], rows[:3])),
        r"steps of one shape \(batch, vocab\), got \(2, 40\), \(3, 40\)",
    ),
    "steps without columns.pt": (_torch_file(lambda rows: (rows[0, 0],) * 2), "found none"),
}


@pytest.mark.parametrize("name", NO_LOGITS)
def test_a_file_that_holds_no_logits_is_refused_by_name(tmp_path, name):
    write, message = NO_LOGITS[name]
    write(tmp_path / name)
    with pytest.raises(cs.UnreadableInput, match=message):
        list(read_log(tmp_path / name))


def test_token_ids_beside_logits_are_not_read_as_logits(tmp_path):
    import torch
    from safetensors.torch import save_file

    ids = torch.arange(80).reshape(2, 40)
    save_file({"ids": ids, "logits": torch.from_numpy(LOGITS)}, tmp_path / "log.safetensors")
    check(list(read_log(tmp_path / "log.safetensors")))


def test_logits_with_a_gradient_are_read(tmp_path):
    _torch_file(lambda rows: rows.requires_grad_())(tmp_path / "log.pt")
    check(list(read_log(tmp_path / "log.pt")))


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda rows: np.exp(rows) / np.exp(rows).sum(axis=1, keepdims=True), "probabilities"),
        (lambda rows: 0.0 * rows, "the same logit in every column"),
    ],
)
def test_rows_that_are_surely_no_logits_are_said_once(tmp_path, make, what):
    np.save(tmp_path / "log.npy", np.concatenate([LOGITS] * 20 + [make(LOGITS)] * 20))
    findings = Findings()
    assert len(list(read_log(tmp_path / "log.npy", findings=findings))) == 200
    assert findings.counts[Finding.SURELY_A_MISTAKE] == 1
    assert what in findings.first_seen[Finding.SURELY_A_MISTAKE]
    assert "array 'logits': row 100 (and 27 more) " in findings.first_seen[Finding.SURELY_A_MISTAKE]


def _probabilities(kind):
    import torch

    return torch.from_numpy(LOGITS).double().softmax(1).to(kind)


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_an_array_of_probabilities_is_refused(tmp_path, kind):
    """Taken for logits, their certificates would be those of a nearly uniform law."""
    import torch

    torch.save({"logits": _probabilities(getattr(torch, kind))}, tmp_path / "log.pt")
    with pytest.raises(cs.UnreadableInput, match=r"'logits': expected logits, got prob.* 5 rows"):
        list(read_log(tmp_path / "log.pt"))
    np.savez(tmp_path / "log.npz", logits=_probabilities(torch.float32).numpy(), more=LOGITS)
    with pytest.raises(cs.UnreadableInput, match="'logits': expected logits, got probabilities"):
        list(read_log(tmp_path / "log.npz"))
    np.savez(tmp_path / "ok.npz", logits=np.log(_probabilities(torch.float32).numpy()))
    assert len(list(read_log(tmp_path / "ok.npz"))) == 5
