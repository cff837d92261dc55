//! Runs the models of leases: a test each.

use tensorpipe_loom::lease::{deaths, offers, returns, writes};

tensorpipe_loom::models! {
    writes: the_lender_writes, the_pool_hands_it_out_again, two_read_the_same, two_want_memory;
    offers: an_offer_is_taken_or_withdrawn,
        an_offer_is_taken_or_read_at_home,
        whoever_takes_sees_what_was_written,
        a_late_reader_takes_nothing_else,
        it_is_lent_again,
        a_slot_is_reaped_while_its_owner_keeps_the_memory,
        a_slot_waits_for_its_borrower;
    deaths: a_borrower_dies,
        one_of_two_dies,
        a_borrower_dies_while_its_offer_is_withdrawn,
        a_borrower_dies_after_it_has_sent_back,
        a_borrower_dies_while_what_it_has_sent_back_is_on_its_way;
    returns: it_is_read_by_its_lender, a_look_harms_nobody, it_is_read_twice_by_its_lender, what_is_back_is_not_read,
        what_is_sent_back_is_its_lenders, a_late_sender_touches_no_other_loan, two_messages_bring_it_back;
}
