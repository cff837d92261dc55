//! Runs the models of a pipe: a test each.

use tensorpipe_loom::pipe::{deliveries, kicks, polls, wakes};

tensorpipe_loom::models! {
    kicks: two_write_at_once, three_write_at_once, one_polls_while_another_writes, one_leaves_at_once_while_another_is_written, one_that_leaves_in_part_is_heard_of,
        some_are_left_to_the_background_task_while_another_is_written,
        two_leave_theirs_to_the_background_task;
    deliveries: two_deliver_at_once,
        three_deliver_at_once,
        a_round_that_stops_for_a_message_goes_on,
        what_a_handler_writes_leaves,
        what_a_handler_leaves_behind_leaves,
        reading_goes_on_once_the_handler_has_caught_up,
        what_a_thread_with_enough_leaves_is_delivered;
    wakes: an_operation_that_leaves_hands_its_wake_on,
        a_wake_outlives_those_who_drive_meanwhile,
        a_forgotten_operation_loses_the_role,
        two_operations_wait,
        an_operation_waits_behind_one_that_leaves,
        an_operation_waits_behind_a_forgotten_one,
        what_is_left_for_another_turn_is_done,
        one_writes_when_a_turn_is_over,
        one_writes_when_a_handler_has_taken_the_turn;
    polls: an_operation_that_polls_gets_its_message,
        an_operation_polls_as_its_peer_does,
        the_background_task_polls_as_its_peer_does,
        a_poller_leaves_while_another_waits,
        a_sleeper_outlasts_one_that_finds_its_message_at_once,
        a_newer_operation_takes_over,
        a_poller_leaves_one_that_others_drive_for,
        each_poller_that_leaves_is_followed,
        a_poller_leaves_while_the_background_task_comes,
        the_tick_finds_polling_that_was_left_on,
        the_tick_goes_on_while_polling_is_on,
        the_tick_finds_a_forgotten_poller,
        an_operation_waits_behind_a_forgotten_poller,
        an_operation_leaves_a_pipe_that_listens,
        a_poller_that_was_stopped_leaves_no_trace,
        a_pipe_begins_to_listen,
        a_handler_is_polled_for,
        one_is_written_while_one_that_is_polled_for_comes;
}
