//! Runs the models of a pipe: a test each.

use tensorpipe_loom::pipe::{deliveries, kicks, wakes};

macro_rules! models {
    ($($module:ident: $($model:ident),+;)+) => {
        $($(
            #[test]
            fn $model() {
                $module::$model();
            }
        )+)+
    };
}

models! {
    kicks: two_write_at_once, three_write_at_once, one_looks_while_another_writes;
    deliveries: two_deliver_at_once,
        three_deliver_at_once,
        a_round_that_stops_for_a_message_goes_on,
        what_a_handler_writes_leaves;
    wakes: an_operation_that_leaves_hands_its_wake_on,
        a_wake_outlives_those_who_drive_meanwhile,
        a_forgotten_operation_loses_the_role,
        two_operations_wait,
        an_operation_waits_behind_one_that_leaves,
        an_operation_waits_behind_a_forgotten_one;
}
