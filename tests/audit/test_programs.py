"""The auditor finds no error in any correct program, and what it asks about is listed."""

import pytest

from gradaudit import audit
from unusual_programs import PROGRAMS

QUESTIONS = {  # by rule, the programs that might be wrong
    "clip-timing": [
        "an_auxiliary_gradient_is_clipped_by_itself",
    ],
    "discarded-gradients": [
        "a_break_between_backward_and_step",
        "a_critic_whose_steps_have_not_begun",
        "a_memory_that_is_compared_with_later",
        "a_step_left_out_by_hand",
        "a_window_that_is_given_up_at_a_spike",
        "adversarial_examples",
        "an_attack_that_saturates",
        "an_optimizer_that_collects_clipped_gradients",
        "fisher_information_after_each_epoch",
        "the_norm_of_each_loss_before_their_sum",
        "two_gradients_whose_sum_is_put_into_data",
    ],
    "empty-step": [
        "gradients_that_are_masked_to_zeros",
        "margins_that_are_kept",
    ],
    "foreign-gradients": [
        "a_head_with_a_loss_of_its_own",
        "a_trunk_and_the_value_head_of_another_optimizer",
        "an_embedding_that_steps_before_the_hypernetworks_regularizer",
    ],
    "irregular-window": [
        "episodes_of_any_length",
        "one_episode_that_is_longer",
        "one_episode_that_is_longer_in_a_single_loop",
        "restarts_of_any_number_in_an_update",
        "temporal_differences_in_episodes_of_any_length",
    ],
    "leftover-gradients": [
        "a_break_between_backward_and_step",
        "a_critic_whose_steps_have_not_begun",
        "a_run_that_ends_before_its_last_step",
        "a_window_that_a_resumed_run_goes_on_with",
        "first_order_meta_learning",
        "fisher_information_after_each_epoch",
        "signs_of_a_copys_gradients",
        "the_gradient_is_measured_at_the_end_by_the_same_helper",
    ],
    "loss-scale": [
        "a_backward_call_for_each_step_of_a_sequence",
        "a_helper_that_calls_backward",
        "a_loader_for_each_domain",
        "a_micro_batch_is_left_out_and_its_share_with_it",
        "a_server_whose_clients_train_the_last_layers",
        "a_slow_part_beside_a_fast_one",
        "agents_that_share_a_policy",
        "an_optimizer_whose_step_divides",
        "contrasts_with_the_stored_features_of_the_others",
        "episodes_whose_means_are_added_up",
        "gradients_averaged_through_data",
        "half_a_squared_error_in_windows_of_two",
        "hooks_that_divide",
        "losses_in_a_list",
        "losses_of_several_scales",
        "one_episode_that_is_longer",
        "one_episode_that_is_longer_in_a_single_loop",
        "parts_of_a_network_on_one_batch",
        "real_and_fake_in_a_loop",
        "restarts_of_any_number_in_an_update",
        "steps_of_a_sequence_whose_state_is_detached",
        "temporal_differences_in_episodes_of_any_length",
        "the_sum_over_tasks_of_meta_learning",
        "weights_that_follow_a_change_that_is_learned",
        "workers_that_call_backward_themselves",
    ],
    "orphan-parameters": [
        "every_optimizer_steps_beside_a_loss_network",
        "every_optimizer_steps_whichever_task_it_is",
    ],
    "scaler-timing": [
        "two_stages_with_a_scaler_each",
    ],
    "scheduler-cadence": [
        "a_schedule_of_ones_own_whose_length_is_in_micro_batches",
        "a_schedule_that_changes_nothing_in_every_micro_batch",
        "a_warm_up_of_ones_own_in_micro_batches",
        "schedules_whose_lengths_are_in_micro_batches",
    ],
    "stale-gradients": [
        "a_line_search",
        "an_optimizer_that_counts_inside",
        "momentum_that_is_kept_in_grad",
        "momentum_that_is_kept_in_grad_and_clipped",
        "weights_of_losses_whose_gradient_is_replaced",
        "weights_that_follow_a_change_that_is_learned",
    ],
    "token-weights": [
        "answers_that_are_averaged_one_by_one",
        "episodes_whose_means_are_added_up",
        "losses_in_a_list",
        "losses_of_several_scales",
        "the_pairs_of_lists_of_any_length",
    ],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROGRAMS)
def test_there_is_no_error_in_a_correct_program(name):
    with audit() as report:
        PROGRAMS[name].declare = report.declare_window
        PROGRAMS[name]()
    assert report.errors == []
    assert report.history.updates_made >= 2
    asked = {finding.rule for finding in report.findings if finding.level == "undecided"}
    assert asked == {rule for rule, names in QUESTIONS.items() if name in names}
