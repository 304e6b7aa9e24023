"""Faults of bad input and of changed code."""

from __future__ import annotations

from .entries import Fault, shown

PROCESS = "tests/worker/process/test_worker_process.py::"
SCHEDULES = "tests/worker/test_schedules.py::"
ENQUEUEING = "tests/lifecycle/test_enqueueing.py::"
BAD = "tests/faults/test_bad_input.py::"
LOADS = "tests/faults/test_bad_loads.py::"

INPUT: dict[str, Fault] = {
    "B1": shown(
        "a job of an unknown type",
        f"{BAD}test_no_dotted_path_is_run_and_nothing_is_unpickled_from_a_row",
        "tests/admin/job_sections/test_why.py::test_the_page_of_a_ready_job_says_why_it_does_not_run",
    ),
    "B2": shown(
        "a handler was renamed",
        "tests/lifecycle/test_claiming_versions.py::"
        "test_jobs_of_an_old_name_are_claimed_through_the_alias",
        "tests/api/test_payload_versions.py::test_a_job_enqueued_by_an_old_name_has_the_new_one",
    ),
    "B3": shown(
        "a handler's arguments changed",
        f"{PROCESS}test_a_payload_that_cannot_be_read_fails_alone",
        "tests/api/test_payload_versions.py::test_payload_problem_names_the_problem_of_a_stored_payload",
    ),
    "B4": shown(
        "a row names a dotted path",
        f"{BAD}test_no_dotted_path_is_run_and_nothing_is_unpickled_from_a_row",
        "tests/test_registry.py::test_a_dotted_path_is_a_name_like_any_other_and_is_never_imported",
    ),
    "B5": shown(
        "a row carries a pickle",
        f"{BAD}test_no_dotted_path_is_run_and_nothing_is_unpickled_from_a_row",
        f"{BAD}test_the_package_imports_nothing_that_unpickles_or_evaluates",
    ),
    "B6": shown(
        "values at enqueue that JSON or PostgreSQL cannot hold",
        "tests/domain/test_payload.py::"
        "test_values_unknown_to_json_or_postgresql_are_refused_with_their_path",
        "tests/domain/test_payload.py::test_nesting_is_allowed_to_the_limit_and_refused_beyond",
        "tests/api/test_shortcuts.py::test_of_many_the_refused_one_is_named_by_its_index",
    ),
    "B7": shown(
        "such values written by SQL",
        f"{PROCESS}test_a_payload_that_cannot_be_read_fails_alone",
        "tests/worker/execution/test_handler_call.py::test_a_row_that_cannot_be_used_fails_for_good",
        "tests/admin/test_pages.py::"
        "test_a_payload_that_cannot_be_read_breaks_neither_list_nor_page",
    ),
    "B8": shown(
        "arguments that are far too large",
        "tests/domain/test_payload.py::"
        "test_a_value_that_is_far_too_large_is_refused_before_all_of_it_is_read",
        f"{BAD}test_a_payload_of_a_hundred_megabytes_is_refused_before_encoding",
    ),
    "B9": shown(
        "a result that is huge or cannot be stored",
        "tests/worker/execution/test_hopeless.py::"
        "test_a_result_that_cannot_be_stored_is_replaced_by_a_note",
        "tests/worker/execution/test_handler_call.py::test_a_result_that_explodes_is_replaced_by_a_note",
    ),
    "B10": shown(
        "an exception that is hard to write down",
        "tests/domain/test_errors.py::test_a_huge_message_is_cut_quickly_to_its_head_and_tail",
        "tests/worker/execution/test_failures.py::"
        "test_an_exception_that_raises_when_inspected_is_an_ordinary_failure",
        "tests/lifecycle/test_settling.py::"
        "test_texts_that_postgresql_cannot_store_are_stored_escaped",
    ),
    "B11": shown(
        "a key of thousands of characters",
        "tests/api/test_validation.py::test_invalid_options_are_refused",
        "tests/api/test_validation.py::test_any_other_key_of_up_to_200_characters_is_taken",
    ),
    "B12": shown(
        "an enqueue whose transaction rolls back, or whose hook after the commit raises",
        f"{ENQUEUEING}test_a_rolled_back_transaction_leaves_no_job",
        f"{ENQUEUEING}test_a_rolled_back_savepoint_takes_its_job_and_leaves_the_others",
        f"{BAD}test_an_on_commit_hook_that_raises_affects_no_job",
    ),
    "B13": shown(
        "twenty threads enqueue with one key",
        f"{ENQUEUEING}test_twenty_threads_with_one_key_make_one_job_and_all_get_it",
        f"{ENQUEUEING}test_a_key_requested_by_many_threads_never_has_two_live_jobs",
    ),
    "B14": shown(
        "a cron rule that is broken or never true",
        "tests/domain/test_cron.py::test_a_rule_is_refused_with_its_reason",
        "tests/api/test_schedules.py::test_a_schedule_that_can_never_fire_is_refused_at_its_declaration",
        "tests/admin/schedules/test_form.py::"
        "test_input_that_would_fail_in_a_worker_is_refused_with_the_reason",
        f"{SCHEDULES}test_broken_rows_get_an_error_and_the_others_fire",
    ),
    "B15": shown(
        "the clock changes",
        "tests/domain/test_cron.py::test_a_change_of_the_clock",
        "tests/domain/test_cron.py::test_the_oracle_agrees_at_every_change_of_the_named_zones",
        "tests/domain/test_cron.py::test_a_daily_rule_is_due_once_a_day_in_all_zones",
        "tests/domain/test_cron.py::test_a_quarter_hourly_rule_is_regular_in_all_zones",
    ),
    "B16": shown(
        "nobody fires schedules for three hours",
        "tests/maintenance/test_schedules.py::test_after_an_outage_the_catch_up_policy_decides",
        f"{SCHEDULES}test_a_schedule_of_each_second_is_caught_up_with_in_bounded_steps",
    ),
    "B17": shown(
        "ten schedulers at once",
        "tests/maintenance/test_schedules_trouble.py::"
        "test_ten_schedulers_at_once_fire_each_due_time_once",
        "tests/maintenance/test_schedules_trouble.py::"
        "test_a_second_tick_of_a_due_time_is_refused_by_the_table_itself",
    ),
    "B18": shown(
        "a schedule is edited while it is due; its zone is gone",
        f"{SCHEDULES}test_an_edit_while_it_is_due_wins_and_the_others_do_not_wait_for_it",
        "tests/maintenance/test_schedules_trouble.py::"
        "test_a_bad_row_gets_an_error_and_the_others_fire",
    ),
    "B19": shown(
        "what a handler leaves behind",
        f"{BAD}test_session_state_does_not_leak_into_the_next_job",
        f"{PROCESS}test_a_connection_is_clean_after_each_job",
        cannot="Directory, environment and limits belong to the whole process and are nobody's to "
        "put back: a job that changes them takes isolated=True.",
    ),
    "B20": shown(
        "a handler that could not run",
        "tests/api/test_shortcuts_declaration.py::test_a_handler_that_could_not_run_is_refused",
        "tests/api/test_shortcuts_declaration.py::test_async_functions_are_handlers_too",
    ),
    "B21": shown(
        "a flood is enqueued and then cancelled",
        f"{LOADS}test_a_flood_is_cancelled_while_jobs_of_others_are_claimed",
        "tests/admin/base/test_actions.py::test_all_matching_stops_at_the_limit_and_says_so",
        cannot="A million takes minutes; 20,000 in the chunks of the admin show the same locks.",
    ),
    "B22": shown(
        "a storm of failures",
        f"{LOADS}test_mass_failures_are_spread_and_delay_no_other_queue",
        "tests/domain/test_backoff.py::test_jitter_shortens_a_wait_by_at_most_its_share",
    ),
    "B23": shown(
        "starvation by priority, or by one tenant",
        f"{LOADS}test_a_tenant_with_a_backlog_keeps_no_other_queue_waiting",
        "tests/lifecycle/test_claiming.py::test_waiting_raises_priority_unless_a_queue_is_strict",
    ),
}
