"""Collectives are counted by kind and by bytes, whoever calls them."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_utils.collectives import count_collectives, held_gradients
from course_utils.ranks import Ranks


def everything():
    mine, gathered = torch.ones(6), torch.empty(12)
    with count_collectives() as sent:
        dist.all_reduce(mine)
        dist.all_gather(list(gathered.split(6)), mine)
        dist.broadcast(mine, src=0)
        dist.barrier()
        if dist.get_rank():
            dist.send(mine, dst=0)
        else:
            dist.recv(mine, src=1)
    dist.all_reduce(mine)  # after the block
    return sent


def data_parallel():
    model = DistributedDataParallel(nn.Linear(3, 2))
    with count_collectives() as sent:
        model(torch.ones(1, 3)).sum().backward()
        with model.no_sync():
            model(torch.ones(1, 3)).sum().backward()
    return sent


def sharded(hold, low_precision=False):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = nn.Sequential(nn.Linear(4, 2, bias=False))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if low_precision else MixedPrecisionPolicy()
    fully_shard(model, mp_policy=policy)
    other = nn.Linear(4, 2)
    other(torch.ones(1, 4)).sum().backward()
    model.set_requires_gradient_sync(not hold)
    with count_collectives() as sent:
        model(torch.ones(1, 4)).sum().backward()
    return sent, [(tuple(gradient.shape), gradient.dtype) for gradient in held_gradients(model)]


def test_every_engine_is_counted_on_two_ranks():
    with Ranks(2) as two:
        first, second = two.run(everything)
        shared = {"all-reduce": 1, "all-gather": 1, "broadcast": 1, "barrier": 1}
        assert first == shared | {"recv": 1}
        assert second == shared | {"send": 1}
        assert second.bytes["all-reduce"] == second.bytes["send"] == 6 * 4
        assert second.bytes["all-gather"] == 12 * 4
        assert second["all-to-all"] == 0

        assert [sent["all-reduce"] for sent in two.run(data_parallel)] == [1, 1]

        for sent, held in two.run(sharded, False):  # the root stays gathered until its backward pass
            assert sent == {"all-gather": 1, "reduce-scatter": 1}
            assert sent.bytes == {"all-gather": 8 * 4, "reduce-scatter": 8 * 4}
            assert held == [((1, 4), torch.float32)]
        for sent, held in two.run(sharded, True):
            assert sent == {"all-gather": 1}
            assert held == [((2, 4), torch.float32)]
        for sent, held in two.run(sharded, True, True):  # moved to the dtype of the reduction
            assert sent.bytes == {"all-gather": 8 * 2}
            assert held == [((2, 4), torch.float32)]


def test_a_model_that_is_not_sharded_holds_what_is_in_grad():
    layer = nn.Linear(3, 2)
    assert held_gradients(layer) == []
    layer(torch.ones(1, 3)).sum().backward()
    assert list(map(id, held_gradients(layer))) == [id(p.grad) for p in layer.parameters()]
