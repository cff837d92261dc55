//! Runs the models of a set of replicas: a test each.

use tensorpipe_loom::client::replicas::calls;

tensorpipe_loom::models! {
    calls: a_call_hears_of_a_replica_that_comes,
        a_call_hears_of_a_replica_that_joins,
        a_replica_that_connects_while_it_leaves_gets_no_calls,
        whoever_connects_hears_of_the_first_replica,
        a_client_is_made_when_a_replica_has_its_service,
        all_calls_hear_of_it,
        a_service_is_asked_for_whenever_its_client_comes,
        a_call_hears_that_no_replica_is_left,
        the_task_of_a_replica_that_a_call_takes_out_is_told,
        a_pipe_that_has_gone_takes_no_other_with_it,
        of_two_that_answer_nothing_one_stays,
        a_task_that_rests_is_hurried,
        closing_ends_a_call_that_waits;
}
