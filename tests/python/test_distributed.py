"""Two processes of torch.distributed (gloo): the gradients of one process, or a sentence on every rank."""

from __future__ import annotations

import dataclasses
import datetime
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import lacewing
from lacewing.conv import (
    ConvUnit,
    InverseConv,
    SparseConv,
    SubmanifoldConv,
    SyncVoxelBatchNorm,
    VoxelBatchNorm,
    VoxelTensor,
    convert_sync_batchnorm,
)

RANKS = 2
SECONDS = 60

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="torch has no gloo here"
)


def cloud(rank: int) -> VoxelTensor:
    """Clouds of one size, so that the mean over ranks is the mean over clouds."""
    generator = torch.Generator().manual_seed(rank)
    cells = torch.randperm(6**3, generator=generator)[:40]
    coordinates = torch.stack([cells * 0, cells // 36, cells // 6 % 6, cells % 6], 1).int()
    return VoxelTensor(torch.randn(40, 4, generator=generator), coordinates)


class Network(nn.Module):
    """Down and up again, so that plans are found on the way back."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.enter = ConvUnit(SubmanifoldConv(4, 8, 3))
        self.down = SparseConv(8, 8, 2, stride=2)
        self.up = InverseConv(8, 8, 2, stride=2)
        self.leave = SubmanifoldConv(8, 2, 3)

    def forward(self, x: VoxelTensor) -> VoxelTensor:
        entered = self.enter(x)
        return self.leave(self.up(self.down(entered)) + entered)


def gradients_of_one_process() -> dict[str, Tensor]:
    network = Network()
    for rank in range(RANKS):
        (network(cloud(rank)).features.square().sum() / RANKS).backward()
    return {name: parameter.grad for name, parameter in network.named_parameters()}


def assert_gradients(network: nn.Module) -> None:
    wanted = gradients_of_one_process()
    for name, parameter in network.named_parameters():
        gradient = parameter.grad.full_tensor() if hasattr(parameter.grad, "full_tensor") else parameter.grad
        torch.testing.assert_close(gradient, wanted[name.removeprefix("module.")])


def ddp_of_layers(rank: int) -> None:
    network = nn.parallel.DistributedDataParallel(Network())
    network(cloud(rank)).features.square().sum().backward()
    assert_gradients(network)


def fsdp_of_layers(rank: int, nested: bool) -> None:
    from torch.distributed.fsdp import fully_shard

    network = Network()
    for layer in network.children() if nested else ():
        fully_shard(layer)
    fully_shard(network)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    before = [p.full_tensor().clone() for p in network.parameters()]
    network(cloud(rank)).features.square().sum().backward()
    assert_gradients(network)
    optimizer.step()
    assert all(not torch.equal(b, p.full_tensor()) for b, p in zip(before, network.parameters(), strict=True))


def normed() -> ConvUnit:
    torch.manual_seed(0)
    return ConvUnit(SubmanifoldConv(4, 8, 3), VoxelBatchNorm(8))


def both_clouds() -> VoxelTensor:
    clouds = [cloud(rank) for rank in range(RANKS)]
    coordinates = torch.cat([c.coordinates + torch.tensor([r, 0, 0, 0]).int() for r, c in enumerate(clouds)])
    return VoxelTensor(torch.cat([c.features for c in clouds]), coordinates)


def sync_batch_norm(rank: int) -> None:
    """Values, gradients and running statistics of one process on all clouds."""
    unit, alone = convert_sync_batchnorm(normed()), normed()
    assert isinstance(unit.norm, SyncVoxelBatchNorm)
    wanted, found = alone(both_clouds()).features, unit(cloud(rank)).features
    torch.testing.assert_close(found, wanted[40 * rank : 40 * (rank + 1)])

    for module, features in ((alone, wanted), (unit, found)):
        (module.gradient,) = torch.autograd.grad(features.square().sum(), module.conv.weight)
    dist.all_reduce(unit.gradient)
    torch.testing.assert_close(unit.gradient, alone.gradient, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(unit.norm.running_mean, alone.norm.running_mean)
    torch.testing.assert_close(unit.norm.running_var, alone.norm.running_var)
    assert unit.norm.num_batches_tracked == 1
    torch.testing.assert_close(unit.eval()(cloud(rank)).features, alone.eval()(cloud(rank)).features)


def sync_batch_norm_without_voxels(rank: int) -> None:
    """A rank without voxels takes part."""
    norm = SyncVoxelBatchNorm(4)
    x = cloud(0) if rank == 0 else cloud(0).prune(torch.zeros(40, dtype=torch.bool))
    found = norm(x).features
    wanted = VoxelBatchNorm(4)(cloud(0)).features
    torch.testing.assert_close(found, wanted if rank == 0 else wanted[:0])


class Matrix(nn.Module):
    """A sparse matrix of learnable values, made in every call."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.arange(4.0))
        self.register_buffer("indices", torch.tensor([[0, 1, 2, 2], [2, 1, 0, 3]]))

    def forward(self, x: Tensor) -> Tensor:
        return lacewing.sparse_coo_tensor(self.indices, self.values, (4, 4)) @ x


def ddp_of_values(rank: int) -> None:
    matrix = nn.parallel.DistributedDataParallel(Matrix())
    matrix(torch.full((4,), rank + 1.0)).sum().backward()
    assert torch.equal(matrix.module.values.grad, torch.full((4,), 1.5))


def fsdp_of_values(rank: int) -> None:
    from torch.distributed.fsdp import fully_shard

    matrix = fully_shard(Matrix())
    matrix(torch.full((4,), rank + 1.0)).sum().backward()
    assert torch.equal(matrix.values.grad.full_tensor(), torch.full((4,), 1.5))


def objects(rank: int) -> None:
    found: list[Any] = [None] * RANKS
    dist.all_gather_object(found, lacewing.eye(2 + rank))
    assert [f.shape for f in found] == [(2, 2), (3, 3)]


def ddp_with_a_sparse_buffer(rank: int) -> None:
    module = nn.Linear(3, 3)
    module.register_buffer("matrix", lacewing.eye(3))
    nn.parallel.DistributedDataParallel(module)


def all_reduce(rank: int) -> None:
    dist.all_reduce(lacewing.eye(3))


def distribute_tensor(rank: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    distribute_tensor(lacewing.eye(4), init_device_mesh("cpu", (RANKS,)), [Shard(0)])


WORKS: dict[str, Callable[[int], None]] = {
    "DDP of layers": ddp_of_layers,
    "FSDP of layers": lambda rank: fsdp_of_layers(rank, nested=False),
    "nested FSDP of layers": lambda rank: fsdp_of_layers(rank, nested=True),
    "DDP of values": ddp_of_values,
    "FSDP of values": fsdp_of_values,
    "objects": objects,
    "SyncVoxelBatchNorm": sync_batch_norm,
    "SyncVoxelBatchNorm without voxels": sync_batch_norm_without_voxels,
}
REFUSED: dict[str, tuple[Callable[[int], None], str]] = {
    "a sparse buffer under DDP": (ddp_with_a_sparse_buffer, "register values() and indices() as buffers"),
    "one voxel": (
        lambda rank: SyncVoxelBatchNorm(4)(cloud(0).prune(torch.arange(40) == 0 if rank == 0 else torch.zeros(40) > 0)),
        "training needs more than one voxel on all ranks together, not 1",
    ),
    "all_reduce": (all_reduce, "does not reach a sparse tensor: give it the tensor's values()"),
    "distribute_tensor": (distribute_tensor, "does not reach a sparse tensor: give it the tensor's values()"),
}


def work(rank: int, folder: str) -> None:
    """Runs all of them; what each came to lies in a file of the rank."""
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=SECONDS / 2)
    store = dist.FileStore(f"{folder}/store", RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=timeout)
    outcomes = {}
    for name, run in (WORKS | {name: run for name, (run, _) in REFUSED.items()}).items():
        try:
            run(rank)
            outcomes[name] = "works"
        except Exception:
            outcomes[name] = traceback.format_exc()
        dist.barrier()
    torch.save(outcomes, f"{folder}/{rank}")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """Of each rank."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    context = torch.multiprocessing.get_context("spawn")
    processes = [context.Process(target=work, args=(rank, str(folder))) for rank in range(RANKS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(SECONDS)
    late = [process for process in processes if process.is_alive()]
    for process in late:
        process.kill()
    assert not late, "a rank waits for ever"
    assert [process.exitcode for process in processes] == [0] * RANKS
    return [torch.load(folder / str(rank)) for rank in range(RANKS)]


@pytest.mark.parametrize("name", WORKS)
def test_it_gives_what_one_process_gives(outcomes: list[dict[str, str]], name: str) -> None:
    for outcome in outcomes:
        assert outcome[name] == "works", outcome[name]


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_on_every_rank(outcomes: list[dict[str, str]], name: str) -> None:
    for outcome in outcomes:
        assert REFUSED[name][1] in outcome[name]


def test_voxels_are_rebuilt_with_what_they_have_from_before() -> None:
    """As FSDP2 does it: dataclasses.replace with other features."""
    x = cloud(0)
    down = SparseConv(4, 4, 2, stride=2)(x)
    assert down.batch_size == 1

    again = dataclasses.replace(down, features=down.features * 2)

    assert again.coordinates is down.coordinates
    assert again.batch_size == down.batch_size
    assert again.stride == down.stride
    up = InverseConv(4, 4, 2, stride=2)(again)
    assert up.coordinates is x.coordinates
    assert torch.equal(again.features, down.features * 2)
