//! What every store must do, as tests: one body per contract, run against each implementation.
//!
//! [`suite!`] makes a test of each contract for one implementation. Every contract gets a store
//! of its own; after it, [`invariants::check`] looks whether what it left behind is whole. The
//! contracts say what the doc comments of [`matins_core::store`] say; what is not said there must
//! not be asked here.

pub mod accept;
pub mod acts;
pub mod claim;
pub mod end;
pub mod invariants;
pub mod lab;
pub mod model;
pub mod outbox;
pub mod records;
pub mod timetables;
pub mod upkeep;
pub mod workers;

use std::sync::Arc;

use matins_core::store::Store;

use lab::Lab;

/// What a store stands on and outlives it: a directory, a database.
pub trait Ground: 'static {
    /// Looks at what the store holds in ways of its own, and panics when it is not whole.
    fn inspect(&self) -> impl Future<Output = ()>;

    /// Further handles to the same store, as other processes have them.
    fn doors(&self) -> Vec<Arc<dyn Store>> {
        Vec::new()
    }
}

/// Nothing.
impl Ground for () {
    async fn inspect(&self) {}
}

/// Holds a store to one contract.
pub async fn hold<F, G: Ground>(
    contract: impl FnOnce(Lab) -> F,
    (store, ground): (Arc<dyn Store>, G),
) where
    F: Future<Output = ()>,
{
    contract(Lab::new(store.clone()).await).await;
    invariants::check(&*store, lab::at(1_000_000)).await;
    ground.inspect().await;
    store.close().await.expect("close");
}

