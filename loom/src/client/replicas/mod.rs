//! A set of replicas, reduced to the hand-overs between calls and tasks. `table`, `replica` and `balance` are the real files of
//! `tensorpipe-rpc/src/client/replicas/`.

#[path = "../../../../tensorpipe-rpc/src/client/replicas/balance.rs"]
pub mod balance;
mod builder;
pub mod calls;
#[path = "../../../../tensorpipe-rpc/src/client/replicas/replica.rs"]
mod replica;
#[allow(dead_code, reason = "calls with references are not modelled")]
#[path = "../../../../tensorpipe-rpc/src/client/replicas/table.rs"]
mod table;
