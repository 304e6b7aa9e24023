"""Faults of workers (W) and of signals and shutdown (S)."""

from __future__ import annotations

from .entries import Fault, shown

SUPERVISOR = "tests/worker/supervisor/test_supervisor.py"
RESILIENCE = "tests/worker/test_resilience.py"
PROCESS = "tests/worker/process/test_worker_process.py"
OUTAGE = "tests/worker/test_database_outage.py"
DEATH = "tests/faults/test_worker_death.py"
STALLS = "tests/faults/test_stalls.py"
LIMITS = "tests/worker/test_time_limits.py"
POINTS = "tests/faults/test_crash_points.py"
FLOWS = "tests/faults/test_crash_points_workflows.py"
CUT_OFF = "tests/lifecycle/workflows/test_starting_cut_off.py"
SIGNALLED = "tests/faults/test_signals.py"

WORKERS: dict[str, Fault] = {
    "W1": shown(
        "the supervisor is killed while a job runs",
        f"{DEATH}::test_a_job_of_a_killed_supervisor_runs_elsewhere",
        f"{SUPERVISOR}::test_jobs_of_a_killed_group_run_elsewhere_once_the_lease_is_over",
    ),
    "W2": shown(
        "a worker process is killed",
        f"{DEATH}::test_a_killed_process_is_replaced_and_the_jobs_of_its_neighbour_run_on",
        f"{SUPERVISOR}::test_jobs_of_a_killed_process_run_again_before_a_lease_or_a_poll",
        f"{SUPERVISOR}::test_prefetched_jobs_of_a_dead_process_are_given_back_without_a_run",
    ),
    "W3": shown(
        "a handler segfaults",
        f"{DEATH}::test_a_handler_that_segfaults_is_logged_by_name_and_its_job_dies",
    ),
    "W4": shown(
        "a handler is out of memory",
        f"{PROCESS}::test_no_exception_ends_a_thread",
        f"{DEATH}::test_a_killed_process_is_replaced_and_the_jobs_of_its_neighbour_run_on",
        cannot="The kernel's own OOM kill is stood for by SIGKILL, which is what it sends: a test "
        "cannot give its processes a control group with a limit of memory.",
    ),
    "W5": shown(
        "a handler ends its process with os._exit(0)",
        f"{SUPERVISOR}::test_an_exit_of_the_process_is_not_a_success",
    ),
    "W6": shown(
        "a handler raises what is no Exception",
        f"{PROCESS}::test_no_exception_ends_a_thread",
    ),
    "W7": shown(
        "a poison pill: the handler kills its process each time",
        f"{SUPERVISOR}::test_a_poison_pill_dies_and_the_other_suspects_do_not",
        f"{DEATH}::test_a_handler_that_segfaults_is_logged_by_name_and_its_job_dies",
    ),
    "W8": shown(
        "a whole worker is stopped past its lease, and wakes",
        f"{SUPERVISOR}::test_a_stopped_worker_that_wakes_after_its_lease_starts_as_a_new_one",
        f"{RESILIENCE}::test_handlers_of_lost_jobs_are_stopped",
    ),
    "W9": shown(
        "only the supervisor is stopped past the lease",
        f"{STALLS}::test_jobs_run_while_their_supervisor_is_stopped",
    ),
    "W10": shown(
        "only one worker process is stopped",
        f"{STALLS}::test_a_stopped_process_is_killed_when_the_time_of_its_job_is_over",
        f"{STALLS}::test_a_job_without_a_timeout_waits_for_its_stopped_process",
    ),
    "W11": shown(
        "a handler holds the GIL for three leases",
        f"{SUPERVISOR}::test_a_handler_that_holds_the_gil_for_three_leases_runs_once",
    ),
    "W12": shown(
        "a handler hangs past its time limit, also while it holds the GIL",
        f"{LIMITS}::test_a_call_that_nothing_interrupts_is_killed_and_other_jobs_run_again",
        f"{STALLS}::test_a_stopped_process_is_killed_when_the_time_of_its_job_is_over",
    ),
    "W13": shown(
        "a handler leaves threads and programs behind",
        f"{DEATH}::test_a_thread_left_by_a_handler_does_not_affect_the_next_job",
        f"{DEATH}::test_processes_of_a_handler_die_with_its_killed_child",
    ),
    "W14": shown(
        "a handler forks, and both processes return from it",
        f"{DEATH}::test_a_fork_that_returns_from_its_handler_claims_and_settles_nothing",
    ),
    "W15": shown(
        "a fork after a connection was opened",
        f"{DEATH}::test_no_process_of_the_tree_inherits_a_socket_of_another",
        f"{RESILIENCE}::test_no_backend_is_shared_between_processes_that_use_a_pool",
    ),
    "W16": shown(
        "the machine sleeps for longer than the lease, and all wake together",
        f"{STALLS}::test_workers_suspended_longer_than_the_lease_keep_their_jobs",
        cannot="The server's clock goes on while its workers are stopped, so it is not stopped "
        "with them; that it is away for longer than the lease is fault D9.",
    ),
    "W17": shown(
        "a crash between two steps: claim, handler, effect, settle",
        f"{POINTS}::test_a_crash_at_any_step_loses_no_job_and_no_run",
        f"{POINTS}::test_an_error_of_the_database_at_any_statement_costs_no_attempt",
        f"{POINTS}::test_a_process_stopped_before_its_settle_writes_it_when_resumed",
        f"{POINTS}::test_the_passage_is_counted_over_the_whole_tree",
    ),
    "W18": shown(
        "the heartbeat dies, hangs, or fails",
        f"{SUPERVISOR}::test_the_heartbeat_is_replaced_when_it_dies",
        f"{RESILIENCE}::test_a_heartbeat_process_that_hangs_is_replaced",
        f"{POINTS}::test_a_crash_of_the_heartbeat_at_any_step_stops_no_handler",
        f"{POINTS}::test_a_heartbeat_that_dies_during_crash_recovery_is_asked_again",
    ),
    "W19": shown(
        "a worker has the name, the host and the process id of a dead one",
        f"{DEATH}::test_a_worker_of_the_same_name_does_not_keep_the_jobs_of_the_dead_one",
    ),
    "W20": shown(
        "a worker's row is deleted by hand",
        f"{DEATH}::test_a_job_whose_workers_row_was_deleted_is_found_and_runs_again",
    ),
    "W21": shown(
        "a crash between any two statements that open the next steps of a workflow, or start one",
        f"{FLOWS}::test_a_crash_within_a_settle_opens_and_runs_each_step_once",
        f"{FLOWS}::test_a_crash_within_a_start_starts_the_whole_run_once",
        f"{CUT_OFF}::test_a_start_that_is_cut_off_leaves_nothing",
    ),
}

