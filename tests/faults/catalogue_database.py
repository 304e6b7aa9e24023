"""Faults of the database and of the network."""

from __future__ import annotations

from .catalogue_input import INPUT
from .entries import Fault, shown

__all__ = ["DATABASE", "INPUT", "NETWORK"]

OUTAGE = "tests/worker/test_database_outage.py::"
PROCESS = "tests/worker/process/test_worker_process.py::"
RESILIENCE = "tests/worker/test_resilience.py::"
ENQUEUEING = "tests/lifecycle/test_enqueueing.py::"
OUTAGES = "tests/faults/test_database_outages.py::"
ANSWERS = "tests/faults/test_database_answers.py::"
SILENCE = "tests/faults/test_database_silence.py::"
REFUSALS = "tests/faults/test_database_refusals.py::"
LOCKS = "tests/faults/test_database_locks.py::"
LISTEN = "tests/faults/test_database_listen.py::"
FREEZES = "tests/faults/test_database_freezes.py::"
CLOCKS = "tests/faults/test_database_clocks.py::"
FAILOVER = "tests/faults/test_database_failover.py::"
POOLER = "tests/faults/test_pgbouncer.py::"
CABLE = "tests/faults/test_network.py::"

DATABASE: dict[str, Fault] = {
    "D1": shown(
        "the server restarts, fast or immediately",
        f"{OUTAGES}test_a_database_restart_under_load_loses_and_doubles_nothing",
    ),
    "D2": shown(
        "sessions are terminated",
        f"{PROCESS}test_terminated_connections_are_survived",
    ),
    "D3": shown(
        "the server is away for longer than a lease and comes back",
        f"{OUTAGE}test_a_job_that_ended_in_an_outage_longer_than_the_lease_ran_once",
        f"{OUTAGE}test_a_job_is_stopped_and_rerun_if_the_lease_cannot_be_renewed",
    ),
    "D4": shown(
        "the answer to an enqueue's commit is lost",
        f"{ANSWERS}test_an_enqueue_whose_answer_was_lost_is_repeated_with_its_key",
        f"{ANSWERS}test_without_a_key_an_enqueue_whose_answer_was_lost_may_exist",
    ),
    "D5": shown(
        "the answer to a claim's commit is lost",
        f"{ANSWERS}test_jobs_of_a_claim_whose_answer_was_lost_run_once",
        f"{RESILIENCE}test_a_claim_whose_answer_was_lost_is_given_back",
    ),
    "D6": shown(
        "the answer to a settle's commit is lost",
        f"{ANSWERS}test_a_settle_whose_answer_was_lost_is_read_back_as_written",
        f"{ANSWERS}test_an_exactly_once_effect_with_an_unknown_commit_exists_once",
        f"{ANSWERS}test_an_effect_cut_off_before_its_commit_is_written_by_the_next_attempt",
    ),
    "D7": shown(
        "a black hole: bytes are taken and nothing comes back",
        f"{SILENCE}test_a_worker_in_a_black_hole_stops_its_handler_before_another_starts",
        f"{SILENCE}test_a_claim_that_arrives_after_its_timeout_strands_no_job",
    ),
    "D8": shown(
        "the database is slow",
        f"{SILENCE}test_behind_a_slow_line_beats_come_in_time_and_each_job_runs_once",
    ),
    "D9": shown(
        "an outage that outlasts the lease of all workers, who are alive",
        f"{OUTAGES}test_leases_that_expired_in_an_outage_are_renewed_by_live_workers",
        f"{FREEZES}test_leases_that_ran_out_while_the_server_stood_still_are_renewed_by_live_workers",
        f"{FREEZES}test_a_sweep_that_the_server_reads_late_takes_no_worker_as_lost",
    ),
    "D10": shown(
        "two handlers deadlock",
        f"{LOCKS}test_of_two_handlers_that_deadlock_one_is_retried_soon_and_both_succeed",
    ),
    "D11": shown(
        "the project uses REPEATABLE READ or SERIALIZABLE",
        f"{LOCKS}test_every_job_runs_once_at_any_isolation_level",
    ),
    "D12": shown(
        "the server has no connection left",
        f"{REFUSALS}test_a_server_without_a_connection_left_costs_no_lease_and_no_job",
    ),
    "D13": shown(
        "the disk of the data is full",
        f"{FAILOVER}test_a_full_disk_refuses_enqueues_and_jobs_run_once_there_is_room",
    ),
    "D14": shown(
        "the server cannot write its log and panics",
        f"{OUTAGES}test_a_server_that_cannot_write_its_log_recovers_and_so_do_the_workers",
    ),
    "D15": shown(
        "the server becomes read-only",
        f"{REFUSALS}test_a_read_only_server_is_waited_for_and_no_job_succeeds",
    ),
    "D16": shown(
        "a failover loses the last commits",
        f"{FAILOVER}test_after_a_failover_with_lost_commits_no_job_stays_running",
    ),
    "D17": shown(
        "somebody holds a row in an open transaction",
        "tests/lifecycle/test_claiming.py::test_a_locked_job_is_skipped",
        f"{RESILIENCE}test_a_lock_on_a_running_job_delays_no_heartbeat_and_no_settle",
        f"{RESILIENCE}test_a_lock_on_the_row_of_a_limited_queue_does_not_end_the_process",
        "tests/metrics/test_snapshot.py::"
        "test_the_age_is_that_of_the_oldest_waiting_job_of_any_priority",
    ),
    "D18": shown(
        "an old snapshot keeps dead rows",
        "tests/faults/test_database_snapshots.py::"
        "test_claims_skip_dead_rows_that_an_old_snapshot_keeps",
        cannot="There is no check yet that warns of an old snapshot, so that part has no test.",
    ),
    "D19": shown(
        "PgBouncer in transaction mode stands between",
        f"{POOLER}test_hundreds_of_jobs_run_once_each_and_the_worker_drains",
        f"{POOLER}test_leases_are_renewed_and_a_failure_is_tried_again",
        f"{POOLER}test_jobs_are_found_by_the_poll_without_notifications",
        f"{POOLER}test_missing_notifications_are_noticed_behind_an_idle_pooler",
        f"{POOLER}test_jobs_are_enqueued_and_read_repeatedly",
        f"{POOLER}test_schedules_fire_through_it",
        f"{POOLER}test_no_setting_of_a_worker_is_left_on_a_connection_that_others_get",
    ),
    "D20": shown(
        "the listening connection dies, a notification is lost or refused",
        f"{LISTEN}test_a_broken_listener_reconnects_and_misses_no_job",
        f"{POOLER}test_jobs_are_found_by_the_poll_without_notifications",
        "tests/lifecycle/test_notifying.py::test_a_notification_that_fails_is_logged_and_affects_no_job",
    ),
    "D21": shown(
        "the role has a statement_timeout and a lock_timeout",
        f"{REFUSALS}test_a_lock_timeout_of_the_role_in_a_settle_delays_no_other_job",
        f"{REFUSALS}test_a_lock_timeout_of_the_role_in_a_claim_delays_no_other_queue",
    ),
    "D22": shown(
        "numbers grow beyond 32 bits; the database's clock goes back, or jumps forward",
        f"{CLOCKS}test_ids_beyond_32_bits_work",
        f"{CLOCKS}test_a_clock_of_the_database_that_goes_back_revives_no_lease",
        f"{CLOCKS}test_a_clock_of_the_database_that_jumps_forward_takes_no_worker_as_lost",
    ),
    "D23": shown(
        "a migration of tables under load",
        "tests/migrations/test_patience_under_load.py::test_claims_continue_while_each_operation_waits_for_its_table",
    ),
    "D24": shown(
        "the queue is on another database than the data",
        "tests/checks/test_delivery.py::test_exactly_once_across_two_databases_is_refused",
    ),
    "D25": shown(
        "a worker's clock is two hours off the database's",
        f"{CLOCKS}test_a_worker_with_a_wrong_clock_does_nothing_early_or_late",
    ),
    "D26": shown(
        "now() stands still in a long transaction",
        f"{ENQUEUEING}test_a_delay_counts_from_the_statement_not_the_transaction",
        f"{ENQUEUEING}test_a_delay_schedules_the_job_on_the_databases_clock",
    ),
}

NETWORK: dict[str, Fault] = {
    "N1": shown(
        "the cable to the database is pulled",
        f"{CABLE}test_a_worker_cut_off_silently_stops_its_handler_before_another_starts",
    ),
    "N2": shown(
        "packets are lost one way",
        f"{CABLE}test_a_worker_cut_off_silently_stops_its_handler_before_another_starts",
    ),
    "N3": shown(
        "a line that loses a fifth and takes 300 ms",
        f"{CABLE}test_on_a_line_that_loses_a_fifth_every_job_is_done_once",
    ),
    "N4": shown(
        "the cable is pulled just after a commit",
        f"{CABLE}test_a_line_cut_after_a_commit_loses_and_doubles_nothing",
    ),
}
