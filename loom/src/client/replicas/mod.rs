//! A set of replicas as far as its calls and tasks hand over to each other: `table` and `replica` are those of
//! `tensorpipe-rpc/src/client/replicas/`, with what they need of it.

#[path = "../../../../tensorpipe-rpc/src/client/replicas/balance.rs"]
pub mod balance;
mod builder;
pub mod calls;
#[path = "../../../../tensorpipe-rpc/src/client/replicas/replica.rs"]
mod replica;
#[path = "../../../../tensorpipe-rpc/src/client/replicas/table.rs"]
mod table;
