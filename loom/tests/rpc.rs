//! Runs the models of calls: a test each.

use tensorpipe_loom::rpc::{calls, ends, items, releases, streams};

tensorpipe_loom::models! {
    calls: whoever_awaits_an_answer_is_woken, one_of_two_outcomes_is_the_call_s, an_outcome_that_nobody_takes_goes_back;
    ends: an_answer_meets_the_deadline,
        an_answer_in_parts_meets_the_deadline,
        a_caller_that_leaves_leaves_nothing,
        an_answer_that_stalls_is_given_up,
        a_call_over_a_lost_connection_fails,
        an_answer_that_breaks_off_leaves_nothing;
    releases: none_is_lost_where_there_is_no_room, a_call_overtakes_no_release_that_its_thread_has_made;
    streams: a_sender_that_waits_for_room_is_woken, room_is_made_by_two_threads, a_sender_that_nobody_reads_ends;
    items: a_reader_that_waits_for_items_is_woken,
        a_reader_that_waits_reads_what_was_kept,
        room_that_comes_fetches_what_was_kept,
        an_end_makes_room_for_what_was_kept,
        what_was_kept_is_read_once,
        a_stream_that_is_dropped_leaves_nothing,
        a_call_ends_with_its_last_item,
        nothing_is_granted_while_an_item_is_about_to_be_kept;
}
