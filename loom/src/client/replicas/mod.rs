//! A set of replicas as far as its calls and tasks hand over to each other: `table`, `replica` and `balance` are those of
//! `tensorpipe-rpc/src/client/replicas/`.

#[path = "../../../../tensorpipe-rpc/src/client/replicas/balance.rs"]
pub mod balance;
mod builder;
pub mod calls;
#[path = "../../../../tensorpipe-rpc/src/client/replicas/replica.rs"]
mod replica;
#[path = "../../../../tensorpipe-rpc/src/client/replicas/table.rs"]
mod table;
