"""What a stage of a pipeline runs, in which order, and what it holds for backward passes meanwhile."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from course_utils.memory.saved import saved_bytes

if TYPE_CHECKING:
    from torch.distributed.pipelining import PipelineStage


@dataclass
class Chunk:
    """One micro-batch's forward or backward pass through one stage."""

    kind: str  # "forward" or "backward"
    micro_batch: int
    saved: int = 0  # the most bytes, the loss's included, that lay saved for backward passes until the next pass began


@contextmanager
def watch_stage(stage: "PipelineStage") -> Iterator[list[Chunk]]:
    """Notes each forward and backward pass that a schedule runs through this rank's stage, in the order of the run.

    Args:
        stage: Of `torch.distributed.pipelining`, with a schedule such as `ScheduleGPipe` or `Schedule1F1B`. What its
            first call runs to learn the shapes is not noted.

    Example:
        >>> import torch
        >>> import torch.distributed as dist
        >>> from torch.distributed.pipelining import PipelineStage, Schedule1F1B
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> stage = PipelineStage(torch.nn.Linear(5, 1), 0, 1, torch.device("cpu"))
        >>> schedule = Schedule1F1B(stage, 2, loss_fn=lambda scores, targets: scores.sum())
        >>> with watch_stage(stage) as chunks:
        ...     _ = schedule.step(torch.zeros(6, 5), target=torch.zeros(6, 1))
        >>> [(chunk.kind, chunk.micro_batch) for chunk in chunks]
        [('forward', 0), ('backward', 0), ('forward', 1), ('backward', 1)]
        >>> chunks[0].saved                     # the input of a micro-batch: 3 x 5 numbers of 4 bytes
        60
        >>> dist.destroy_process_group()
    """
    chunks: list[Chunk] = []
    with saved_bytes(stage.submod) as saved:

        def end() -> None:
            if chunks:
                chunks[-1].saved = saved.peak
            saved.peak = saved.now

        def noted(kind: str, original):
            def run(micro_batch: int, *args, **kwargs):
                end()
                chunks.append(Chunk(kind, micro_batch))
                return original(micro_batch, *args, **kwargs)

            return run

        stage.forward_one_chunk = noted("forward", stage.forward_one_chunk)
        stage.backward_one_chunk = noted("backward", stage.backward_one_chunk)
        try:
            yield chunks
        finally:
            end()
            del stage.forward_one_chunk, stage.backward_one_chunk


def timetable(stages: Sequence[Sequence[Chunk]]) -> list[list[tuple[int, str, int]]]:
    """When each pass can run at the earliest, if every pass takes one slot and sending takes no time.

    A forward pass needs that of the stage before, and a backward pass that of the stage after. A stage keeps its order.

    Args:
        stages: For each stage, its passes in the order in which they ran.

    Returns:
        For each stage and each of its passes: the slot, from 0 on, a label such as "F0" or "B0", and the bytes saved.

    Raises:
        ValueError: If stages wait for each other.

    Example:
        >>> both = [Chunk("forward", 0), Chunk("backward", 0)]
        >>> timetable([both, both])
        [[(0, 'F0', 0), (3, 'B0', 0)], [(1, 'F0', 0), (2, 'B0', 0)]]
    """
    ends: dict[tuple[int, str, int], int] = {}
    table: list[list[tuple[int, str, int]]] = [[] for _ in stages]
    while len(ends) < sum(map(len, stages)):
        before = len(ends)
        for place, chunks in enumerate(stages):
            for chunk in chunks[len(table[place]) :]:
                beside = place - 1 if chunk.kind == "forward" else place + 1
                needs = (beside, chunk.kind, chunk.micro_batch)
                if 0 <= beside < len(stages) and needs not in ends:
                    break
                slot = max(ends.get(needs, 0), table[place][-1][0] + 1 if table[place] else 0)
                table[place].append((slot, f"{chunk.kind[0].upper()}{chunk.micro_batch}", chunk.saved))
                ends[place, chunk.kind, chunk.micro_batch] = slot + 1
        if len(ends) == before:
            raise ValueError("these stages wait for each other: is a pass missing, or in another place?")
    return table
