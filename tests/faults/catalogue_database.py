"""Faults of the database and of the network."""

from __future__ import annotations

from .catalogue_input import INPUT
from .entries import Fault, shown

__all__ = ["DATABASE", "INPUT", "NETWORK"]

OUTAGE = "tests/worker/test_database_outage.py::"
PROCESS = "tests/worker/process/test_worker_process.py::"
RESILIENCE = "tests/worker/test_resilience.py::"
SURVIVE = "tests/worker/test_schedules_survive.py::"
ENQUEUEING = "tests/lifecycle/test_enqueueing.py::"
OUTAGES = "tests/faults/test_database_outages.py::"
ANSWERS = "tests/faults/test_database_answers.py::"
SILENCE = "tests/faults/test_database_silence.py::"
REFUSALS = "tests/faults/test_database_refusals.py::"
LOCKS = "tests/faults/test_database_locks.py::"
LISTEN = "tests/faults/test_database_listen.py::"
CLOCKS = "tests/faults/test_database_clocks.py::"
FAILOVER = "tests/faults/test_database_failover.py::"
POOLER = "tests/faults/test_pgbouncer.py::"
CABLE = "tests/faults/test_network.py::"

DATABASE: dict[str, Fault] = {
    "D1": shown(
        "the server restarts, fast or immediately",
        f"{OUTAGES}test_a_restart_in_the_midst_of_claims_and_settles_loses_and_doubles_nothing",
        f"{OUTAGE}test_a_restart_while_a_job_runs_is_survived",
        f"{SURVIVE}test_a_restart_of_the_database_does_not_end_the_firing",
    ),
    "D2": shown(
        "sessions are terminated",
        f"{OUTAGES}test_terminated_sessions_cost_no_beat_and_no_attempt",
        f"{PROCESS}test_terminated_connections_are_survived",
        f"{RESILIENCE}test_a_connection_that_died_while_idle_costs_no_attempt",
        f"{SURVIVE}test_terminated_connections_do_not_end_the_firing",
    ),
    "D3": shown(
        "the server is away for longer than a lease and comes back",
        f"{OUTAGE}test_a_job_that_ended_while_the_database_was_away_for_longer_than_the_lease_ran_once",
        f"{OUTAGE}test_a_job_that_runs_on_when_the_lease_cannot_be_renewed_is_stopped_and_runs_again",
    ),
    "D4": shown(
        "the answer to an enqueue's commit is lost",
        f"{ANSWERS}test_an_enqueue_whose_answer_was_lost_is_asked_for_again_with_its_key",
        f"{ANSWERS}test_without_a_key_an_enqueue_whose_answer_was_lost_is_there_all_the_same",
    ),
    "D5": shown(
        "the answer to a claim's commit is lost",
        f"{ANSWERS}test_a_claim_whose_answer_was_lost_is_given_back_and_its_job_runs_once",
        f"{RESILIENCE}test_a_claim_whose_answer_was_lost_is_given_back_and_run",
    ),
    "D6": shown(
        "the answer to a settle's commit is lost",
        f"{ANSWERS}test_a_settle_whose_answer_was_lost_is_read_back_as_written",
        f"{ANSWERS}test_an_effect_and_its_success_whose_commit_was_not_heard_of_are_there_once",
        f"{ANSWERS}test_an_effect_whose_transaction_was_cut_before_its_commit_is_written_by_the_next_attempt",
    ),
    "D7": shown(
        "a black hole: bytes are taken and nothing comes back",
        f"{SILENCE}test_a_worker_in_a_black_hole_stops_its_handler_before_another_begins_and_comes_back",
        f"{SILENCE}test_a_claim_that_reaches_the_server_long_after_it_was_given_up_strands_no_job",
    ),
    "D8": shown(
        "the database is slow",
        f"{SILENCE}test_behind_a_slow_line_beats_come_in_time_and_each_job_runs_once",
    ),
    "D9": shown(
        "an outage that outlasts the lease of all workers, who are alive",
        f"{OUTAGES}test_when_all_leases_ran_out_in_an_outage_the_living_renew_and_nobody_takes_over",
    ),
    "D10": shown(
        "two handlers deadlock",
        f"{LOCKS}test_of_two_handlers_that_deadlock_one_tries_again_soon_and_both_succeed",
    ),
    "D11": shown(
        "the project uses REPEATABLE READ or SERIALIZABLE",
        f"{LOCKS}test_every_job_runs_once_whatever_isolation_level_the_project_uses",
    ),
    "D12": shown(
        "the server has no connection left",
        f"{REFUSALS}test_a_server_without_a_connection_left_costs_no_lease_and_no_job",
    ),
    "D13": shown(
        "the disk of the data is full",
        f"{FAILOVER}test_a_full_disk_is_told_to_who_enqueues_and_jobs_run_once_there_is_room",
    ),
    "D14": shown(
        "the server cannot write its log and panics",
        f"{OUTAGES}test_a_server_that_cannot_write_its_log_recovers_and_so_do_the_workers",
    ),
    "D15": shown(
        "the server becomes read-only",
        f"{REFUSALS}test_a_server_that_became_read_only_is_waited_for_and_nothing_is_called_done",
    ),
    "D16": shown(
        "a failover loses the last commits",
        f"{FAILOVER}test_after_a_failover_that_lost_commits_nobody_owns_what_nobody_runs",
    ),
    "D17": shown(
        "somebody holds a row in an open transaction",
        f"{LOCKS}test_a_job_that_somebody_holds_in_an_open_transaction_is_passed_by_and_runs_when_it_is_let_go",
        f"{RESILIENCE}test_a_lock_on_a_running_job_stops_neither_heartbeats_nor_the_settles_of_others",
        f"{RESILIENCE}test_others_are_settled_while_one_row_is_locked",
        f"{RESILIENCE}test_a_lock_on_the_row_of_a_limited_queue_does_not_end_the_process",
        "tests/metrics/test_snapshot.py::"
        "test_the_age_is_that_of_the_oldest_job_that_waits_whatever_its_priority",
    ),
    "D18": shown(
        "an old snapshot keeps dead rows",
        "tests/faults/test_database_snapshots.py::"
        "test_claims_do_not_read_again_what_an_old_snapshot_keeps_from_being_removed",
        cannot="There is no check yet that warns of an old snapshot, so that part has no test.",
    ),
    "D19": shown(
        "PgBouncer in transaction mode stands between",
        f"{POOLER}test_hundreds_of_jobs_run_once_each_and_the_worker_drains",
        f"{POOLER}test_leases_are_renewed_and_a_failure_is_tried_again",
        f"{POOLER}test_jobs_start_within_the_poll_where_no_notification_passes",
        f"{POOLER}test_that_no_notification_passes_is_found_out_also_where_the_pooler_is_idle",
        f"{POOLER}test_jobs_are_enqueued_and_read_through_it_again_and_again",
        f"{POOLER}test_schedules_fire_through_it",
        f"{POOLER}test_no_setting_of_a_worker_is_left_on_a_connection_that_others_get",
    ),
    "D20": shown(
        "the listening connection dies, a notification is lost or refused",
        f"{LISTEN}test_a_listening_connection_that_died_is_opened_again_and_what_came_meanwhile_is_found",
        f"{LISTEN}test_a_job_that_nobody_told_of_waits_for_no_more_than_the_poll",
        "tests/lifecycle/test_notifying.py::test_a_wake_up_that_fails_is_logged_and_harms_nobody",
    ),
    "D21": shown(
        "the role has a statement_timeout and a lock_timeout",
        f"{REFUSALS}test_a_lock_time_out_of_the_role_at_a_settle_keeps_no_other_from_being_settled",
        f"{REFUSALS}test_a_lock_time_out_of_the_role_at_a_claim_keeps_no_other_queue_waiting",
    ),
    "D22": shown(
        "numbers grow beyond 32 bits; the database's clock goes back",
        f"{CLOCKS}test_ids_above_what_an_integer_holds_are_ids_like_any_other",
        f"{CLOCKS}test_a_clock_of_the_database_that_goes_back_revives_no_lease",
    ),
    "D23": shown(
        "a migration of tables under load",
        "tests/migrations/test_patience_under_load.py::test_claims_go_on_while_each_operation_waits_for_its_table",
    ),
    "D24": shown(
        "the queue is on another database than the data",
        "tests/checks/test_delivery.py::test_exactly_once_across_two_databases_is_refused",
    ),
    "D25": shown(
        "a worker's clock is two hours off the database's",
        f"{CLOCKS}test_a_worker_whose_clock_is_two_hours_off_does_nothing_early_and_nothing_late",
    ),
    "D26": shown(
        "now() stands still in a long transaction",
        f"{ENQUEUEING}test_a_delay_counts_from_the_statement_and_not_from_the_start_of_the_transaction",
        f"{ENQUEUEING}test_a_delay_schedules_the_job_on_the_databases_clock",
    ),
}

NETWORK: dict[str, Fault] = {
    "N1": shown(
        "the cable to the database is pulled",
        f"{CABLE}test_a_worker_cut_off_in_silence_stops_its_handler_before_another_begins_and_comes_back",
    ),
    "N2": shown(
        "packets are lost one way",
        f"{CABLE}test_a_worker_cut_off_in_silence_stops_its_handler_before_another_begins_and_comes_back",
    ),
    "N3": shown(
        "a line that loses a fifth and takes 300 ms",
        f"{CABLE}test_on_a_line_that_loses_a_fifth_every_job_is_done_once",
    ),
    "N4": shown(
        "the cable is pulled just after a commit",
        f"{CABLE}test_a_cable_that_is_pulled_just_after_a_commit_loses_and_doubles_nothing",
    ),
}
