"""Attacks on the console."""

from __future__ import annotations

from .entries import Fault, shown

ADMIN = "tests/admin/"
ACTIONS = f"{ADMIN}base/test_actions.py::"
ON_FIELDS = f"{ADMIN}test_attacks_on_fields.py::"
ON_VERBS = f"{ADMIN}test_attacks_on_verbs.py::"
EDIT = f"{ADMIN}editing/test_edit.py::"
SAFETY = f"{ADMIN}test_safety.py::"
PLAN = f"{ADMIN}operations/test_replay_plan.py::"

ATTACKS: dict[str, Fault] = {
    "A1": shown(
        "markup in what a row or an address says",
        f"{ON_FIELDS}test_a_field_of_an_address_is_neither_markup_nor_sql",
        f"{ON_FIELDS}test_pages_about_many_rows_show_their_markup_and_do_not_run_it",
        f"{ON_FIELDS}test_the_address_of_a_page_that_took_too_long_is_no_markup",
        f"{SAFETY}test_markup_in_rows_is_shown_and_not_run",
        f"{SAFETY}test_markup_in_questions_and_messages_is_not_run",
        f"{ADMIN}schedules/test_safety.py::test_markup_in_rows_is_shown_and_not_run",
        f"{EDIT}test_markup_in_a_payload_and_in_the_reason_is_shown_and_not_run",
        f"{ADMIN}operations/test_operation_admin.py::test_what_people_wrote_is_escaped",
        f"{PLAN}test_terms_are_escaped",
    ),
    "A2": shown(
        "a verb without its permission",
        f"{ON_VERBS}test_a_verb_needs_its_permission_a_token_and_a_post",
        f"{ON_VERBS}test_each_verb_is_attacked",
        f"{ACTIONS}test_the_action_checks_the_permission_again",
        "tests/lifecycle/operations/test_jobs.py::test_each_action_requires_exactly_its_permission",
        "tests/lifecycle/editing/test_edits.py::test_each_permission_is_demanded",
        f"{ADMIN}access/test_scope.py::test_operations_check_the_scope_again",
    ),
    "A3": shown(
        "a verb by GET, or without a CSRF token",
        f"{ON_VERBS}test_a_verb_needs_its_permission_a_token_and_a_post",
    ),
    "A4": shown(
        "a verb on what changed after its page was read, and one that is sent twice",
        f"{ON_VERBS}test_a_verb_needs_its_permission_a_token_and_a_post",
        f"{ACTIONS}test_a_job_that_moved_meanwhile_is_reported",
        f"{ACTIONS}test_a_dead_letter_that_was_replayed_meanwhile_is_reported",
        f"{EDIT}test_an_edit_of_a_job_that_changed_meanwhile_is_refused",
        f"{PLAN}test_a_plan_whose_jobs_were_replayed_meanwhile_replays_none",
        f"{PLAN}test_a_plan_that_is_begun_twice_leads_to_the_first",
        f"{ADMIN}editing/test_enqueue.py::test_a_form_that_is_sent_twice_makes_one_job",
        f"{ADMIN}workflows/test_starting.py::test_a_form_that_is_sent_twice_starts_one_run",
        "tests/maintenance/test_bulk_operations.py::"
        "test_the_same_is_asked_for_once_also_by_two_at_the_same_moment",
    ),
    "A5": shown(
        "a form with columns, ids or numbers that its page does not offer",
        f"{SAFETY}test_rows_are_neither_added_nor_changed_nor_deleted_by_hand",
        f"{EDIT}test_the_type_the_status_and_other_columns_cannot_be_sent",
        f"{ADMIN}editing/test_enqueue.py::test_another_job_type_is_not_found",
        f"{ACTIONS}test_an_invalid_row_number_is_refused",
        f"{ACTIONS}test_all_matching_without_a_bound_is_asked_again",
        f"{PLAN}test_other_terms_are_refused",
        f"{PLAN}test_other_numbers_are_refused_with_the_form",
        f"{ADMIN}operations/test_background.py::test_a_forged_priority_starts_nothing",
        "tests/maintenance/test_bulk_operations.py::"
        "test_a_job_beyond_the_newest_one_cannot_be_asked_for",
    ),
    "A6": shown(
        "secrets in payloads, results, headers and errors",
        f"{SAFETY}test_secrets_are_masked_at_any_depth",
        f"{SAFETY}test_payloads_and_results_need_their_own_permission",
        f"{SAFETY}test_the_address_of_a_list_cannot_reveal_secrets",
        f"{ADMIN}access/test_errors.py::test_no_page_shows_them_without_the_permission",
        f"{ADMIN}access/test_errors.py::test_secrets_in_them_are_masked_for_all",
        f"{ADMIN}base/test_search.py::test_a_masked_argument_is_never_searched",
        f"{ADMIN}failures/test_group_page.py::test_the_job_type_is_quarantined_from_there",
        f"{ADMIN}failures/test_group_page.py::test_an_issue_link_has_the_facts_and_no_secret",
        f"{ADMIN}job_sections/test_links.py::test_masked_and_hidden_values_are_in_no_link",
        f"{ADMIN}job_sections/test_links.py::test_a_function_gets_of_a_job_what_the_user_may_see",
        f"{EDIT}test_a_secret_stays_unless_it_is_replaced_and_is_never_shown",
        f"{PLAN}test_no_value_of_a_payload_is_shown",
        "tests/domain/test_errors.py::"
        "test_the_values_that_postgresql_quotes_in_its_detail_are_left_out",
    ),
    "A7": shown(
        "a page of very many rows, or of very large ones",
        f"{ON_FIELDS}test_the_pages_of_a_large_job_stay_small",
        f"{ADMIN}test_query_counts.py::test_each_page_takes_few_queries",
        f"{ADMIN}test_query_counts.py::test_each_filter_takes_few_queries",
        f"{ADMIN}layout/test_time_limit.py::test_a_slow_list_is_stopped_and_says_how_to_narrow_it",
        f"{ADMIN}test_pages.py::test_a_payload_too_large_to_mask_is_not_shown",
        f"{PLAN}test_a_large_payload_does_not_make_the_dry_run_large",
        f"{ADMIN}failures/test_group_page.py::test_the_address_of_an_issue_stays_short",
    ),
    "A8": shown(
        "addresses that lead away, and exports that run in a table calculation",
        "tests/domain/test_links.py::test_addresses_of_http_and_of_this_site_are_safe",
        f"{ADMIN}job_sections/test_links.py::"
        "test_a_function_returns_links_and_only_safe_ones_are_shown",
        cannot="No page exports a table. The files of jobarchive are read back by COPY and by "
        "programs, so that a value is written as it is.",
    ),
    "A9": shown(
        "SQL in a filter, a search, an order or a term",
        f"{ON_FIELDS}test_a_field_of_an_address_is_neither_markup_nor_sql",
        f"{ADMIN}base/test_search.py::test_hostile_terms_find_nothing_and_break_nothing",
        f"{ADMIN}test_odd_addresses.py::test_a_nul_in_the_address_of_a_list_is_a_wrong_parameter",
        f"{SAFETY}test_the_address_of_a_list_cannot_reveal_secrets",
        "tests/maintenance/test_bulk_operations.py::test_values_of_terms_are_no_sql",
    ),
}
