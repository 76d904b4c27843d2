"""Sparse tensors in files: Matrix Market, FROSTT, npz."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch

import lacewing


def matrix(dtype: torch.dtype = torch.float64, nse: int = 30) -> lacewing.SparseTensor:
    generator = torch.Generator().manual_seed(0)
    s = lacewing.random((20, 31), nse=nse, dtype=torch.float64, generator=generator)
    values = s.values() * 200 - 100 if dtype != torch.bool else torch.ones(nse)
    values = torch.complex(values, values.flip(0)).to(dtype) if dtype.is_complex else values.to(dtype)
    return lacewing.sparse_coo_tensor(s.indices(), values, s.shape)


def written(folder: Path, text: str, name: str = "file.mtx") -> Path:
    path = folder / name
    path.write_text(text)
    return path


FIELDS = {
    torch.float64: "real",
    torch.float32: "real",
    torch.float16: "real",
    torch.int64: "integer",
    torch.int8: "integer",
    torch.complex128: "complex",
    torch.bool: "pattern",
}


@pytest.mark.parametrize("dtype", FIELDS)
def test_mtx_reads_back_the_same_bits(tmp_path: Path, dtype: torch.dtype) -> None:
    s = matrix(dtype)
    path = tmp_path / "m.mtx"

    lacewing.write_mtx(s, path)
    back = lacewing.read_mtx(path, dtype)

    assert torch.equal(back.indices(), s.indices())
    assert torch.equal(back.values(), s.values())
    assert back.shape == s.shape
    first = path.read_text().splitlines()[0]
    assert first == f"%%MatrixMarket matrix coordinate {FIELDS[dtype]} general"


@pytest.mark.parametrize("field", ["real", "integer", "complex", "pattern"])
@pytest.mark.parametrize("symmetry", ["general", "symmetric", "skew-symmetric", "hermitian"])
def test_mtx_of_every_field_and_symmetry_is_read(tmp_path: Path, field: str, symmetry: str) -> None:
    text, value = {
        "real": ("-1.5e3", -1500.0),
        "integer": ("-7", -7),
        "complex": ("2.5 -1", 2.5 - 1j),
        "pattern": ("", 1.0),
    }[field]
    expected = np.zeros((4, 4), complex)
    places = [(1, 0), (2, 0), (3, 1)]
    for row, column in places:
        expected[row, column] = value
        mirrored = {"general": 0, "symmetric": value, "skew-symmetric": -value, "hermitian": np.conj(value)}[symmetry]
        expected[column, row] = mirrored
    lines = [f"{row + 1} {column + 1}\t{text} \r" for row, column in places]
    head = f"%%MatrixMarket MATRIX coordinate {field} {symmetry}\n% a comment\n\n4 4 3\n"

    found = lacewing.read_mtx(written(tmp_path, head + "\n".join(lines)))

    assert found.dtype == {"integer": torch.int64, "complex": torch.complex128}.get(field, torch.float64)
    assert np.array_equal(found.to_dense().numpy(), expected)


@pytest.mark.parametrize(
    ("symmetry", "expected"),
    [
        ("general", [[1, 4, 7], [2, 5, 8], [3, 6, 9]]),
        ("symmetric", [[1, 2, 3], [2, 4, 5], [3, 5, 6]]),
        ("skew-symmetric", [[0, -1, -2], [1, 0, -3], [2, 3, 0]]),
    ],
)
def test_mtx_arrays_are_read(tmp_path: Path, symmetry: str, expected: list[list[int]]) -> None:
    count = {"general": 9, "symmetric": 6, "skew-symmetric": 3}[symmetry]
    text = f"%%MatrixMarket matrix array real {symmetry}\n3 3\n" + "\n".join(str(k + 1) for k in range(count)) + "\n"

    assert lacewing.read_mtx(written(tmp_path, text)).to_dense().tolist() == expected


def test_mtx_arrays_without_elements_have_their_shape(tmp_path: Path) -> None:
    head = "%%MatrixMarket matrix array real general\n"

    found = [lacewing.read_mtx(written(tmp_path, head + sizes + "\n")) for sizes in ("1000000000000 0", "0 3")]

    assert [(each.shape, each.nse) for each in found] == [((10**12, 0), 0), ((0, 3), 0)]


HEAD = "%%MatrixMarket matrix coordinate real general\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: it does not begin with %%MatrixMarket"),
        ("%%MatrixMarket matrix coordinate rael general\n", 'line 1: "rael" is none of real, double, integer, complex'),
        (HEAD, "line 1: the file ends before its sizes"),
        (HEAD + "3 3\n", "line 2: the number of entries is missing"),
        (HEAD + "3 x 1\n", 'line 2: the number of columns is "x", which is no integer'),
        (HEAD + "3 3 2\n1 1 1.000000\n", "line 3: the file ends with 1 of the 2 entries that it announces"),
        (HEAD + "3 3 1\n1 1 1.0\n2 2 2.0\n", "line 4: the file holds 2 entries, but it announces 1"),
        (HEAD + "3 3 1\n\n% c\n4 1 1.0\n", r"line 5: entry \(4, 1\) is outside of a matrix of 3 x 3"),
        (HEAD + "3 3 1\n0 1 1.0\n", r"line 3: entry \(0, 1\) is outside"),
        (HEAD + "3 3 1\n1 1\n", "line 3: the value is missing"),
        (HEAD + "3 3 1\n1 1 one\n", 'line 3: the value is "one", which is no number'),
        (HEAD + "3 3 1\n1 1.5 1.0\n", 'line 3: the column is "1.5", which is no integer'),
        (HEAD + "3 3 1\n1 1 1.0 2.0\n", 'line 3: "2.0" is more than an entry has'),
        (
            HEAD + "3 3 1000000000000000000\n1 1 1\n",
            "line 2: it announces 1000000000000000000 entries, but the 6 bytes",
        ),
        (HEAD + "3 3 -1\n", "line 2: sizes must not be negative"),
        (HEAD.replace("general", "symmetric") + "3 4 1\n1 1 1\n", "line 2: a symmetric matrix must be square"),
        (
            HEAD + "9000000000000000000 9000000000000000000 1\n1 1 1\n",
            r"\[lacewing.read_mtx\] .*file.mtx: line 2: a matrix of .* has more elements than int64 can count",
        ),
        (
            HEAD.replace("general", "skew-symmetric") + "3 3 2\n2 1 1\n2 2 1\n",
            r"line 4: entry \(2, 2\) is on the diagonal, which a skew-symmetric matrix has not",
        ),
        (
            "%%MatrixMarket matrix coordinate complex hermitian\n3 3 2\n1 1 1 0\n3 3 1 2\n",
            r"line 4: entry \(3, 3\) is on the diagonal of a hermitian matrix, but it is not real",
        ),
        ("%%MatrixMarket matrix array real general\n1000000000 1000000000\n1\n", "line 2: it announces more elements"),
    ],
)
def test_damaged_mtx_files_get_a_sentence_with_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        lacewing.read_mtx(written(tmp_path, text))


def test_mtx_takes_matrices_of_numbers_with_fill_0(tmp_path: Path) -> None:
    path = tmp_path / "m.mtx"

    with pytest.raises(
        RuntimeError, match=r"\[lacewing\.write_mtx\] such a file holds tensors with the constant fill 0"
    ):
        lacewing.write_mtx(matrix().with_fill(1.0), path)
    with pytest.raises(RuntimeError, match=r"holds a matrix, not a tensor of shape \(3,\)"):
        lacewing.write_mtx(lacewing.sparse_coo_tensor([[0]], [1.0], (3,)), path)
    with pytest.raises(RuntimeError, match="numbers as entries, not blocks"):
        lacewing.write_mtx(lacewing.sparse_coo_tensor([[0]], torch.ones(1, 2)), path)
    with pytest.raises(RuntimeError, match="no place for a stored false"):
        lacewing.write_mtx(lacewing.sparse_coo_tensor([[0], [0]], [False]), path)
    with pytest.raises(RuntimeError, match=r"\[lacewing\.write_mtx\] .*cannot be opened"):
        lacewing.write_mtx(matrix(), tmp_path / "no" / "m.mtx")
    with pytest.raises(RuntimeError, match=r"\[lacewing\.read_mtx\] .*cannot be opened"):
        lacewing.read_mtx(path)


def test_large_files_are_read_in_parts(tmp_path: Path) -> None:
    s = lacewing.random((10**6, 10**5), nse=60_000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    path, damaged = tmp_path / "m.mtx", tmp_path / "d.mtx"

    lacewing.write_mtx(s, path)
    lines = path.read_text().splitlines()
    lines[41_234] = "7 8 nine"
    damaged.write_text("\n".join(lines))

    assert torch.equal(lacewing.read_mtx(path).values(), s.values())
    with pytest.raises(RuntimeError, match='line 41235: the value is "nine"'):
        lacewing.read_mtx(damaged)


def test_compressed_tensors_are_written_as_their_entries(tmp_path: Path) -> None:
    s = matrix()
    path = tmp_path / "m.mtx"

    lacewing.write_mtx(s.to_gcs(compressed="columns"), path)

    assert torch.equal(lacewing.read_mtx(path).to_dense(), s.to_dense())


def test_tns_reads_back_the_same_bits(tmp_path: Path) -> None:
    s = lacewing.random((5, 6, 7, 8), nse=50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    path = tmp_path / "t.tns"

    lacewing.write_tns(s, path)
    back = lacewing.read_tns(path, s.shape)

    assert torch.equal(back.indices(), s.indices())
    assert torch.equal(back.values(), s.values())
    assert lacewing.read_tns(path, dtype=torch.float32).dtype == torch.float32


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63), 2**53 + 1, 3])
def test_tns_integers_read_back_the_same(tmp_path: Path, number: int) -> None:
    path = tmp_path / "t.tns"

    lacewing.write_tns(lacewing.sparse_coo_tensor([[0]], torch.tensor([number])), path)
    back = lacewing.read_tns(path, dtype=torch.int64)

    assert back.values().tolist() == [number]


def test_tns_values_of_an_integer_dtype_are_integers(tmp_path: Path) -> None:
    assert lacewing.read_tns(written(tmp_path, "1 3.0\n", "t.tns"), dtype=torch.int32).values().tolist() == [3]
    with pytest.raises(RuntimeError, match=r'line 1: the value is "1\.5", which is no integer'):
        lacewing.read_tns(written(tmp_path, "1 1.5\n", "t.tns"), dtype=torch.int32)


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    for read in (lacewing.read_mtx, lacewing.read_tns):
        with pytest.raises(RuntimeError, match="it is a directory"):
            read(tmp_path)


def test_tns_sizes_are_the_largest_indices(tmp_path: Path) -> None:
    s = lacewing.read_tns(written(tmp_path, "# c\n1 2 3 4.5\n\n2 1 1 -1e3\n", "t.tns"))

    assert tuple(s.shape) == (2, 2, 3)
    assert s.values().tolist() == [4.5, -1000.0]


@pytest.mark.parametrize(
    ("text", "size", "message"),
    [
        ("", None, "the file has no entry, so the number of dims is unknown: give size="),
        ("1.0\n", None, "line 1: an entry needs an index and a value at least"),
        ("1 2 3.0\n1 2\n", None, "line 2: the value is missing"),
        ("1 2 3.0\n1 2 3 4\n", None, 'line 2: "4" is more than an entry has'),
        ("1 0 3.0\n", None, "line 1: index 0 of dim 1 is less than 1"),
        ("1 9 3.0\n", (3, 3), "line 1: index 9 of dim 1 is outside of 1 to 3"),
        ("1 2 x\n", (3, 3), 'line 1: the value is "x", which is no number'),
        (
            "4294967296 1 1\n2 2 1\n1 4294967295 1\n2 1 1\n",
            None,
            r"\[lacewing.read_tns\] .*t.tns: line 3: a tensor of size \(4294967296, 4294967295\) has more elements",
        ),
    ],
)
def test_damaged_tns_files_get_a_sentence_with_the_line(
    tmp_path: Path, text: str, size: tuple[int, ...] | None, message: str
) -> None:
    with pytest.raises(RuntimeError, match=message):
        lacewing.read_tns(written(tmp_path, text, "t.tns"), size)


@pytest.mark.parametrize("format", ["coo", "gcrs", "gccs"])
def test_npz_files_are_those_of_scipy(tmp_path: Path, format: str) -> None:
    s = matrix()
    s = s if format == "coo" else s.to_gcs(compressed="rows" if format == "gcrs" else "columns")
    path = tmp_path / "m.npz"

    lacewing.save_npz(s, path)
    back = lacewing.load_npz(path)

    assert back.format == format
    assert torch.equal(back.to_dense(), s.to_dense())
    assert np.array_equal(scipy.sparse.load_npz(path).toarray(), s.to_dense().numpy())


def test_damaged_npz_files_get_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    lacewing.save_npz(matrix(), path)
    whole = path.read_bytes()

    for damaged in (whole[:100], whole[:40] + bytes(60) + whole[100:], whole.replace(b"\x78", b"\xff")):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"\[lacewing\.load_npz\] .*it is no file of a sparse matrix"):
            lacewing.load_npz(path)


def test_npz_files_of_bad_arrays_are_named(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    bad = scipy.sparse.csr_array(np.eye(3))
    bad.indices[1] = 7
    scipy.sparse.save_npz(path, bad)

    with pytest.raises(ValueError, match=r"\[lacewing.load_npz\] .*m.npz: .* plain_indices\[1\] = 7 is out of range"):
        lacewing.load_npz(path)


def save_arrays(path: Path, **arrays: object) -> None:
    np.savez(path, **{name: np.asarray(array) for name, array in arrays.items()})


BLOCKS = {
    "format": b"bsr",
    "shape": [4, 4],
    "data": np.arange(1.0, 9.0).reshape(2, 2, 2),
    "indices": np.array([1, 0], dtype=np.int32),
    "indptr": np.array([0, 1, 2], dtype=np.int32),
}


@pytest.mark.parametrize(
    ("array", "damaged", "said"),
    [
        ("indptr", [0, 2**30, 2], r"compressed_indices\[1\] = 1073741824 must lie between"),
        ("indptr", [0, 1], r"compressed_indices must have shape \(3,\)"),
        ("indptr", [-5, 1, 2], r"compressed_indices\[0\] = -5 must be 0"),
        ("indices", [1, 2**31 - 1], r"plain_indices\[1\] = 2147483647 is out of range: there are 2 blocks"),
        ("indices", [-1, 0], r"plain_indices\[0\] = -1 is out of range"),
        ("indices", [1.0, 0.0], r"indices must be int32 or int64, not float64"),
        ("data", np.ones(2), r"BSR needs blocks \(nse, height, width\)"),
        ("data", np.ones((2, 3, 2)), r"blocks of shape \(3, 2\) do not make up a matrix of shape \(4, 4\)"),
        ("shape", [2**40, 4], r"compressed_indices must have shape \(549755813889,\)"),
        ("shape", [4.0, 4.0], r"shape must be integers, not float64"),
    ],
)
def test_npz_files_of_damaged_blocks_are_named(tmp_path: Path, array: str, damaged: object, said: str) -> None:
    path = tmp_path / "m.npz"
    dtype = np.asarray(BLOCKS[array]).dtype if isinstance(damaged, list) and type(damaged[0]) is int else None
    save_arrays(path, **BLOCKS | {array: np.asarray(damaged, dtype=dtype)})

    with pytest.raises(ValueError, match=r"\[lacewing.load_npz\] .*m.npz: its arrays are no sparse matrix: .*" + said):
        lacewing.load_npz(path)


@pytest.mark.parametrize("format", ["bsr", "dia", "coo", "csr", "csc"])
@pytest.mark.parametrize("compressed", [True, False])
def test_npz_files_of_every_format_read_as_in_scipy(tmp_path: Path, format: str, compressed: bool) -> None:
    path = tmp_path / "m.npz"
    dense = np.triu(np.arange(48.0).reshape(6, 8), -2) * (np.arange(8) % 3 > 0)
    scipy.sparse.save_npz(path, scipy.sparse.coo_array(dense).asformat(format), compressed=compressed)

    found = lacewing.load_npz(path)

    assert np.array_equal(found.to_dense().numpy(), dense)


def test_diagonals_outside_of_the_matrix_have_no_entry(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    ends = [-(2**63), -3, -1, 0, 2, 4, 2**63 - 1]
    save_arrays(path, format=b"dia", shape=[3, 4], data=np.ones((7, 9)), offsets=np.array(ends))

    found = lacewing.load_npz(path)

    assert np.array_equal(found.to_dense().numpy(), np.eye(3, 4) + np.eye(3, 4, -1) + np.eye(3, 4, 2))


def test_an_npz_file_that_announces_more_than_it_holds_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    save_arrays(path, **{name: array for name, array in BLOCKS.items() if name != "data"})
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 40, 2, 2)})
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("data.npy", header.getvalue() + bytes(64))

    with pytest.raises(ValueError, match=r"data.npy of shape \(1099511627776, 2, 2\) has 35184372088832 bytes, but"):
        lacewing.load_npz(path)


def test_a_matrix_of_blocks_in_memory_is_looked_at() -> None:
    bad = scipy.sparse.bsr_array(np.eye(4), blocksize=(2, 2))
    bad.indices[1] = 2**31 - 1

    with pytest.raises(RuntimeError, match=r"plain_indices\[1\] = 2147483647 is out of range"):
        lacewing.from_scipy(bad)
    with pytest.raises(RuntimeError, match=r"plain_indices\[0\] = 9 is out of range"):
        lacewing.from_torch(
            torch.sparse_bsr_tensor([0, 1, 1], [9], torch.ones(1, 2, 2), (4, 4), check_invariants=False)
        )


@pytest.mark.parametrize(
    ("read", "content"),
    [
        (lacewing.read_mtx, b"%%MatrixMarket matrix coordinate real general\n3 3 1\n1 1 \xffz\n"),
        (lacewing.read_tns, b"1 1 \xffz\n"),
    ],
)
def test_bytes_that_are_no_text_are_quoted(tmp_path: Path, read, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)

    with pytest.raises(RuntimeError, match=r"\\xffz"):
        read(path)
