"""The models: a tally whose gradient can be read, a small perceptron and a small transformer."""

import pytest
import torch

from course_utils import Tally, mlp, saved_bytes, shares_of
from course_utils.models import Transformer


def test_the_gradient_of_a_tally_is_the_weight_of_each_sample():
    tally = Tally(5)
    tally(torch.tensor([0, 1])).mean().backward()
    (tally(torch.tensor([3, 1, 1, 3])).mean() * 2).backward()
    assert tally.weight.grad.tolist() == [0.5, 1.5, 0, 1, 0]


def modulo(model, batches, loss_fn, optimizer, n):
    for i, batch in enumerate(batches):
        (loss_fn(model, batch) / n).backward()
        if (i + 1) % n == 0:
            optimizer.step()
            optimizer.zero_grad()


def test_shares_are_read_before_each_step_and_what_is_left_at_the_end():
    first, second = [0.5, 0.5, 0.0], [0.5, 0.5, 0.5]  # the second epoch's window holds the leftover of the first
    assert shares_of(modulo, 3, n=2, epochs=2) == ([first, second], [0.0, 0.0, 0.5])


def test_a_step_without_a_gradient_has_a_row_of_zeros_and_nothing_left_is_an_empty_list():
    def only_steps(model, batches, loss_fn, optimizer, n):
        optimizer.step()

    def zeroes_in_place(model, batches, loss_fn, optimizer, n):
        modulo(model, batches, loss_fn, optimizer, n)
        optimizer.zero_grad(set_to_none=False)

    assert shares_of(only_steps, 2, n=1) == ([[0.0, 0.0]], [])
    assert shares_of(zeroes_in_place, 3, n=2) == ([[0.5, 0.5, 0.0]], [])
    assert shares_of(modulo, 3, n=4) == ([], [0.25, 0.25, 0.25])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_models_have_the_default_dtype(dtype):
    torch.set_default_dtype(dtype)
    assert {p.dtype for model in (mlp(3, 2), Tally(3), Transformer(5, width=4)) for p in model.parameters()} == {dtype}


def gradients(model, batch):
    model.zero_grad()
    model(batch).square().sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def some_letters(sequences=3, length=7):
    return torch.randint(27, (sequences, length), generator=torch.Generator().manual_seed(0))


def test_a_transformer_looks_back_only_and_sees_every_earlier_letter_and_its_position():
    model, letters = Transformer(27, width=8, blocks=2), some_letters()
    for index in range(6):
        other = letters.clone()
        other[:, index] = (other[:, index] + 1) % 27
        changed = ~torch.isclose(model(letters), model(other), rtol=1e-7, atol=0)
        assert not changed[:, :index].any()
        assert changed[:, 6].all(), index
    same = torch.full((1, 4), 3)
    assert not torch.isclose(model(same)[0, 1:], model(same)[0, :-1]).any()


def test_a_checkpointed_transformer_has_the_same_gradients_and_saves_less():
    torch.set_default_dtype(torch.float64)
    model, letters = Transformer(27, width=8, blocks=3), some_letters()
    with saved_bytes(model) as plain:
        kept = gradients(model, letters)
    model.checkpointed = True
    with saved_bytes(model) as checkpointed:
        again = gradients(model, letters)
    assert torch.allclose(kept, again, rtol=1e-12, atol=1e-14)
    assert checkpointed.peak < plain.peak / 2
