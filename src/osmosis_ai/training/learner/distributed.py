"""Run one learner on several devices: each process holds the same adapter and computes its share of each step.

Every device holds the frozen base model, or a share of it if it does not fit (:func:`shard_frozen`).

Under `torchrun`, rank 0 samples, grades and calls the learner, and the other ranks follow its commands. Gradients are
summed, not averaged, because a loss already covers the whole step. Ranks synchronise only at the end of a step, so
a rank that runs out of memory can report it and all can retry. With a sharded model every layer synchronises, and a
failing rank ends all.

Control messages use TCP (gloo), which notices a lost peer immediately. NCCL does not, so gradients are exchanged
only after all ranks have reported that they are ready, and with a timeout.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# A follower waits while rank 0 samples and evaluates, which may take hours.
_PATIENCE = timedelta(days=1)
# All ranks begin an exchange of numbers within the time of a layer or two. NCCL ends a process that waits longer.
_EXCHANGE = timedelta(minutes=30)
_POLL_S = 0.05


def _meet(rank: int, size: int) -> dist.TCPStore:
    """Return the store through which the ranks find each other; rank 0 waits here until all are there."""
    port = os.environ["MASTER_PORT"]
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(port),
        size,
        is_master=rank == 0,
        timeout=_EXCHANGE,
        wait_for_workers=False,
    )
    store.set(f"rank-{rank}", "here")
    everybody = [f"rank-{each}" for each in range(size)]
    while rank == 0 and not store.check(everybody):
        if os.environ.get("MASTER_PORT") != port:
            raise RuntimeError("not all learner processes connected")
        time.sleep(_POLL_S)
    return store


@dataclass(frozen=True)
class World:
    """The processes that learn together; one by default. Rank 0 samples, saves and reports."""

    rank: int = 0
    size: int = 1
    talk: Any = field(default=None, repr=False)

    @classmethod
    def join(cls, device: torch.device) -> World:
        """Join the processes in the environment's variables, if any."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size <= 1:
            return cls()
        if not dist.is_initialized():
            backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
            if dist.is_torchelastic_launched():
                dist.init_process_group(backend, timeout=_EXCHANGE)
            else:
                rank = int(os.environ["RANK"])
                store = _meet(rank, size)
                dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_EXCHANGE)
        talk = dist.new_group(backend="gloo", timeout=_PATIENCE)
        return cls(rank=dist.get_rank(), size=dist.get_world_size(), talk=talk)

    def share(self, value: Any) -> Any:
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.talk, device=torch.device("cpu"))
        return box[0]

    def any(self, value: bool) -> bool:
        said = torch.tensor(float(value))
        if self.size > 1:
            dist.all_reduce(said, op=dist.ReduceOp.MAX, group=self.talk)
        return bool(said)

    def sum(self, values: Tensor) -> Tensor:
        if self.size > 1:
            dist.all_reduce(values, op=dist.ReduceOp.SUM)
        return values

    def max(self, values: Tensor) -> Tensor:
        if self.size > 1:
            dist.all_reduce(values, op=dist.ReduceOp.MAX)
        return values

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Replace every gradient by its sum over all ranks, in one exchange. A missing one counts as zero."""
        if self.size == 1:
            return
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
        flat = self.sum(torch.cat([gradient.flatten() for gradient in gradients]))
        pieces = flat.split([p.numel() for p in parameters])
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.grad = piece.view_as(parameter)

    def equalise(self, parameters: Sequence[Tensor]) -> None:
        if self.size == 1:
            return
        dist.barrier(group=self.talk)  # loading takes one longer than another
        for parameter in parameters:
            dist.broadcast(parameter.data, src=0)

    def leave(self) -> None:
        if self.size > 1 and dist.is_initialized():
            dist.barrier(group=self.talk)  # another rank may still read the last message
            dist.destroy_process_group()

    @staticmethod
    def drop() -> None:
        """Close the connections with lost peers, so that this process can join others."""
        if dist.is_initialized() and dist.get_backend() == dist.Backend.GLOO:
            dist.destroy_process_group()

    @staticmethod
    def is_joined() -> bool:
        return bool(dist.is_initialized())


def local_device(kind: str | None = None) -> torch.device:
    """Return this process's device: the GPU of its local rank where there is one, else the CPU."""
    kind = kind or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind != "cuda":
        return torch.device(kind)
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def shard_frozen(policy: Any, device: torch.device) -> None:
    """Shard the frozen matrices of ``policy`` over all ranks by layer, and move the rest to ``device``."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    adapter = {parameter for parameter in policy.parameters() if parameter.requires_grad}
    base = policy.get_base_model()
    kinds = set(base._no_split_modules or ())
    for module in list(base.modules()):
        if type(module).__name__ in kinds:
            fully_shard(module, mesh=mesh, ignored_params=adapter)
    # Including the parameters outside the layers: embeddings of real vocabularies are gigabytes.
    fully_shard(policy, mesh=mesh, ignored_params=adapter, reshard_after_forward=True)
    for parameter in adapter:
        parameter.data = parameter.data.to(device)
