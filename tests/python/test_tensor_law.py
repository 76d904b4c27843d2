"""The law over torch's operator database: rules 1 to 3 of sparse tensors, and their gradients (17)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from tensor_law import RANDOM, Row, check_entry, check_gradient, check_second_gradient, check_undefined

pytest.importorskip("expecttest", reason="torch's operator database needs the package expecttest")
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The samples are tiny, and the workers share the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


pytestmark = pytest.mark.filterwarnings("ignore")
ENTRIES = [op for op in op_db if op.name not in RANDOM]
DOUBLES = [op for op in ENTRIES if torch.float64 in op.supported_dtypes("cpu") and op.name != "to_sparse"]
# With fill 0 and all dims sparse, at least so many entries keep the format or have a strided result by nature.
NATIVE = 400
# Of the entries that have (second) gradients by the database, so many were compared: a few have no tensor of doubles to
# begin with. A share, because databases differ between versions of torch.
COMPARED = 0.92
# torch's own last bit depends on where an element lies: a vector kernel takes blocks, a scalar one what is left.
BY_PLACE = {
    "__rpow__", "atan2", "atanh", "cosh", "float_power", "hypot", "igamma", "logaddexp", "nn_functional_mish", "pow",
    "sinh",
}  # fmt: skip
# Functions of torch.cuda.jiterator are no ops: they compile a kernel and give it the memory of their arguments.
JITERATOR = {op.name for op in ENTRIES if op.name.startswith("jiterator_")}
REFUSED = {"nn.functional.embedding", "nn.functional.embedding_bag"} | JITERATOR  # max_norm writes to the weight


def table(rows: dict[str, Row]) -> Counter[str]:
    counts = Counter(row.outcome for row in rows.values())
    print(dict(counts))
    for name, row in sorted(rows.items()):
        print(f"{row.outcome:10} {name:45} {row.note.splitlines()[0] if row.note else ''}")
    return counts


@pytest.mark.parametrize(("split", "fill"), [(0, "zero"), (0, "one"), (1, "zero"), (1, "array"), (2, "one")])
def test_the_law_holds_for_every_entry_of_the_operator_database(device: str, split: int, fill: str) -> None:
    rows = {op.formatted_name: check_entry(op, device, split, fill, limit=4 if split == 0 else 2) for op in ENTRIES}

    counts = table(rows)

    assert [name for name, row in rows.items() if row.outcome == "wrong"] == []
    refused = {op.name for op in ENTRIES if rows[op.formatted_name].outcome == "refused"}
    assert refused <= REFUSED
    if (split, fill) == (0, "zero"):
        assert counts["native"] >= NATIVE


@pytest.mark.parametrize(
    ("format", "split", "fill"), [("gcrs", 0, "zero"), ("gccs", 0, "one"), ("gccs", 1, "array"), ("gcrs", 1, "one")]
)
def test_the_law_holds_in_compressed_formats(device: str, format: str, split: int, fill: str) -> None:
    rows = {op.formatted_name: check_entry(op, device, split, fill, limit=2, format=format) for op in ENTRIES}

    counts = table(rows)

    assert [name for name, row in rows.items() if row.outcome == "wrong"] == []
    if (split, fill) == (0, "zero"):
        assert counts["native"] >= NATIVE


@pytest.mark.parametrize("format", ["coo", "gccs"])
def test_the_law_holds_for_undefined_fills_where_elements_are_specified(device: str, format: str) -> None:
    rows = {op.formatted_name: check_undefined(op, device, format) for op in ENTRIES}

    counts = table(rows)

    assert [name for name, row in rows.items() if row.outcome == "wrong"] == []
    assert counts["native"] >= 200


def test_the_law_holds_for_uncoalesced_tensors(device: str) -> None:
    rows = {op.formatted_name: check_entry(op, device, limit=2, twice=True) for op in ENTRIES}

    table(rows)

    assert [name for name, row in rows.items() if row.outcome == "wrong"] == []


@pytest.mark.parametrize(("split", "format"), [(0, "coo"), (1, "coo"), (0, "gccs")])
def test_gradients_reach_the_values_and_the_fill_for_every_entry(device: str, split: int, format: str) -> None:
    rows = {op.formatted_name: check_gradient(op, device, split, 2, format) for op in ENTRIES}

    counts = table(rows)

    assert [name for name, row in rows.items() if row.outcome == "wrong"] == []
    assert counts["native"] > COMPARED * sum(op.supports_autograd for op in DOUBLES)


def test_second_gradients_are_those_of_the_strided_tensor(device: str) -> None:
    rows = {op.formatted_name: check_second_gradient(op, device) for op in ENTRIES}

    counts = table(rows)

    assert [name for name, row in rows.items() if row.outcome == "wrong"] == []
    assert counts["native"] > COMPARED * sum(op.supports_gradgrad for op in DOUBLES)


def test_pointwise_ops_are_native_and_give_the_same_bits(device: str) -> None:
    ufuncs = [op for op in ENTRIES if isinstance(op, (UnaryUfuncInfo, BinaryUfuncInfo))]
    entries = [op for op in ufuncs if op.name not in JITERATOR]

    rows = {
        op.formatted_name: check_entry(op, device, limit=4, exact=op.formatted_name not in BY_PLACE) for op in entries
    }

    assert {name: row.note for name, row in rows.items() if row.outcome not in ("native", "skipped")} == {}
    assert len(rows) > 150
