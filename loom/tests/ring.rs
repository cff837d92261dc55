//! Runs the models of a ring of bytes: a test each.

use tensorpipe_loom::ring::{deaths, sleeps, streams};

tensorpipe_loom::models! {
    streams: bytes_arrive_through_a_small_ring,
        bytes_arrive_through_a_larger_ring,
        bytes_arrive_while_both_look,
        bytes_arrive_though_the_memory_goes_back,
        bytes_arrive_though_the_ring_is_rewound;
    sleeps: a_consumer_hears_of_bytes,
        a_consumer_hears_of_the_end,
        a_consumer_that_stayed_awake_hears_of_bytes,
        a_producer_hears_of_room,
        a_producer_hears_that_nobody_reads;
    deaths: a_producer_dies, a_consumer_dies;
}
