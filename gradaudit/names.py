"""What a parameter is called in the user's model. That takes a search, to be made when a finding needs it."""

from collections.abc import Iterable

from torch import Tensor, nn

from gradaudit.observe.gradients import living

_WRAPPERS = ("torch.nn.parallel", "torch.distributed", "torch._dynamo")  # whose own names lie around the model's


def name_of(parameter: int) -> str:
    """The name of the living parameter with this id, such as "Linear.weight (2, 3)", or "" if no module holds it.

    Args:
        parameter: Its `id()`.

    Example:
        >>> model = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
        >>> name_of(id(model[0].weight))
        'Sequential.0.weight (2, 3)'
    """
    return names_of([parameter]).get(parameter, "")


def names_of(parameters: Iterable[int]) -> dict[int, str]:
    """The names of several living parameters, by their ids, from one search. Those that no module holds are left out.

    A parameter that several modules hold has the name that the outermost gives it.
    """
    wanted, names = set(parameters), {}
    modules = [m for m in living(nn.Module) if "_modules" in vars(m) and not type(m).__module__.startswith(_WRAPPERS)]
    inner = {id(child) for module in modules for child in module._modules.values()}
    for module in sorted(modules, key=lambda module: id(module) in inner):  # the outermost first
        for name, p in _own_parameters(module) if id(module) in inner else module.named_parameters():
            if id(p) in wanted:
                names.setdefault(id(p), f"{type(module).__name__}.{name} {tuple(p.shape)}")
    return names


def _own_parameters(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [(name, p) for name, p in module._parameters.items() if p is not None]
