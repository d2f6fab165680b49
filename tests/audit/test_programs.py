"""The auditor finds no error in any correct program, and says why where it asks instead."""

import pytest

from gradaudit import audit
from unusual_programs import PROGRAMS

_ELSEWHERE = "; no call from there ever reaches a step, which may be intended"
_DROPPED = "; whole windows were dropped without a step"
_A_LOOP = "nothing says that the loop around them goes over micro-batches"
_A_SUM = "so every update is {n} times too large, unless a sum is meant: "
QUESTIONS = {  # of programs that might be wrong: the rule that asks, and how its message ends
    "adversarial_examples": (
        "discarded-gradients", "; the next step never uses a call from there, which may be intended",
    ),
    "a_step_left_out_by_hand": ("discarded-gradients", f"{_DROPPED}, which may be intended"),
    "fisher_information_after_each_epoch": (
        "leftover-gradients", f"{_ELSEWHERE}{_DROPPED} before, which may be intended",
    ),
    "a_break_between_backward_and_step": ("leftover-gradients", f"{_DROPPED} before, which may be intended"),
    "a_window_that_a_resumed_run_goes_on_with": (
        "leftover-gradients", "; another optimizer began with gradients from elsewhere, perhaps with these",
    ),
    "the_norm_of_each_loss_before_their_sum": (
        "discarded-gradients", "; another call through the same forward pass reached a step",
    ),
    "a_line_search": (
        "stale-gradients",
        "had already used (no backward came between two steps); 24 of 36 updates do so; "
        "the weights had been put back, as in a line search",
    ),
    "momentum_that_is_kept_in_grad": (
        "stale-gradients",
        "had already used; 11 of 12 updates do so; the script changes them in between, as where they are kept as "
        "momentum",
    ),
    "weights_of_losses_whose_gradient_is_replaced": (
        "stale-gradients",
        "had already used; 11 of 12 updates do so; the script puts other gradients in their place before the step",
    ),
    "margins_that_are_kept": (
        "empty-step", "8 of 12 steps found no gradient other than zeros, as from a margin that is kept",
    ),
    "points_that_are_added_to_a_scene": (
        "empty-step", "3 of 20 steps found no gradient at all; none was lost, and such a step changes nothing",
    ),
    "a_half_weight": ("irregular-window", "; was a window of 2 intended?"),
    "a_second_loss_that_is_a_mean_of_means": (
        "token-weights",
        "6, 10, 16 samples or tokens count alike, so that one of them counts 1.8, 1.1, 0.67 times what it should",
    ),
    "answers_that_are_averaged_one_by_one": (
        "token-weights", "what it should, unless each mean is over one sample, such as an episode",
    ),
    "parts_of_a_network_on_one_batch": ("loss-scale", _A_SUM.format(n="3.0") + "their targets are the same"),
    "real_and_fake_in_a_loop": (
        "loss-scale", _A_SUM.format(n="2.0") + "their targets are labels, such as real and fake",
    ),
    "a_helper_that_calls_backward": (
        "loss-scale", _A_SUM.format(n="2.0") + "a helper is called for each from a line of its own",
    ),
    "losses_in_a_list": (
        "loss-scale", _A_SUM.format(n="2.0") + "all of them are computed before the first backward call",
    ),
    "a_loader_for_each_domain": ("loss-scale", _A_SUM.format(n="3.0") + "each is from a data set of its own"),
    "a_backward_call_for_each_step_of_a_sequence": (
        "loss-scale", _A_SUM.format(n="4.0") + "each goes back through the one before, as the steps of a sequence do",
    ),
    "episodes_whose_means_are_added_up": ("loss-scale", _A_SUM.format(n="5.0") + "each may be the mean of one episode"),
    "contrasts_with_the_stored_features_of_the_others": (
        "loss-scale",
        _A_SUM.format(n="3.0")
        + "each compares its own samples with others that have no graph, as those of the other micro-batches",
    ),
    "the_sum_over_tasks_of_meta_learning": (
        "loss-scale",
        _A_SUM.format(n="4.0") + "each goes back through an update of the weights, as the tasks of meta-learning do",
    ),
    "an_uncertainty_that_is_learned": (
        "loss-scale", "multiplied by 0.25; whether they add up to the mean over the window cannot be seen",
    ),
    "layers_that_are_skipped_at_random": (
        "loss-scale", "reach different parameters, as those of several tasks do, so nothing is said about the scale of "
        "the loss",
    ),
    "a_schedule_that_changes_nothing_in_every_micro_batch": (
        "scheduler-cadence", "12 times in 3 updates; it left the learning rate as it was",
    ),
    "schedules_whose_lengths_are_in_micro_batches": (
        "scheduler-cadence", "16 times in 4 updates; its length of 16 seems to be counted in the same way",
    ),
    "two_stages_with_a_scaler_each": ("scaler-timing", ", unless each is for a stage of the training"),
    "a_trunk_and_the_value_head_of_another_optimizer": (
        "foreign-gradients",
        "update 1 holds 1 backward call of the loss of Adam 2 in addition to its own; 12 of 12 updates do",
    ),
    "windows_over_the_end_of_a_data_set_that_is_reached_once": (
        "token-weights", "8, 6, 8 samples or tokens count alike, so that one of them counts 0.92, 1.2, 0.92 times what "
        "it should",
    ),
    "agents_that_share_a_policy": ("loss-scale", _A_SUM.format(n="3.0") + _A_LOOP),
    "workers_that_call_backward_themselves": ("loss-scale", _A_SUM.format(n="3.0") + _A_LOOP),
    "losses_of_several_scales": ("loss-scale", _A_SUM.format(n="3.0") + _A_LOOP),
    "steps_of_a_sequence_whose_state_is_detached": ("loss-scale", _A_SUM.format(n="4.0") + _A_LOOP),
    "one_episode_that_is_longer_in_a_single_loop": (
        "irregular-window",
        "; a step was left out, or an epoch ended without one: 5, 5, 5, 8, 5, 5, 5; a window may be an episode, or "
        "hold one loss more than others",
    ),
    "an_optimizer_that_counts_inside": (
        "stale-gradients",
        "had already used; 12 of 16 updates do so; the optimizer's step is the script's own, and may not use them each "
        "time",
    ),
    "an_optimizer_whose_step_divides": (
        "loss-scale",
        "the optimizer's step is the script's own, and may divide, so nothing is said about the scale of the loss",
    ),
    "an_optimizer_that_collects_clipped_gradients": (
        "discarded-gradients", "; the optimizer's class is the script's own, and may have kept them",
    ),
    "a_warm_up_of_ones_own_in_micro_batches": (
        "scheduler-cadence",
        "24 times in 6 updates; it follows a function of the script's own, which may count micro-batches",
    ),
    "weights_that_follow_a_change_that_is_learned": (
        "stale-gradients",
        "had already used; 10 of 11 updates do so; an optimizer uses the same calls, and these parameters may follow "
        "its own",
    ),
    "gradients_that_are_masked_to_zeros": (
        "empty-step", "12 of 12 steps found no gradient at all; the script puts them in itself, and these were zeros",
    ),
    "a_critic_whose_steps_have_not_begun": (
        "discarded-gradients", "; other optimizers made steps, and this one none, which may come later",
    ),
    "a_run_that_ends_before_its_last_step": (
        "leftover-gradients", "; the run ended before its step, and each of the others has one",
    ),
    "a_window_that_is_given_up_at_a_spike": (
        "discarded-gradients", "; this happened once, as where a loss is too large",
    ),
    "half_a_squared_error_in_windows_of_two": (
        "loss-scale",
        "every update is 1/2 of the mean over its window: the loss is divided by 2 twice, or has a weight",
    ),
    "a_head_with_a_loss_of_its_own": (
        "foreign-gradients",
        "update 1 holds 1 backward call of the loss of Adam in addition to its own; 12 of 12 updates do",
    ),
    "an_embedding_that_steps_before_the_hypernetworks_regularizer": (
        "foreign-gradients",
        "update 5 holds 1 backward call of the loss of Adam 2 in addition to its own; 8 of 12 updates do",
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROGRAMS)
def test_there_is_no_error_in_a_correct_program(name):
    with audit() as report:
        PROGRAMS[name].declare = report.declare_window
        PROGRAMS[name]()
    assert report.errors == []
    assert report.history.windows.total >= 3
    rule, words = QUESTIONS.get(name, ("", ""))
    said = [finding.message for finding in report.findings if finding.rule == rule]
    assert bool(said) == bool(words)
    for message in said:
        assert message.endswith(words)
        assert message.count("; ") == words.count("; ")
