"""What is computed is counted, in a backward pass too."""

import torch
from torch import nn

from course_utils.recording import count_work


def test_a_product_of_matrices_counts_two_operations_for_each_pair():
    a, b = torch.ones(3, 4), torch.ones(4, 5)
    with count_work() as work:
        a @ b
    assert (work.flops, work.calls) == (2 * 3 * 4 * 5, 1)


def test_a_convolution_counts_two_operations_for_each_multiplication():
    x, kernels = torch.ones(3, 4, 10), torch.ones(5, 4, 3)
    with count_work() as work:
        nn.functional.conv1d(x, kernels)
    assert (work.flops, work.calls) == (2 * 3 * 5 * 8 * 4 * 3, 1)


def test_views_are_no_calls():
    a = torch.ones(3, 4)
    with count_work() as work:
        a.t().unsqueeze(0)[0]
    assert (work.flops, work.calls) == (0, 0)


def test_a_backward_pass_counts_too():
    layer, x = nn.Linear(4, 5, bias=False), torch.ones(3, 4)
    with count_work() as forward:
        loss = layer(x).sum()
    with count_work() as backward:
        loss.backward()
    assert forward.flops == backward.flops == 2 * 3 * 4 * 5  # x needs no gradient
    assert backward.calls > 0


def test_a_large_batch_and_its_pieces_are_the_same_products_in_fewer_calls():
    layer, x = nn.Linear(4, 5, bias=False), torch.ones(8, 4)
    found = {}
    for pieces in (1, 4):
        with count_work() as found[pieces]:
            for piece in x.chunk(pieces):
                layer(piece).sum().backward()
    assert found[1].flops == found[4].flops
    assert found[1].calls < found[4].calls


def test_counting_ends_with_the_block_and_prints_nothing(capsys):
    with count_work() as work:
        assert (work.flops, work.calls) == (0, 0)
    torch.ones(3, 3) @ torch.ones(3, 3)
    assert (work.flops, work.calls) == (0, 0)
    assert capsys.readouterr().out == ""
