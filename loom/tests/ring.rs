//! Runs the models of a ring of bytes: a test each.

use tensorpipe_loom::ring::{deaths, news, sleeps, streams, turns};

tensorpipe_loom::models! {
    streams: bytes_arrive_through_a_small_ring,
        bytes_arrive_through_a_larger_ring,
        bytes_arrive_while_both_look;
    sleeps: a_consumer_hears_of_bytes,
        a_consumer_hears_of_the_end,
        a_consumer_that_stayed_awake_hears_of_bytes,
        a_producer_hears_of_room,
        a_producer_hears_that_nobody_reads;
    deaths: a_producer_dies, a_consumer_dies;
    turns: bytes_arrive_through_two_turns,
        bytes_arrive_through_places_of_two_sizes,
        a_place_that_was_left_is_free,
        a_place_is_taken_while_bytes_flow,
        a_producer_dies_while_it_turns;
    news: a_turn_is_heard_whole_behind_an_offer,
        a_turn_is_heard_whole_behind_a_withdrawal,
        a_place_is_kept_for_a_turn_in_front_of_an_offer,
        a_place_is_kept_for_a_turn_in_front_of_a_withdrawal;
}