SIGNALS: dict[str, Fault] = {
    "S1": shown(
        "SIGTERM while idle, and while busy",
        f"{SUPERVISOR}::test_an_idle_worker_exits_at_once",
        f"{SUPERVISOR}::test_sigterm_lets_a_running_job_finish_and_exits_zero",
    ),
    "S2": shown(
        "a job runs for longer than the drain",
        f"{SUPERVISOR}::test_a_job_longer_than_the_drain_is_released_and_run_by_the_next_worker",
    ),
    "S3": shown(
        "a second signal: SIGTERM or SIGINT after either",
        f"{SIGNALLED}::test_any_two_signals_release_and_exit_without_waiting_for_the_job",
    ),
    "S4": shown(
        "SIGTERM while the worker starts",
        f"{SIGNALLED}::test_sigterm_at_any_moment_of_the_start_leaves_nothing_claimed",
        f"{SIGNALLED}::test_sigterm_at_the_first_sign_of_life_drains",
    ),
    "S5": shown(
        "the worker is process 1 of a container, or a shell is",
        f"{SIGNALLED}::test_as_process_1_of_a_container_it_drains",
        f"{SIGNALLED}::test_a_shell_as_process_1_keeps_the_signal_to_itself",
    ),
    "S6": shown(
        "Ctrl-C goes to the whole group",
        f"{SIGNALLED}::test_ctrl_c_reaches_the_whole_group_and_every_handler_may_finish",
    ),
    "S7": shown(
        "a drain is longer than the lease",
        f"{SIGNALLED}::test_the_lease_is_renewed_through_a_drain_that_is_longer",
    ),
    "S8": shown(
        "SIGTERM while the database is away",
        f"{OUTAGE}::test_sigterm_while_the_database_is_away_exits_within_the_grace",
    ),
    "S9": shown(
        "SIGHUP; nobody reads the log: it is closed, its reader is gone, or its pipe is full",
        f"{SIGNALLED}::test_sighup_drains",
        f"{RESILIENCE}::test_a_worker_runs_with_its_output_closed",
        f"{SIGNALLED}::test_a_worker_continues_when_its_log_reader_is_gone",
        f"{SIGNALLED}::test_a_worker_continues_when_its_log_pipe_is_full",
    ),
    "S10": shown(
        "old and new code run side by side",
        f"{SIGNALLED}::test_old_code_leaves_the_jobs_of_new_code_to_workers_that_know_them",
    ),
}
