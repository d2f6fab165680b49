"""Answers to "walk_back": an autograd's way back from the result to the leaves, over values in order."""

from collections import defaultdict

from answers import right, wrong


def pass_back(order):
    order[-1].grad = 1.0
    for value in reversed(order):
        for source, slope in value.inputs:
            source.grad += slope * value.grad


@right("walk_back")
def clears_the_middle_first(order):
    for value in order:
        if value.inputs:
            value.grad = 0.0
    pass_back(order)


@right("walk_back")
def clears_each_value_of_the_middle_when_it_has_passed_on(order):
    order[-1].grad = 1.0
    for value in reversed(order):
        for source, slope in value.inputs:
            source.grad += slope * value.grad
        if value.inputs:
            value.grad = 0.0


@right("walk_back")
def has_a_buffer_for_this_call(order):
    arrived = defaultdict(float, {order[-1]: 1.0})
    for value in reversed(order):
        for source, slope in value.inputs:
            arrived[source] += slope * arrived[value]
        if not value.inputs:
            value.grad += arrived[value]


@right("walk_back")
def clears_all_and_puts_back_what_the_leaves_held(order):
    held = {value: value.grad for value in order if not value.inputs}
    for value in order:
        value.grad = 0.0
    pass_back(order)
    for value, old in held.items():
        value.grad += old


@right("walk_back")
def goes_by_index(order):
    for value in order:
        value.grad *= not value.inputs
    order[-1].grad = 1.0
    for place in range(len(order) - 1, -1, -1):
        for source, slope in order[place].inputs:
            source.grad = source.grad + slope * order[place].grad


wrong("walk_back", "keeps-the-middle", "karpathy/micrograd#53", "karpathy/micrograd!102")(pass_back)


@wrong("walk_back", "clears-the-leaves", "karpathy/micrograd!54")
def clears_everything_first(order):
    for value in order:
        value.grad = 0.0
    pass_back(order)


@wrong("walk_back", "assigns")
def assigns(order):
    for value in order:
        if value.inputs:
            value.grad = 0.0
    order[-1].grad = 1.0
    for value in reversed(order):
        for source, slope in value.inputs:
            source.grad = slope * value.grad


@wrong("walk_back", "wrong-order")
def goes_forwards(order):
    for value in order:
        if value.inputs:
            value.grad = 0.0
    order[-1].grad = 1.0
    for value in order:
        for source, slope in value.inputs:
            source.grad += slope * value.grad


@wrong("walk_back", "keeps-the-middle")
def clears_only_the_result(order):
    order[-1].grad = 0.0
    pass_back(order)


@wrong("walk_back", "changed-input")
def forgets_where_values_came_from(order):
    has = list(order)
    clears_the_middle_first(has)
    for value in order:
        value.inputs = ()


@wrong("walk_back", "wrong-value")
def forgets_to_begin_at_one(order):
    for value in order[:-1]:
        if value.inputs:
            value.grad = 0.0
    order[-1].grad = 2.0
    for value in reversed(order):
        for source, slope in value.inputs:
            source.grad += slope * value.grad


@wrong("walk_back", "not-attempted")
def only_reads(order):
    return [value.grad for value in order]


@wrong("walk_back", "does-nothing")
def works_only_where_something_is_held(order):
    if any(value.grad for value in order):
        clears_the_middle_first(order)


@wrong("walk_back", "raises")
def mistypes(order):
    order[-1].gard += 1.0
