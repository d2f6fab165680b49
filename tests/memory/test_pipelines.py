"""What a pipeline's stage runs is noted in order, with what it holds; a timetable puts the passes into slots."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from course_utils.memory import Chunk, timetable, watch_stage


def passes(order):
    """For example "F0 F1 B0 B1"."""
    return [Chunk({"F": "forward", "B": "backward"}[label[0]], int(label[1:])) for label in order.split()]


def one_f_one_b(stages, n):
    """The order of 1F1B on each stage, written down independently of PyTorch."""
    orders = []
    for stage in range(stages):
        ahead = min(n, stages - stage)
        order = [f"F{k}" for k in range(ahead)]
        for k in range(n):
            order += [f"B{k}"] + [f"F{k + ahead}"] * (k + ahead < n)
        orders.append(passes(" ".join(order)))
    return orders


def gpipe(stages, n):
    return [passes(" ".join([f"{kind}{k}" for kind in "FB" for k in range(n)])) for _ in range(stages)]


@pytest.mark.parametrize("order", [gpipe, one_f_one_b])
@pytest.mark.parametrize(("stages", "n"), [(1, 3), (2, 4), (3, 6)])
def test_both_schedules_take_as_many_slots_and_leave_as_many_idle(order, stages, n):
    table = timetable(order(stages, n))
    assert 1 + max(slot for ran in table for slot, *_ in ran) == 2 * (n + stages - 1)
    assert [len(ran) for ran in table] == [2 * n] * stages


def test_a_pass_waits_for_the_stage_beside():
    table = timetable([passes("F0 F1 B0 B1"), passes("F0 B0 F1 B1")])
    assert [[(slot, label) for slot, label, _ in ran] for ran in table] == [
        [(0, "F0"), (1, "F1"), (3, "B0"), (5, "B1")],
        [(1, "F0"), (2, "B0"), (3, "F1"), (4, "B1")],
    ]


def test_stages_that_wait_for_each_other_have_no_timetable():
    with pytest.raises(ValueError, match="wait for each other"):
        timetable([passes("B0 F0"), passes("F0 B0")])


@pytest.fixture
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(("kind", "held"), [(ScheduleGPipe, [1, 2, 3, 3, 2, 1]), (Schedule1F1B, [1] * 6)])
def test_the_passes_of_a_real_stage_are_noted_with_what_is_saved(one_rank, kind, held):
    stage = PipelineStage(nn.Linear(5, 1), 0, 1, torch.device("cpu"))
    schedule = kind(stage, 3, loss_fn=lambda scores, targets: scores.sum())
    with watch_stage(stage) as chunks:
        schedule.step(torch.ones(6, 5), target=torch.ones(6, 1))
    order = {ScheduleGPipe: gpipe, Schedule1F1B: one_f_one_b}[kind](1, 3)[0]
    assert [(chunk.kind, chunk.micro_batch) for chunk in chunks] == [(chunk.kind, chunk.micro_batch) for chunk in order]
    assert [chunk.saved / (2 * 5 * 4) for chunk in chunks] == held  # the inputs of so many micro-batches
    schedule.step(torch.ones(6, 5), target=torch.ones(6, 1))
    assert len(chunks) == 6, "nothing is noted after the block"