/// A test of each contract. The argument names an `async fn() -> (Arc<dyn Store>, impl Ground)`
/// beside the call that opens a new, empty store.
#[macro_export]
macro_rules! suite {
    ($open:ident) => {
        $crate::suite! {
            @ $open
            accept: [
                an_accepted_task_is_all_that_was_asked_for,
                payloads_come_back_byte_for_byte,
                answers_come_in_the_order_of_the_batch,
                an_empty_batch_is_nothing,
                a_pending_or_running_key_answers_its_holder,
                a_completed_key_answers_with_its_result_and_never_runs_again,
                a_waiting_retry_keeps_its_key,
                a_failed_cancelled_or_expired_task_lets_go_of_its_key,
                a_key_is_unique_within_its_type_only,
                keys_are_compared_byte_by_byte,
                tasks_without_a_key_never_meet,
                duplicates_inside_a_batch_meet_the_first,
                a_duplicate_in_a_large_batch_affects_itself_alone,
                reject_names_the_holder_of_a_taken_key,
                replace_gives_a_pending_holder_the_new_payload_and_times,
                replace_can_make_a_waiting_task_due,
                replace_is_refused_once_the_holder_runs,
                the_same_id_again_is_the_same_request,
                of_many_enqueues_with_one_key_at_once_one_creates,
                acceptance_asks_neither_for_a_thaw_nor_for_a_worker,
            ],
            claim: [
                a_claim_starts_an_attempt,
                what_was_due_first_goes_first,
                equals_go_in_the_order_they_were_accepted,
                a_step_of_priority_is_worth_a_minute,
                nothing_is_handed_out_before_it_is_due,
                the_answer_says_when_to_ask_again,
                no_more_than_asked_for,
                fences_grow_over_all_claims,
                of_many_claims_at_once_each_task_goes_to_one,
                a_pool_is_claimed_by_itself,
                any_pool_means_all_in_one_line,
                only_types_that_the_worker_runs,
                a_backlog_of_another_type_hides_nothing,
                named_tasks_only_when_asked_by_name,
                a_paused_pool_waits_and_others_do_not,
                a_frozen_store_hands_out_nothing,
                what_has_expired_is_cancelled_instead_of_run,
                expired_tasks_use_up_no_place_in_the_batch,
                a_running_task_does_not_expire,
                a_worker_without_a_standing_lease_gets_nothing,
                a_claim_with_its_own_lease_needs_no_entry,
                a_type_runs_no_more_than_its_concurrency,
                a_raised_concurrency_lets_more_run,
                a_type_starts_no_faster_than_its_rate,
                what_is_not_started_uses_up_no_rate,
                one_task_of_a_concurrency_key_runs_at_a_time,
                per_key_many_of_a_concurrency_key_run,
                a_cancelled_waiter_of_a_key_makes_way,
                a_task_of_a_key_in_a_paused_pool_hinders_nobody,
                concurrency_keys_take_turns,
                a_key_with_room_waits_for_no_turn,
                a_backlog_of_one_key_hides_nothing,
                tasks_that_lost_two_workers_run_alone,
                a_retried_task_gets_the_next_number_and_a_later_fence,
                a_claim_whose_answer_was_lost_can_be_had_again,
                a_lease_may_be_short,
                a_look_never_says_too_little,
            ],
            end: [
                success_completes_with_its_result,
                results_come_back_byte_for_byte,
                a_result_too_large_is_missed_by_its_size,
                a_failure_waits_for_its_time_and_keeps_count,
                a_hopeless_failure_is_a_dead_letter_at_once,
                a_wish_for_later_is_kept,
                every_attempt_is_kept_with_what_it_left,
                every_outcome_of_an_attempt_is_told,
                an_interruption_or_first_loss_runs_again_at_once,
                three_losses_make_a_dead_letter,
                an_attempt_ends_once,
                a_wrong_fence_or_token_changes_nothing,
                a_token_may_be_any_number,
                a_worker_that_lost_its_claim_changes_nothing,
                an_unknown_task_is_fenced,
                one_fenced_item_does_not_stop_the_others,
                of_many_ends_at_once_one_is_written,
                a_cancel_recorded_first_ends_it_for_good,
                success_counts_although_a_cancel_was_asked_for,
                a_worker_may_end_its_task_as_cancelled,
                an_ended_key_is_in_the_ledger,
            ],
            workers: [
                an_entry_is_all_that_was_registered,
                a_beat_renews_lease_slots_and_draining,
                a_beat_without_an_entry_is_told_so,
                a_lapsed_lease_gives_its_claims_away_in_the_order_they_were_made,
                what_lapsed_is_handed_over_with_its_claim,
                looking_for_lapsed_claims_changes_nothing,
                a_beat_in_time_keeps_the_claims,
                what_a_retired_worker_left_lapses_at_once,
                retiring_a_stranger_changes_nothing,
                a_claims_own_lease_lapses_by_itself,
                renewing_claims_tells_what_was_lost_and_what_should_end,
                a_lapsed_claim_stands_until_it_is_judged,
                a_worker_hears_of_its_own_cancels_only,
            ],
            acts: [
                a_pending_task_is_cancelled_at_once,
                a_running_task_is_asked_to_end,
                what_has_ended_cannot_be_cancelled,
                a_batch_of_cancels_is_answered_in_order,
                a_waiting_task_can_be_made_due,
                a_task_that_is_due_keeps_its_place,
                a_waiting_task_may_get_another_payload,
                a_replay_starts_a_fresh_round_with_its_history,
                replays_keep_their_order,
                a_replay_may_get_another_payload,
                a_replay_takes_its_key_again,
                a_replay_whose_key_is_taken_stays_dead,
                two_dead_letters_of_one_key_are_replayed_once,
                a_replay_outlives_the_old_rounds_end,
                a_replayed_task_keeps_its_concurrency_key,
                only_what_waits_or_failed_can_be_retried,
                a_dismissed_dead_letter_stays_failed_and_leaves_the_queue,
                only_dead_letters_can_be_dismissed,
                a_dismissed_task_can_still_be_replayed,
                dead_letters_are_listed_by_the_time_they_failed,
                dead_letters_are_found_by_each_field,
                dead_letters_are_grouped_by_their_kind_of_error,
                a_dead_letter_waits_whatever_else_happens,
            ],
            timetables: [
                a_schedule_is_stored_as_it_was_given,
                a_schedule_is_written_only_from_what_was_read,
                many_schedules_are_written_each_by_itself,
                schedules_are_listed_by_name,
                what_is_due_comes_earliest_first,
                only_active_schedules_are_due,
                a_plan_is_applied_as_a_whole,
                a_plan_from_an_old_reading_is_refused,
                a_refused_plan_stops_no_other,
                a_label_fires_once,
                of_many_nodes_that_fire_one_label_one_does,
                an_occurrence_names_the_task_that_has_its_key,
                the_last_recorded_occurrence_is_listed_first,
                fired_occurrences_are_found_by_their_time,
                a_held_task_waits_until_the_previous_has_ended,
                held_tasks_go_on_one_at_a_time_in_order,
                a_retry_of_the_previous_still_holds,
                a_dead_letter_a_cancel_and_an_expiry_let_the_next_go,
                a_held_task_that_comes_too_late_goes_at_once,
                retrying_a_held_task_does_not_let_it_overlap,
                a_held_task_can_be_cancelled_or_expire,
                a_new_task_may_cancel_the_previous_ones,
                failures_in_a_row_are_counted,
                a_removed_schedule_leaves_its_history,
                overdue_schedules_are_counted,
            ],
            records: [
                what_was_accepted_last_is_listed_first,
                tasks_are_found_by_each_field,
                a_search_takes_the_beginning_of_id_key_type_or_tag,
                pages_hold_everything_once_while_others_write,
                an_unreasonable_page_size_is_brought_into_bounds,
                a_cursor_that_was_never_given_out_is_refused,
                an_unknown_task_is_none,
                figures_tell_every_place,
                only_what_could_start_counts_as_ready,
                the_freeze_is_kept,
                pools_and_limits_are_kept_by_name,
                routes_and_sizes_are_kept_by_name,
                a_pools_setting_is_changed_only_where_it_is_asked_to,
                a_setting_is_changed_with_its_record,
                the_last_recorded_act_is_listed_first,
                the_ledger_knows_who_has_a_key,
                a_forgotten_key_may_run_again,
                operations_are_kept_and_the_running_ones_found,
                tokens_are_kept_by_name,
                notes_are_kept_by_key,
                surroundings_tell_of_freeze_pause_and_rivals,
                surroundings_count_workers_and_slots,
                surroundings_tell_of_limits,
                surroundings_tell_of_quarantine,
            ],
            outbox: [
                alerts_are_kept_as_they_were_raised,
                a_dead_letter_raises_an_alert_with_it,
                only_giving_up_raises_an_alert,
                a_refused_end_raises_nothing,
                a_missed_occurrence_raises_an_alert_with_it,
                one_tells_at_a_time,
                a_turn_is_prolonged_when_half_of_it_is_over,
                what_was_filed_is_not_told_again_and_still_listed,
                of_many_who_want_to_tell_at_once_one_does,
                alerts_are_pruned_by_time,
            ],
            upkeep: [
                each_state_has_its_own_time,
                the_defaults_keep_a_week,
                a_call_takes_a_bounded_number,
                the_ledger_answers_for_a_pruned_task,
                the_ledger_stops_a_replay_after_the_task_was_pruned,
                a_pruned_ledger_frees_its_keys,
                a_forgotten_key_outlives_no_pruning,
                the_id_of_a_pruned_task_is_free,
                a_key_answers_for_its_own_task_although_its_id_is_used_again,
                occurrences_are_as_old_as_their_firing,
                a_fired_occurrence_outlives_its_task,
                the_audit_log_is_pruned_by_time,
                an_operation_is_kept_for_as_long_as_the_audit_log_from_its_end_on,
                a_worker_is_forgotten_long_after_its_lease_unless_it_has_claims,
                a_store_says_what_it_is_and_answers,
            ],
        }
    };
    (@ $open:ident $($module:ident: [$($contract:ident),+ $(,)?]),+ $(,)?) => {
        $(mod $module { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $contract() {
                $crate::hold($crate::$module::$contract, super::$open().await).await;
            }
        )+ })+
    };
}
